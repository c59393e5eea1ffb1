"""ROUTE through Spark: every record once, in order, by the bindings of the moment."""

from contextlib import closing

import confluent_kafka
import pytest

from cordwood.batch.records import decode_batch
from cordwood.client import Client, Producer
from cordwood.errors import StaleDelivery
from cordwood.lab.scenarios.stage import wait_until
from cordwood.model import Header, TopicPartition
from cordwood.pipeline.route.query import READER, RouteQuery, plan_route
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi, Cursor
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
    return RouteQuery(spark, plan_route(api, where, **limits), api)


def send(broker, *messages):
    with Producer(broker.ingress, name="test") as producer:
        producer.send_and_confirm(list(messages))


def wait_routed(broker, running, count):
    """Until the cursor is there; a query that failed is shown."""
    with closing(BrokerApi(BrokerAddress(broker.kafka))) as api:

        def is_there():
            assert running.failure() is None
            return sum(api.positions("append", READER).values()) >= count

        wait_until(is_there, f"{count} records are routed", WAIT_S)


def records(broker, topic, partition=0):
    """What a reader finds."""
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
    """One story, as a stream takes seconds to start.

    The default, a binding set while it runs, what cannot be routed, and a second start that goes on
    where the first stood.
    """
    send(broker, ("jobs.a", "1"), ("test.b", "2"), ("jobs.c", "3"), (".x", "4"))
    running = open_route(spark, broker)
    try:
        wait_routed(broker, running, 4)
        assert (values(broker, "jobs"), values(broker, "test")) == (["1", "3"], ["2"])
        with closing(BrokerApi(BrokerAddress(broker.kafka))) as api:
            api.set_binding("prefix", "jobs", "work")
            api.set_binding("exact", "test.b", "special")
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
        assert client.status(8).word == "PROCESSED"  # the router's cursor counts as a reader's


def test_of_two_drivers_one_is_refused(spark, broker):
    """The slower one appends nothing; its query ends and says why."""
    send(broker, ("jobs.a", "1"))
    running = open_route(spark, broker)
    try:
        wait_routed(broker, running, 1)
        with closing(BrokerApi(BrokerAddress(broker.kafka))) as api:
            zombie = Cursor(READER, "append", 0, 0, 1)
            with pytest.raises(StaleDelivery):
                api.deliver("route.append", 99, "zombie", [], [zombie])
            assert api.deliver("other", 0, "moved", [], [Cursor(READER, "append", 0, 1, 1)])
            api.reset("append", 0, READER, 0)  # somebody else moved the cursor
        send(broker, ("jobs.a", "2"))
        wait_until(lambda: running.failure() is not None, "the query ends", WAIT_S)
        why = running.failure()
    finally:
        running.stop()
    assert "another driver is at work" in why
    assert values(broker, "jobs") == ["1"]


def test_an_aborted_transaction_is_not_routed(spark, broker):
    """Nor is one that is undecided: the router waits at the last stable offset."""
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
