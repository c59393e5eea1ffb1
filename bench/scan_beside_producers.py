"""Measures whether a Spark scan disturbs producers: ack latency with and without a scan.

A Kafka producer with one record in flight waits for each ack (synced to the device) while another
process repeatedly scans a topic of the same data directory, with all columns, on every core. This
is a hard case: broker, producer, Java and its workers share the machine's cores and its disk.
``background`` and ``polite`` are the same scan with ``spark.cordwood.priority`` ``background`` and
``idle``: at lower priority than other processes, and only on idle cores. *Any Python server* shows
how the machine affects a server with almost no work: it writes a line, syncs and answers
(``bench.peers.least``) over a plain socket. ``CORDWOOD_BENCH_RECORDS`` sets how many records are
scanned.
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
    """Return the milliseconds from ``produce`` to the delivery report, one record at a time."""
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
    """Return the same for a line to the minimal server."""
    return client.one_in_flight(bound, "least", MEASURE_S)


def report(scan: str, taken: list[float], bound: list[float], more: str = "") -> Iterator[Row]:
    workload = f"ack beside a Spark scan, {scan}"
    for prefix, times, remark in (("", taken, more), ("any Python server, ", bound, "")):
        marks = statistics.quantiles(times, n=100)
        note = f"{len(times)} acks, one in flight{remark}"
        yield Row(workload, f"{prefix}p50", marks[49], "ms", note)
        yield Row(workload, f"{prefix}p99", marks[98], "ms")


@contextmanager
def scanning(data: Path, priority: str) -> Iterator[Callable[[], int]]:
    """Scan in another process until the block ends; the value counts the completed scans."""
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
    output, stdin = process.stdout, process.stdin
    assert output is not None, "a pipe"
    assert stdin is not None, "a pipe"
    try:
        assert output.readline() == "warm\n", "the scan did not start"
        os.set_blocking(output.fileno(), False)
        yield lambda: output.read().count("scan\n")
    finally:
        stdin.close()  # it stops after its current scan
        output.close()
        process.wait(PATIENCE_S)


def scan_until_told(data: str, priority: str) -> None:
    """Scan repeatedly until standard input ends."""
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
