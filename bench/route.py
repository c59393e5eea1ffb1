"""Measures the router: records per second, and the time from an append to its route.

The pipeline runs as users run it, in a process next to the broker; both share the machine. Lines
are created in advance, so broker and router are measured, not the sender.
``CORDWOOD_BENCH_RECORDS`` sets how many records are routed.
"""

from __future__ import annotations

import io
import os
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from cordwood.client import Client
from cordwood.lab.scenarios.pipeline import Driver, routed
from cordwood.lab.scenarios.stage import SPARK_S, Child, ScenarioRun, wait_until

RECORDS = int(os.environ.get("CORDWOOD_BENCH_RECORDS", "2000000"))
WARM = 100_000
PROBES = 100
PAYLOAD = b"x" * 80
KEYS = (b"test.probe", b"jobs.process.%d", b"random.unknown_%d", b"bar.baz_%d")
LOOK_S = 0.02  # between reads of the cursor, because each read costs the broker CPU
TICKS = os.sysconf("SC_CLK_TCK")


def run() -> Iterator[Row]:
    with ScenarioRun("bench-route", out=io.StringIO()) as stage:
        broker = stage.serve(durability="fsync")
        driver = Driver(stage, broker.addresses["kafka"], master="local[2]")
        try:
            driver.wait_ready()
            push(broker, lines(WARM))
            wait_routed(broker, WARM)
            yield from live(broker, driver)
            yield from latency(broker)
            driver.close()
            push(broker, lines(RECORDS))
            driver = Driver(stage, broker.addresses["kafka"], master="local[2]")
            driver.wait_ready()
            yield from backlog(broker, driver)
        finally:
            driver.close()


def lines(count: int) -> bytes:
    """Return lines for four routes."""
    return b"".join(
        b"%b|0|%d|%b\n" % (key % i if b"%" in key else key, i, PAYLOAD)
        for i, key in ((i, KEYS[i % len(KEYS)]) for i in range(count))
    )


def push(broker: Child, data: bytes) -> None:
    """Send lines and wait until they are durable."""
    with Client(broker.addresses["control"]) as client:
        client.register("append", "bench")
        wanted = client.get_ack() + data.count(b"\n")
        host, port = broker.addresses["ingress"].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as ingress:
            ingress.sendall(data)
        wait_until(lambda: client.get_ack() >= wanted, "the lines are durable", SPARK_S)


def wait_routed(broker: Child, count: int) -> None:
    """Wait until the router has processed that many records."""
    deadline = time.monotonic() + SPARK_S
    while routed(broker) < count:
        assert time.monotonic() < deadline, "the router does not come along"
        time.sleep(LOOK_S)


def live(broker: Child, driver: Driver) -> Iterator[Row]:
    """Send lines as fast as the broker accepts them, while they are routed."""
    data = lines(RECORDS)
    wanted, before, began = routed(broker) + RECORDS, cpu_seconds(broker, driver), driver.report()
    started = time.perf_counter()
    push(broker, data)
    ingested_s = time.perf_counter() - started
    wait_routed(broker, wanted)
    seconds = time.perf_counter() - started
    note = f"{RECORDS:,} records pushed as lines in {ingested_s:.1f} s and routed, both durable"
    yield Row("route, ingest included", "cordwood", RECORDS / seconds, "records/s", note)
    yield from costs("ingest included", before, cpu_seconds(broker, driver))
    yield from batches("ingest included", began, driver)


def backlog(broker: Child, driver: Driver) -> Iterator[Row]:
    """Route records that were in the log before the router started; measure from its READY."""
    before, first, wanted = cpu_seconds(broker, driver), routed(broker), appended(broker)
    started = time.perf_counter()
    wait_routed(broker, wanted)
    rate = (wanted - first) / (time.perf_counter() - started)
    note = f"{wanted - first:,} records in the log at READY, new workers"
    yield Row("route, backlog", "cordwood", rate, "records/s", note)
    yield from costs("backlog", before, cpu_seconds(broker, driver))
    yield from batches("backlog", {}, driver)


def appended(broker: Child) -> int:
    """Return the number of appended lines."""
    with Client(broker.addresses["control"]) as client:
        return client.get_ack()


def costs(what: str, before: dict[str, float], after: dict[str, float]) -> Iterator[Row]:
    """Yield CPU seconds per process for a million records."""
    for name, seconds in after.items():
        used = (seconds - before.get(name, 0.0)) / RECORDS * 1_000_000
        yield Row(f"CPU per million, {what}", name, used, "s")


def cpu_seconds(broker: Child, driver: Driver) -> dict[str, float]:
    """Return the CPU time of each process so far, including its ended children."""
    found = {"broker": _cpu(broker.pid), "driver": _cpu(driver.pid)}
    for pid, command in driver.descendants():
        name = "workers" if b"daemon" in command else "planner"
        name = "JVM" if b"java" in command.split(b"\0")[0] else name
        found[name] = found.get(name, 0.0) + _cpu(pid)
    return found


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended in the meantime
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def batches(what: str, before: dict[str, float], driver: Driver) -> Iterator[Row]:
    """Yield the mean duration of a micro-batch's two parts."""
    time.sleep(1.1)  # the driver reports once per second
    after = driver.report()
    count = after["batches"] - before.get("batches", 0)
    for name, part in (("tasks", "tasks_ms"), ("delivery", "delivery_ms")):
        spent = (after[part] - before.get(part, 0)) / count
        yield Row(f"micro-batch, {what}", name, spent, "ms", f"mean of {count}")


def latency(broker: Child) -> Iterator[Row]:
    """Measure one record at a time, from before the send until its route has it."""
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
