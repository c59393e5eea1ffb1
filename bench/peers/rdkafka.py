"""Workloads with librdkafka through confluent-kafka: the same calls for ours and Apache Kafka."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from itertools import cycle
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_S = 60.0
MIB = 2**20
WARM_UP = 20  # the first few find partitions, leaders and offsets


class Moved(NamedTuple):
    """The number of records, the elapsed time, and the CPU time of the client."""

    count: int
    seconds: float
    cpu_seconds: float


def create(bootstrap: str, names: list[str]) -> None:
    """Create topics of one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    made = admin.create_topics(
        [NewTopic(name, 1, 1) for name in names], operation_timeout=PATIENCE_S
    )
    for future in made.values():
        future.result(PATIENCE_S)


def stored(bootstrap: str, topic: str) -> int:
    """Return how many records the topic's partition holds."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-count"})
    first, end = consumer.get_watermark_offsets(
        confluent_kafka.TopicPartition(topic, 0), timeout=PATIENCE_S
    )
    consumer.close()
    return int(end - first)


def produce(bootstrap: str, topic: str, size: int, count: int, acks: str, codec: str) -> Moved:
    """Produce as fast as one Python thread can; the time ends with the last delivery report."""
    return _produce(bootstrap, [topic], size, count, acks, codec)


def produce_many(bootstrap: str, topics: list[str], count: int) -> Moved:
    """Produce records of 100 bytes to the topics in turn."""
    return _produce(bootstrap, topics, 100, count, "all", "none")


def _produce(
    bootstrap: str, topics: list[str], size: int, count: int, acks: str, codec: str
) -> Moved:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    values = [os.urandom(size // 2) + b"x" * (size - size // 2) for _ in range(64)]
    producer.list_topics(topics[0] if len(topics) == 1 else None, timeout=PATIENCE_S)
    began, cpu = time.perf_counter(), time.process_time()
    for number, topic in zip(range(count), cycle(topics), strict=False):
        try:
            producer.produce(topic, values[number & 63])
        except BufferError:  # the client's queue is full: let it drain
            producer.flush(PATIENCE_S)
            producer.produce(topic, values[number & 63])
    assert producer.flush(PATIENCE_S) == 0, "not all were acknowledged"
    return Moved(count, time.perf_counter() - began, time.process_time() - cpu)


def fetch(bootstrap: str, topic: str, count: int) -> Moved:
    """Fetch that many records from the start of the topic, with one consumer."""
    consumer = consumer_of(bootstrap)
    consumer.list_topics(topic, timeout=PATIENCE_S)
    began, cpu = time.perf_counter(), time.process_time()
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = 0
    while found < count:
        messages = consumer.consume(min(100_000, count - found), timeout=PATIENCE_S)
        assert messages, "not all were read"
        found += len(messages)
    done = Moved(found, time.perf_counter() - began, time.process_time() - cpu)
    consumer.close()
    return done


def drain(kcat: str, bootstrap: str, topic: str, count: int) -> Moved:
    """Fetch with kcat, a program in C, which writes one byte for each record.

    The time starts with its first output, some thousands of records in, to exclude its start-up.
    """
    command = [kcat, "-b", bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-q"]
    command += ["-c", str(count), "-f", "."]
    command += [word for pair in _greedy().items() for word in ("-X", "{}={}".format(*pair))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        skipped = len(os.read(reader.stdout.fileno(), MIB))
        began, found = time.perf_counter(), skipped
        while chunk := os.read(reader.stdout.fileno(), MIB):
            found, ended = found + len(chunk), time.perf_counter()
    assert found == count, f"{found:,} of {count:,} were read"
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Moved(count - skipped, ended - began, spent.ru_utime + spent.ru_stime)


def firsts(bootstrap: str, topic: str, probes: int) -> list[float]:
    """Return the seconds from assigning a consumer at the topic's start to its first record."""
    # A wait at the end would delay the next probe, and large replies would be timed completely.
    consumer = consumer_of(bootstrap, wait_ms=1, fetch_bytes=64 * 1024)
    consumer.list_topics(topic, timeout=PATIENCE_S)
    taken = []
    for _ in range(probes):
        began = time.perf_counter()
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        assert consumer.poll(PATIENCE_S) is not None, "nothing was read"
        taken.append(time.perf_counter() - began)
        consumer.unassign()
    consumer.close()
    return taken


def consumer_of(
    bootstrap: str, wait_ms: int = 500, fetch_bytes: int = 4 * MIB
) -> confluent_kafka.Consumer:
    """Return a consumer that never pauses while there is something to read."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            **_greedy(wait_ms, fetch_bytes),
        }
    )


def _greedy(wait_ms: int = 500, fetch_bytes: int = 4 * MIB) -> dict[str, str | int]:
    return {
        "fetch.wait.max.ms": wait_ms,
        "fetch.message.max.bytes": fetch_bytes,
        # Otherwise it pauses for a second whenever it is this far ahead of the Python code.
        "queued.max.messages.kbytes": 1024 * 1024,
        "queued.min.messages": 10_000_000,
        "check.crcs": "false",
    }


def end_to_end(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Return the milliseconds from ``produce`` until the consumer has the record, one at a time."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0}
    )
    consumer = consumer_of(bootstrap)
    _, end = consumer.get_watermark_offsets(
        confluent_kafka.TopicPartition(topic, 0), timeout=PATIENCE_S
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, end)])
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until or len(taken) <= WARM_UP:
        producer.produce(topic, bytes(100))
        producer.poll(0)
        assert consumer.poll(PATIENCE_S) is not None, "a record did not arrive"
        taken.append((time.perf_counter() - began) * 1000)
    producer.flush(PATIENCE_S)
    consumer.close()
    return taken[WARM_UP:]


def acks(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Return the milliseconds from ``produce`` to the delivery report, one record in flight."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0}
    )
    producer.produce(topic, b"warm")
    producer.flush(PATIENCE_S)
    value, taken = bytes(100), []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        producer.produce(topic, value)
        assert producer.flush(PATIENCE_S) == 0
        taken.append((time.perf_counter() - began) * 1000)
    return taken
