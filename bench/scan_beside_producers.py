"""Whether a Spark scan of history disturbs producers: the wait for an ack, with and without one.

A Kafka producer with one record in flight waits for each ack (synced to the device) while another
process scans a topic of the same data directory, again and again, all columns, on every core. That
is a hard case: broker, producer, Java and its workers share the machine's cores and its disk.
``background`` and ``polite`` are the same scan with ``spark.cordwood.priority`` ``background`` and
``idle``: behind whoever wakes up, and on the cores nobody else wants.
*Any Python server* is what the machine does to a server that has next to nothing to do: one that
writes a line, syncs and answers (``bench.peers.least``), asked over a plain socket.
``CORDWOOD_BENCH_RECORDS`` sets how many records are scanned.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from bench.peers import client, rdkafka
from bench.peers.contestants import Least, Level, Server
from bench.rows import Row
from cordwood.lab.scenarios.stage import Child, ScenarioRun

RECORDS = int(os.environ.get("CORDWOOD_BENCH_RECORDS", "1000000"))
MEASURE_S = 8.0
PATIENCE_S = 120.0
SCANNED = "history"
RANKS = {"scan": "normal", "scan, background": "background", "scan, polite": "idle"}


def run() -> Iterator[Row]:
    with ScenarioRun("bench-beside", out=io.StringIO()) as stage:
        broker = stage.serve(durability="fsync")
        rdkafka.produce(broker.addresses["kafka"], SCANNED, 100, RECORDS, "all", "none")
        with Server(Least, Level.SYNCED) as server:
            bound = server.addresses["least"]
            yield from report("no scan", acks(broker), acks_of(bound))
            for name, priority in RANKS.items():
                with scanning(stage.directory / "data", priority) as scans:
                    taken = acks(broker)
                    more = f", {scans()} scans of {RECORDS:,} records"
                    yield from report(name, taken, acks_of(bound), more)


def acks(broker: Child) -> list[float]:
    """Milliseconds from ``produce`` to the delivery report, one record after another."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.addresses["kafka"], "acks": "all", "linger.ms": 0}
    )
    producer.produce("live", b"warm")
    producer.flush(PATIENCE_S)
    taken = []
    until = time.perf_counter() + MEASURE_S
    while (started := time.perf_counter()) < until:
        producer.produce("live", bytes(100))
        assert producer.flush(PATIENCE_S) == 0, "not acknowledged"
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def acks_of(bound: tuple[str, int]) -> list[float]:
    """The same for a line to the least of servers."""
    return client.one_in_flight(bound, "least", MEASURE_S)


def report(scan: str, taken: list[float], bound: list[float], more: str = "") -> Iterator[Row]:
    workload = f"ack beside a Spark scan, {scan}"
    for prefix, times, said in (("", taken, more), ("any Python server, ", bound, "")):
        marks = statistics.quantiles(times, n=100)
        note = f"{len(times)} acks, one in flight{said}"
        yield Row(workload, f"{prefix}p50", marks[49], "ms", note)
        yield Row(workload, f"{prefix}p99", marks[98], "ms")


@contextmanager
def scanning(data: Path, priority: str) -> Iterator[Callable[[], int]]:
    """Scans in a process of its own from here on; the value counts those that have ended."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.scan_beside_producers",
            str(data),
            priority,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.PIPE,
        text=True,
    )
    said, told = process.stdout, process.stdin
    assert said is not None, "a pipe"
    assert told is not None, "a pipe"
    try:
        assert said.readline() == "warm\n", "the scan did not start"
        os.set_blocking(said.fileno(), False)
        yield lambda: said.read().count("scan\n")
    finally:
        told.close()  # it ends with its next scan
        said.close()
        process.wait(PATIENCE_S)


def scan_until_told(data: str, priority: str) -> None:
    """Scan again and again, until standard input ends."""
    import select

    from cordwood.spark import session, topic

    conf = {"spark.driver.memory": "1g", "spark.cordwood.priority": priority}
    spark = session("bench", master="local[*]", conf=conf)
    scanned = topic(spark, SCANNED, path=data)
    scanned.write.format("noop").mode("overwrite").save()
    print("warm", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        scanned.write.format("noop").mode("overwrite").save()
        try:
            print("scan", flush=True)
        except BrokenPipeError:
            break
    spark.stop()


if __name__ == "__main__":
    scan_until_told(sys.argv[1], sys.argv[2])
