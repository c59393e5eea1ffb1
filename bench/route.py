"""The router: records per second, and how long a record takes from its append into its route.

The pipeline runs as users run it, a process of its own beside the broker; both share the machine.
``CORDWOOD_BENCH_RECORDS`` sets how many records are routed.
"""

from __future__ import annotations

import io
import os
import socket
import statistics
import time
from collections.abc import Iterator

from bench.rows import Row
from cordwood.client import Client
from cordwood.scenario.pipeline import START_S, Driver, routed
from cordwood.scenario.stage import Child, Stage, wait_until

RECORDS = int(os.environ.get("CORDWOOD_BENCH_RECORDS", "2000000"))
PROBES = 100
PAYLOAD = b"x" * 80
KEYS = (b"test.probe", b"jobs.process.%d", b"random.unknown_%d", b"bar.baz_%d")


def run() -> Iterator[Row]:
    with Stage("bench-route", out=io.StringIO()) as stage:
        broker = stage.serve(durability="fsync")
        driver = Driver(stage, broker.addresses["kafka"], master="local[2]")
        try:
            driver.wait_ready()
            fill(broker, 100_000)
            wait_until(lambda: routed(broker) >= 100_000, "the kernels are warm", START_S)
            yield from throughput(broker)
            yield from latency(broker)
        finally:
            driver.close()


def fill(broker: Child, count: int) -> None:
    """Push lines, and wait until they are durable."""
    with Client(broker.addresses["control"]) as client:
        client.register("append", "bench")
        before = client.get_ack()
        lines = [
            b"%b|0|%d|%b\n" % (key % i if b"%" in key else key, i, PAYLOAD)
            for i, key in ((i, KEYS[i % len(KEYS)]) for i in range(count))
        ]
        host, port = broker.addresses["ingress"].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as ingress:
            ingress.sendall(b"".join(lines))
        wait_until(lambda: client.get_ack() >= before + count, "the lines are durable", START_S)


def throughput(broker: Child) -> Iterator[Row]:
    before = routed(broker)
    started = time.perf_counter()
    fill(broker, RECORDS)
    wait_until(lambda: routed(broker) >= before + RECORDS, "everything is routed", START_S)
    seconds = time.perf_counter() - started
    note = f"{RECORDS:,} records pushed as lines and routed, both durable"
    yield Row("route, ingest included", "cordwood", RECORDS / seconds, "records/s", note)


def latency(broker: Child) -> Iterator[Row]:
    """One record at a time: from before the send until its route has it."""
    took: list[float] = []
    host, port = broker.addresses["ingress"].rsplit(":", 1)
    with (
        Client(broker.addresses["control"]) as client,
        socket.create_connection((host, int(port))) as ingress,
    ):
        for probe in range(PROBES):
            before = client.get_ack("test")
            started = time.perf_counter()
            ingress.sendall(b"test.latency|0|%d|x\n" % probe)
            wait_until(lambda at=before: client.get_ack("test") > at, "the route has it")  # type: ignore[misc]
            took.append(time.perf_counter() - started)
            time.sleep(0.05)
    ordered = sorted(took)
    yield Row("append → route, p50", "cordwood", 1000 * statistics.median(took), "ms")
    yield Row("append → route, p99", "cordwood", 1000 * ordered[int(PROBES * 0.99) - 1], "ms")
