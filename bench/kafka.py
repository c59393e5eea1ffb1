"""Measures the Kafka listener with librdkafka: produce, fetch, ack latency and idle consumers.

The broker is a separate process. Client and broker share the machine, and one Python client thread
is often the slower end. Each rate is therefore shown with the broker's CPU seconds per million
records, which other processes affect least.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import rdkafka
from bench.rows import Row
from cordwood.lab.scenarios.stage import Child

SIZES = {100: 400_000, 1024: 150_000}  # record size in bytes → number of records
CASES = [("1", "none"), ("all", "none"), ("1", "lz4"), ("all", "lz4")]
LATENCY_S = 4.0
IDLE_CONSUMERS = 50
IDLE_S = 5.0
PATIENCE_S = 120.0
MIB = 2**20


def run() -> Iterator[Row]:
    for durability in ("fsync", "os"):
        with serve(durability) as broker:
            yield from latency(broker, durability)
            for size in SIZES:
                for acks, codec in CASES if durability == "fsync" else CASES[1:2]:
                    yield from throughput(broker, durability, size, acks, codec)
    with serve("os") as broker:
        yield from idle(broker)


@contextmanager
def serve(durability: str) -> Iterator[Child]:
    directory = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    broker = Child(directory / "data", {"durability": durability})
    try:
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(directory)


def cpu_seconds(broker: Child) -> float:
    fields = Path(f"/proc/{broker._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def throughput(broker: Child, durability: str, size: int, acks: str, codec: str) -> Iterator[Row]:
    count = SIZES[size]
    topic = f"{durability}-{size}-{acks}-{codec}"
    what = f"{size} B, {codec}, {durability}"
    address = broker.addresses["kafka"]
    seconds, cpu = timed(broker, rdkafka.produce, address, topic, size, count, acks, codec)
    yield from rates(f"produce {what}", f"acks={acks}", size, count, seconds, cpu)
    if acks == "all":
        seconds, cpu = timed(broker, rdkafka.fetch, address, topic, count)
        yield from rates(f"fetch {what}", "one consumer", size, count, seconds, cpu)


def timed(broker: Child, work: Callable[..., rdkafka.Moved], *given) -> tuple[float, float]:
    """Return the elapsed seconds and the broker's CPU seconds."""
    cpu = cpu_seconds(broker)
    return work(*given).seconds, cpu_seconds(broker) - cpu


def rates(
    workload: str, variant: str, size: int, count: int, seconds: float, cpu: float
) -> Iterator[Row]:
    note = f"broker {cpu * 1e6 / count:.2f} CPU-s per million"
    yield Row(workload, variant, count / seconds, "records/s", note)
    yield Row(workload, variant, count * size / seconds / MIB, "MiB/s")


def latency(broker: Child, durability: str) -> Iterator[Row]:
    """Measure from ``produce`` to the delivery report, with one record in flight."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.addresses["kafka"], "acks": "all", "linger.ms": 0}
    )
    producer.produce("latency", b"warm")
    producer.flush(PATIENCE_S)
    value, taken = bytes(100), []
    cpu, until = cpu_seconds(broker), time.perf_counter() + LATENCY_S
    while (started := time.perf_counter()) < until:
        producer.produce("latency", value)
        assert producer.flush(PATIENCE_S) == 0
        taken.append((time.perf_counter() - started) * 1000)
    cpu = cpu_seconds(broker) - cpu
    marks = statistics.quantiles(taken, n=100)
    note = f"{len(taken)} acks, broker {cpu * 1e6 / len(taken):.0f} CPU-µs each"
    yield Row(f"ack of one record in flight, {durability}", "p50", marks[49], "ms", note)
    yield Row(f"ack of one record in flight, {durability}", "p99", marks[98], "ms")


def idle(broker: Child) -> Iterator[Row]:
    """Measure consumers that long-poll a topic without writers."""
    address = broker.addresses["kafka"]
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("quiet", 1)])["quiet"].result()
    consumers = []
    for number in range(IDLE_CONSUMERS):
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": f"idle-{number}"}
        )
        consumer.assign([confluent_kafka.TopicPartition("quiet", 0, 0)])
        consumer.poll(0)
        consumers.append(consumer)
    time.sleep(2)  # until all have connected
    before = cpu_seconds(broker)
    time.sleep(IDLE_S)
    percent = (cpu_seconds(broker) - before) / IDLE_S * 100
    for consumer in consumers:
        consumer.close()
    note = f"{IDLE_CONSUMERS} consumers, fetch.wait.max.ms=500"
    yield Row("idle consumers", "all", percent, "% of a core", note)
    yield Row("idle consumers", "each", percent / IDLE_CONSUMERS, "% of a core")
