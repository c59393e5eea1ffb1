"""Kill the broker repeatedly under a producer's load: acknowledged records survive.

One idempotent librdkafka producer runs throughout and numbers its records. Each partition must hold
every number exactly once, in order, at the offset that the producer got. A consumer group commits
offsets meanwhile and finds them after every restart.
"""

from __future__ import annotations

import random
import threading
import time

import confluent_kafka
import pytest

from cordwood.lab.scenarios.stage import Child
from support.kafka_clients import PATIENCE_S, create_topic
from support.lines import select_nothing, until

ROUNDS = 20
PARTITIONS = 3
TOPIC = "killed"
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}


class Load:
    """A thread that produces about ten thousand numbers per second."""

    def __init__(self, address: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # never give up
                "retry.backoff.ms": 10,
                "linger.ms": 2,
                "queue.buffering.max.messages": 5000,
                **QUICK,
            }
        )
        self.sent = [0] * PARTITIONS
        self.acked: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]  # number → offset
        self.errors: list[str] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def acked_count(self) -> int:
        return sum(map(len, self.acked))

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                for partition in list(range(PARTITIONS)) * 20:
                    self._send(partition)
            except BufferError:
                pass  # the broker is down
            self._producer.poll(0.003)

    def _send(self, partition: int) -> None:
        number = b"%d" % self.sent[partition]
        self._producer.produce(TOPIC, number, partition=partition, on_delivery=self._on_delivery)
        self.sent[partition] += 1

    def _on_delivery(self, error, message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acked[message.partition()][int(message.value())] = message.offset()

    def end(self) -> None:
        """Stop sending and wait for the last acknowledgement."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0, "not all were acknowledged in the end"


def reader(address: str, **settings: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "survivors",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **QUICK,
            **settings,
        }
    )


def spots(offsets: dict[int, int]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(TOPIC, p, o) for p, o in offsets.items()]


def read_and_commit(address: str, committed: dict[int, int]) -> None:
    """Check the committed offsets, continue from them, and commit what was read."""
    consumer = reader(address)
    asked = [confluent_kafka.TopicPartition(TOPIC, partition) for partition in committed]
    found = {
        tp.partition: max(tp.offset, 0) for tp in consumer.committed(asked, timeout=PATIENCE_S)
    }
    assert found == committed
    consumer.assign(spots(committed))
    for message in consumer.consume(200, timeout=1.0):
        assert message.offset() == int(message.value())
        committed[message.partition()] = message.offset() + 1
    consumer.commit(offsets=spots(committed), asynchronous=False)
    consumer.close()


def read_all(address: str, sent: list[int]) -> list[list[int]]:
    """Return the numbers of each partition in offset order."""
    consumer = reader(address)
    consumer.assign(spots(dict.fromkeys(range(PARTITIONS), 0)))
    numbers: list[list[int]] = [[] for _ in range(PARTITIONS)]
    while sum(map(len, numbers)) < sum(sent):
        left = sum(sent) - sum(map(len, numbers))
        messages = consumer.consume(min(left, 10_000), timeout=5.0)
        if not messages:
            break
        for message in messages:
            assert message.error() is None, message.error()
            assert message.offset() == len(numbers[message.partition()])
            numbers[message.partition()].append(int(message.value()))
    consumer.close()
    return numbers


@pytest.mark.timeout(180)
def test_kill_nine_loses_doubles_and_reorders_nothing(tmp_path):
    """After twenty kills at random times, the log matches what the producer was acknowledged."""
    chance = random.Random(seed := random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    broker = Child(tmp_path / "data", {"group.initial.rebalance.delay.ms": "0"})
    address = broker.addresses["kafka"]
    create_topic(address, TOPIC, partitions=PARTITIONS, segment_bytes=1_000_000)
    load = Load(address)
    committed = dict.fromkeys(range(PARTITIONS), 0)
    try:
        for nth in range(ROUNDS):
            goal = load.acked_count + 1000
            until(lambda goal=goal: load.acked_count >= goal, "a thousand more are acknowledged")
            if nth % 4 == 0:
                read_and_commit(address, committed)
            select_nothing(chance.random() * 0.2)  # the kill comes at a random time
            broker.kill()
            settings = {"kafka": address, "group.initial.rebalance.delay.ms": "0"}
            broker = Child(tmp_path / "data", settings)
        load.end()
        assert load.errors == []
        assert read_all(address, load.sent) == [list(range(count)) for count in load.sent]
        for acked, count in zip(load.acked, load.sent, strict=True):
            assert acked == {number: number for number in range(count)}
        check_group_resumes(address, committed)
    finally:
        load._ending.set()
        load._thread.join()
        broker.kill()


def check_group_resumes(address: str, committed: dict[int, int]) -> None:
    """A new group member starts at the committed offset of every partition."""
    consumer = reader(address, **{"session.timeout.ms": 6000})
    consumer.subscribe([TOPIC])
    first: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(first) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=1.0):
            first.setdefault(message.partition(), message.offset())
    consumer.close()
    assert first == committed
