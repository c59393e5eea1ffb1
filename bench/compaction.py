"""Measures compaction on Spark: records per second, CPU and peak memory, from 1 M to 30 M records.

The log is filled through the store, served by its own broker, and compacted by the same job that
``cordwood compact --now`` runs on ``local[2]``. Values have 100 bytes, and there are a million
different keys; ``CORDWOOD_BENCH_COMPACTION`` sets the sizes. Peaks are of resident memory: the
broker, this process (the driver), the Python workers together, and the JVM. A second pass over one
dirty segment shows what the digests of clean segments save.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from bench.rows import Row
from cordwood.batch.column_encoder import encode_columns, plan_batches
from cordwood.batch.columns import Columns, Spans
from cordwood.batch.header import parse_headers
from cordwood.client.http import HttpClient
from cordwood.clock import SystemClock
from cordwood.config import BrokerConfig
from cordwood.decide.roll import RollReason
from cordwood.lab.scenarios.stage import Child
from cordwood.log.files.disk import Files
from cordwood.model import TopicPartition
from cordwood.server.embedded import open_embedded_store

DEFAULT_SIZES = "1000000,10000000,30000000"
SIZES = [int(n) for n in os.environ.get("CORDWOOD_BENCH_COMPACTION", DEFAULT_SIZES).split(",")]
KEYS = 1_000_000
KEY_BYTES, VALUE_BYTES = 16, 100
SEGMENT_RECORDS = 1_000_000
STEP = 100_000
CONFIG = {"cleanup.policy": "compact", "segment.entries": str(SEGMENT_RECORDS)}


def run() -> Iterator[Row]:
    with embedded_spark() as spark:
        rates = {}
        for records in SIZES:
            for row in measure(spark, records):
                rates.setdefault(records, row.value)
                yield row
    if len(rates) > 1:
        small, large = min(rates), max(rates)
        grown = rates[large] / rates[small]
        note = f"{large:,} records beside {small:,}: 1 or more is linear"
        yield Row("compaction, growth", "records/s", grown, "times", note)


@contextmanager
def embedded_spark() -> Iterator[Any]:
    """Start a session and warm up its workers and kernels."""
    from cordwood.spark import session

    spark = session("bench", master="local[2]", conf={"spark.driver.memory": "1g"})
    try:
        measure(spark, STEP)
        yield spark
    finally:
        spark.stop()


def measure(spark: Any, records: int) -> list[Row]:
    """Run two passes over one log of that many records."""
    work = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    try:
        fill(work / "data", records)
        first = compact(spark, work / "data", f"{records:,} records, all dirty")
        fill(work / "data", STEP)
        return [first, compact(spark, work / "data", "then one more segment")]
    finally:
        shutil.rmtree(work)


def compact(spark: Any, data: Path, variant: str) -> Row:
    """Run one pass and return it as a row."""
    from cordwood.pipeline.compact import PassLimits, on_spark, run_due
    from cordwood.pipeline.runtime.session import parallelism

    log_bytes = sum(path.stat().st_size for path in (data / "bench-0").glob("*.log"))
    broker = Child(data, {"durability": "os"})
    try:
        api = HttpClient(broker.addresses["http"], timeout_s=600)
        with Watch(broker) as watch:
            run, tasks = on_spark(spark), parallelism(spark)
            (outcome,) = run_due(api, run, topic="bench", demand=True, limits=PassLimits(tasks))
    finally:
        broker.stop()
    assert not outcome.error, outcome.error
    note = (
        f"{log_bytes >> 20:,} MiB, {outcome.records_after:,} left, {outcome.digests_made} of "
        f"{outcome.segments_before} segments read for keys, {watch.seconds:.1f} s, "
        f"{watch.cpu_seconds:.1f} CPU s; peak MiB {watch.peaks()}"
    )
    rate = outcome.records_before / watch.seconds
    return Row("compaction", variant, rate, "records/s", note)


def fill(data: Path, records: int) -> None:
    """Append that many records to the topic, in segments of a million."""
    store = open_embedded_store(data, BrokerConfig(), SystemClock(), Files())
    if "bench" not in store.topics:
        store.create_topic("bench", 1, CONFIG)
    partition = store.partition(TopicPartition("bench", 0))
    rng = np.random.default_rng(records)
    for _ in range(0, records, STEP):
        append(partition, rng, min(STEP, records))
    store.segments.roll(partition, RollReason.DEMAND)
    store.close()


def append(partition: Any, rng: np.random.Generator, count: int) -> None:
    numbers = rng.integers(0, KEYS, count)
    places = 10 ** np.arange(KEY_BYTES - 1, -1, -1, dtype=np.int64)
    keys = (numbers[:, None] // places % 10 + ord("0")).astype(np.uint8)
    rows = Columns.of(
        np.arange(count, dtype=np.int64),
        np.full(count, int(time.time() * 1000), np.int64),
        keys=fixed(keys.reshape(-1), KEY_BYTES, count),
        values=fixed(rng.integers(97, 123, count * VALUE_BYTES, np.uint8), VALUE_BYTES, count),
    )
    data = encode_columns(rows, plan_batches(rows, batch_bytes=64 * 1024))
    partition.append(data, parse_headers(data))
    partition.sync()
    partition.publish()


def fixed(data: Any, size: int, count: int) -> Spans:
    starts = np.arange(count, dtype=np.int64) * size
    return Spans(data, starts, np.full(count, size, np.int32))


class Watch:
    """Samples this process and its children: peak memory and CPU time."""

    def __init__(self, broker: Child) -> None:
        self.resident = dict.fromkeys(("broker", "driver", "workers", "JVM"), 0)
        self.seconds = self.cpu_seconds = 0.0
        self._broker = broker
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._cpu: dict[int, float] = {}

    def __enter__(self) -> Self:
        self._before = dict(processes())
        self._started = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self._done.set()
        self._thread.join()
        before = {pid: row[2] for pid, row in self._before.items()}
        self.cpu_seconds = sum(cpu - before.get(pid, 0.0) for pid, cpu in self._cpu.items())

    def peaks(self) -> str:
        """Return the largest value of each role."""
        return ", ".join(f"{name} {size >> 20}" for name, size in self.resident.items())

    def _look(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._done.wait(0.1)
            now = dict.fromkeys(self.resident, 0)
            for pid, (name, resident, cpu) in processes():
                self._cpu[pid] = cpu
                now[self._role(pid, name)] += resident
            self.resident = {role: max(self.resident[role], now[role]) for role in now}

    def _role(self, pid: int, name: str) -> str:
        if pid in {os.getpid(), self._broker.pid}:
            return "driver" if pid == os.getpid() else "broker"
        return "JVM" if name == "java" else "workers"


def processes() -> list[tuple[int, tuple[str, int, float]]]:
    """Return this process and all its descendants: name, resident bytes, CPU seconds."""
    rows = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        rows[int(path.parent.name)] = (int(fields[1]), (name, resident, ticks))
    ours = {os.getpid()}
    for pid in sorted(rows):
        if rows[pid][0] in ours:
            ours.add(pid)
    return [(pid, rows[pid][1]) for pid in ours if pid in rows]
