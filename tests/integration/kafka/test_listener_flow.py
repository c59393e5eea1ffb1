"""Flow control of the Kafka listener: backpressure, fetch sizes, long polls and reply order."""

from __future__ import annotations

import socket
import struct
import time

import confluent_kafka
import pytest

from cordwood.batch.records import encode_batch
from cordwood.client.kafka import LATEST, KafkaClient
from cordwood.model import Record, TopicPartition
from cordwood.protocol.kafka.frames import encode_request, parse_response
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.kafka.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.server.kafka_listener import TURN_REQUESTS
from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, Confluent, Sent, create_topic
from support.lines import until
from support.recording import read_reply

FETCH, VERSION = 1, 11
PRODUCE_VERSION = 9


@pytest.fixture
def broker():
    with Broker(durability="os") as running:
        yield running


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.kafka.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def fetch(topic: str, offset: int, *, min_bytes: int, max_wait_ms: int, correlation_id: int = 1):
    wanted = FetchTopic(
        topic, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=2**25)]
    )
    request = FetchRequest(-1, max_wait_ms, min_bytes, 2**25, 0, topics=[wanted])
    return b"".join(encode_request(request, VERSION, correlation_id, "raw"))


def read_records(listener: socket.socket) -> bytes:
    _, response = parse_response(FETCH, VERSION, read_reply(listener))
    return bytes(response.topics[0].partitions[0].records or b"")


def test_produce_waits_for_the_writer_and_keeps_its_order(broker):
    """Produce requests wait while the writer is busy; each is stored once and in order."""
    broker.service.broker.kafka.waiting_bytes_max = 0
    create_topic(broker.kafka, "held")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka, "batch.num.messages": 1, "linger.ms": 0}
    )
    for number in range(500):
        producer.produce("held", b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    found = Confluent().read(broker.kafka, "held", 500)
    assert [int(record.value) for record in found] == list(range(500))


def produce_without_acks(topic: str) -> bytes:
    batch = encode_batch([Record(0, 0, b"k", b"v")])
    request = ProduceRequest(
        None, 0, 1000, [ProduceTopic(topic, partitions=[ProducePartition(0, batch)])]
    )
    return b"".join(encode_request(request, PRODUCE_VERSION, 1, "raw"))


def test_requests_that_arrived_before_the_peer_closed_are_stored(broker):
    """All acks=0 requests that arrived before the peer closed are stored.

    They are more than the listener handles in one turn of the event loop.
    """
    count = 2 * TURN_REQUESTS + 1
    create_topic(broker.kafka, "sent")
    with connect(broker) as listener:
        listener.sendall(produce_without_acks("sent") * count)
    with KafkaClient(broker.kafka) as client:
        tp = TopicPartition("sent", 0)
        until(lambda: client.offset(tp, LATEST) == count, "all of them are stored")


def test_a_fetch_that_asks_for_much_gets_it_in_one_reply(broker):
    """A fetch gets at least min_bytes in one reply, even above the usual limit of a reply."""
    create_topic(broker.kafka, "much")
    Confluent().send(broker.kafka, "much", [Sent(bytes(500_000)) for _ in range(8)])
    with connect(broker) as listener:
        listener.sendall(fetch("much", 0, min_bytes=3_000_000, max_wait_ms=20_000))
        started = time.monotonic()
        assert len(read_records(listener)) >= 3_000_000
        assert time.monotonic() - started < 10


def test_a_fetch_near_the_end_is_served_a_little_at_a_time(broker):
    """A fetch with min_bytes=1 gets at most 1 MiB, so it does not block the event loop."""
    create_topic(broker.kafka, "greedy")
    Confluent().send(broker.kafka, "greedy", [Sent(bytes(500_000)) for _ in range(8)])
    with connect(broker) as listener:
        listener.sendall(fetch("greedy", 0, min_bytes=1, max_wait_ms=0))
        assert 0 < len(read_records(listener)) <= 2**20


def test_a_stopping_broker_lets_long_polls_go(broker):
    """A stopping broker answers a long poll at once instead of waiting for its max wait."""
    create_topic(broker.kafka, "quiet")
    with connect(broker) as listener:
        listener.sendall(fetch("quiet", 0, min_bytes=1, max_wait_ms=60_000))
        kafka = broker.service.server.listeners["kafka"]
        until(lambda: any(link.is_busy() for link in list(kafka.connections)), "it waits")
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < 5
        assert read_records(listener) == b""
    broker.start()


def test_what_is_answered_first_is_not_sent_first(broker):
    """Replies keep the order of requests: a waiting long poll delays the replies behind it."""
    create_topic(broker.kafka, "empty")
    with connect(broker) as listener:
        waiting = fetch("empty", 0, min_bytes=1, max_wait_ms=300, correlation_id=1)
        listener.sendall(waiting + fetch("empty", 0, min_bytes=0, max_wait_ms=0, correlation_id=2))
        ids = [struct.unpack_from(">i", read_reply(listener))[0] for _ in range(2)]
    assert ids == [1, 2]
