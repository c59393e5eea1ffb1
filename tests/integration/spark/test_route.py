"""The Spark router delivers every record once and in order, by the current routes."""

from contextlib import closing

import confluent_kafka
import pytest

from cordwood.batch.records import decode_batch
from cordwood.client import Client, Producer
from cordwood.decide.routing import ROUTER
from cordwood.errors import StaleDelivery
from cordwood.lab.scenarios.stage import wait_until
from cordwood.model import Header, TopicPartition
from cordwood.pipeline.route import RouteQuery, plan_route
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.protocol.api.deliveries import Deliver, DeliveryCursor
from cordwood.protocol.api.readers import SetRoute
from cordwood.testing import Broker
from support.stores import headers_of

pytestmark = pytest.mark.spark

WAIT_S = 120


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os") as running:
        yield running


def open_route(spark, broker, **limits):
    where = BrokerAddress(broker.kafka)
    api = BrokerApi(where)
    return RouteQuery(spark, plan_route(api, **limits), api)


def send(broker, *messages):
    with Producer(broker.ingress, name="test") as producer:
        producer.send_and_confirm(list(messages))


def wait_routed(broker, running, count):
    """Wait until ``count`` records are routed; fail if the query failed."""
    with closing(BrokerApi(BrokerAddress(broker.kafka))) as api:

        def is_there():
            assert running.failure() is None
            return sum(api.positions("append", ROUTER).values()) >= count

        wait_until(is_there, f"{count} records are routed", WAIT_S)


def records(broker, topic, partition=0):
    """Return all published records of a partition."""
    log = broker.service.broker.store.partition(TopicPartition(topic, partition))
    found, offset = [], 0
    while offset < log.high_watermark:
        part = log.read(offset, 1 << 20)
        position = 0
        for header in headers_of(part.data):
            found += decode_batch(part.data, position)
            position += header.size_bytes
        offset = part.next_offset
    return found


def values(broker, topic):
    return [record.value.decode() for record in records(broker, topic)]


def test_routes_bindings_dead_letters_and_restarts(spark, broker):
    """The router applies default and changed routes, dead-letters bad records and resumes.

    One test covers all of this, because a stream takes seconds to start.
    """
    send(broker, ("jobs.a", "1"), ("test.b", "2"), ("jobs.c", "3"), (".x", "4"))
    running = open_route(spark, broker)
    try:
        wait_routed(broker, running, 4)
        assert (values(broker, "jobs"), values(broker, "test")) == (["1", "3"], ["2"])
        with closing(BrokerApi(BrokerAddress(broker.kafka))) as api:
            api.call(SetRoute("prefix", "jobs", "work"))
            api.call(SetRoute("exact", "test.b", "special"))
        send(broker, ("jobs.a", "5"), ("test.b", "6"), ("test.c", "7"))
        wait_routed(broker, running, 7)
    finally:
        running.stop()
    assert (values(broker, "work"), values(broker, "special")) == (["5"], ["6"])
    assert values(broker, "test") == ["2", "7"]

    third = records(broker, "jobs")[1]
    source = records(broker, "append")[2]
    assert (third.key, third.timestamp_ms) == (b"jobs.c", source.timestamp_ms)
    assert third.headers == (
        *source.headers,
        Header("src.topic", b"append"),
        Header("src.partition", b"0"),
        Header("src.offset", b"2"),
    )
    (dead,) = records(broker, "dead_letter")
    why = {header.key: header.value for header in dead.headers}
    assert (dead.key, dead.value) == (b".x", b"4")
    assert why["dlq.reason"] == b"bad_topic"
    assert (why["dlq.topic"], why["dlq.offset"]) == (b"append", b"3")

    send(broker, ("jobs.a", "8"))
    running = open_route(spark, broker, records_max=1)
    try:
        wait_routed(broker, running, 8)
    finally:
        running.stop()
    assert values(broker, "work") == ["5", "8"]
    with Client(broker.control) as client:
        assert client.status(8).word == "PROCESSED"  # the router counts as a reader


def test_of_two_drivers_one_is_refused(spark, broker):
    """A driver with a stale cursor appends nothing, and its query fails with the reason."""
    send(broker, ("jobs.a", "1"))
    running = open_route(spark, broker)
    try:
        wait_routed(broker, running, 1)
        with closing(BrokerApi(BrokerAddress(broker.kafka))) as api:
            zombie = DeliveryCursor(ROUTER, "append", 0, start=0, offset=1)
            with pytest.raises(StaleDelivery):
                api.deliver(Deliver("route.append", 99, "zombie", (), (zombie,)))
            moved = DeliveryCursor(ROUTER, "append", 0, start=1, offset=1)
            assert api.deliver(Deliver("other", 0, "moved", (), (moved,)))
            api.reset("append", 0, ROUTER, 0)  # simulates another driver that moves the cursor
        send(broker, ("jobs.a", "2"))
        wait_until(lambda: running.failure() is not None, "the query ends", WAIT_S)
        why = running.failure()
    finally:
        running.stop()
    assert "another driver of the query is running" in why
    assert values(broker, "jobs") == ["1"]


def test_an_aborted_transaction_is_not_routed(spark, broker):
    """The router skips records of an aborted transaction."""
    send(broker, ("jobs.a", "1"))
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "t"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("append", b"2", b"jobs.b")
    producer.flush(WAIT_S)
    producer.abort_transaction(WAIT_S)
    send(broker, ("jobs.c", "3"))
    running = open_route(spark, broker)
    try:
        wait_routed(broker, running, 4)
        assert values(broker, "jobs") == ["1", "3"]
    finally:
        running.stop()
