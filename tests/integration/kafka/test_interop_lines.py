"""Kafka clients read records sent as lines, and line clients read records from Kafka."""

from __future__ import annotations

import itertools
import socket

import pytest

from cordwood.client import Client, Producer
from cordwood.testing import Broker
from support.kafka_clients import LIBRARIES, Confluent, Kcat, Sent, create_topic

NAMES = map("topic-{}".format, itertools.count())


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module."""
    with Broker(durability="os") as running:
        yield running


@pytest.fixture
def fresh():
    """A broker whose ingress topic is still empty."""
    with Broker(durability="os") as running:
        yield running


def push(address: str, lines: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as listener:
        listener.sendall(lines)
        listener.shutdown(socket.SHUT_WR)
        assert listener.recv(1) == b""


def test_ingress_lines_are_records_for_every_client(fresh):
    """A line's routing key becomes the key and its payload the value.

    Its timestamp and n become the headers ``ts`` and ``n``.
    """
    push(fresh.ingress, b"order.new|1700000000|1|first\norder.paid|1700000001|2|a|b\n")
    for client in LIBRARIES:
        found = client.read(fresh.kafka, "append", 2)
        assert [(r.key, r.value, r.headers) for r in found] == [
            (b"order.new", b"first", (("ts", b"1700000000"), ("n", b"1"))),
            (b"order.paid", b"a|b", (("ts", b"1700000001"), ("n", b"2"))),
        ], client.name


@pytest.mark.needs("kcat")
def test_kcat_prints_the_headers_of_ingress_lines(fresh):
    """The kcat client shows the headers ``ts`` and ``n`` of an ingress line."""
    push(fresh.ingress, b"k|123|7|hello\n")
    (record,) = Kcat().read(fresh.kafka, "append", 1)
    assert record[:3] == (b"hello", b"k", (("ts", b"123"), ("n", b"7")))


def test_numbered_lines_of_a_producer_are_records_too(fresh):
    """Kafka consumers read the lines of a HELLO producer, whose batches have a producer id."""
    with Producer(fresh.ingress, name="sensor") as producer:
        producer.send_and_confirm([("k", b"payload %d" % number) for number in range(100)])
    for client in LIBRARIES:
        found = client.read(fresh.kafka, "append", 100)
        assert [r.value for r in found] == [b"payload %d" % number for number in range(100)]


@pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_a_subscription_streams_what_kafka_clients_wrote(broker, client, codec):
    """A subscription streams key, payload and seq of Kafka records in any codec."""
    topic = create_topic(broker.kafka, next(NAMES))
    client.send(broker.kafka, topic, [Sent(b"v%d" % n, b"k%d" % n) for n in range(10)], codec=codec)
    with (
        Client(broker.control) as control,
        control.subscribe(topic, from_start=True, idle_timeout_s=10) as lines,
    ):
        found = list(itertools.islice(lines, 10))
    assert [line.seq for line in found] == list(range(1, 11))
    assert [line.payload for line in found] == [b"v%d" % n for n in range(10)]
    assert [line.routing_key for line in found] == [f"k{n}" for n in range(10)]


def test_get_takes_what_kafka_clients_wrote(broker):
    """GET returns the values that Kafka clients wrote, including binary and empty ones."""
    topic = create_topic(broker.kafka, next(NAMES))
    values = [b"first", b"\x00\n\xff|binary", b""]
    Confluent().send(broker.kafka, topic, [Sent(value, b"k") for value in values])
    with Client(broker.control) as control:
        assert [control.get(topic).payload for _ in values] == values
        assert control.get(topic) is None


def test_put_is_read_by_kafka_clients(broker):
    """Kafka clients read the values that PUT wrote, including binary ones."""
    topic = next(NAMES)
    with Client(broker.control) as control:
        control.register(topic)
        control.put(topic, b"\x00binary\n")
        control.put(topic, "text")
    for client in LIBRARIES:
        assert [r.value for r in client.read(broker.kafka, topic, 2)] == [b"\x00binary\n", b"text"]
