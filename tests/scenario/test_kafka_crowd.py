"""A broker with 500 partitions, 200 connections and 50 groups still serves a new client."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import confluent_kafka
import pytest

from cordwood.lab.scenarios.stage import Child
from cordwood.protocol.kafka.frames import encode_request
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.kafka_clients import PATIENCE_S, create_topic
from support.limits import require_open_files
from support.recording import read_reply

PARTITIONS = 500
CONNECTIONS = 200
GROUPS = 50
RECORDS = 20  # per partition


@pytest.fixture
def broker(tmp_path):
    """Run the broker in its own process, apart from the work of its clients."""
    require_open_files(2048)
    child = Child(tmp_path / "data", {"group.initial.rebalance.delay.ms": "0"})
    yield child
    child.kill()
    assert "Traceback" not in child.log()


def fill(address: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 50})
    for number in range(PARTITIONS * RECORDS):
        producer.produce("crowd", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S * 2) == 0


def long_poll(address: str) -> socket.socket:
    """Open a connection that waits for records of every partition, like an idle consumer."""
    host, _, port = address.rpartition(":")
    listener = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    wanted = [
        FetchPartition(number, fetch_offset=RECORDS, partition_max_bytes=1_000_000)
        for number in range(PARTITIONS)
    ]
    request = FetchRequest(
        -1, 60_000, 1, 1_000_000, 0, topics=[FetchTopic("crowd", partitions=wanted)]
    )
    listener.sendall(b"".join(encode_request(request, 11, 1, "idle")))
    return listener


class Member(threading.Thread):
    """A consumer group of one member that reads everything and commits."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__()
        self._address = address
        self._group = f"group-{number}"
        self.seen: set[int] = set()
        self.committed = 0

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe(["small"])
        deadline = time.monotonic() + 60
        while len(self.seen) < 10 * RECORDS and time.monotonic() < deadline:
            self.seen |= {int(m.value()) for m in consumer.consume(100, timeout=1.0)}
        self.committed = sum(tp.offset for tp in consumer.commit(asynchronous=False))
        consumer.close()


def round_trip_s(address: str) -> float:
    """Produce one record and read it with new clients, and return the time it took."""
    started = time.monotonic()
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    where: list[int] = []
    producer.produce("one-more", b"hello", on_delivery=lambda _, m: where.append(m.offset()))
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "one-more"})
    consumer.assign([confluent_kafka.TopicPartition("one-more", 0, where[0])])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"
    return time.monotonic() - started


@pytest.mark.timeout(180)
def test_a_crowd_is_served_and_one_more_is_not_kept_waiting(broker):
    """Groups read everything, a new record ends every long poll, and a new client is served."""
    address = broker.addresses["kafka"]
    create_topic(address, "crowd", partitions=PARTITIONS)
    create_topic(address, "small", partitions=10)
    create_topic(address, "one-more")
    fill(address)
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(10 * RECORDS):
        producer.produce("small", b"%d" % number, partition=number % 10)
    assert producer.flush(PATIENCE_S) == 0

    with contextlib.ExitStack() as listeners:
        idle = [listeners.enter_context(long_poll(address)) for _ in range(CONNECTIONS)]
        members = [Member(address, number) for number in range(GROUPS)]
        for member in members:
            member.start()
        waits_s = [round_trip_s(address) for _ in range(5)]
        for member in members:
            member.join()
        assert [len(member.seen) for member in members] == [10 * RECORDS] * GROUPS
        assert [member.committed for member in members] == [10 * RECORDS] * GROUPS

        producer.produce("crowd", b"news", partition=PARTITIONS - 1)
        assert producer.flush(PATIENCE_S) == 0
        started = time.monotonic()
        for listener in idle:
            assert b"news" in read_reply(listener)
        waits_s.append(time.monotonic() - started)
    print("round trips", [round(wait_s, 2) for wait_s in waits_s])
    assert max(waits_s) < 10
