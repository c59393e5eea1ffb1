"""Compaction on Spark: records per second, CPU and peak memory, from 1 M records on.

The log is a real one: filled through the store, served by a broker in this process, compacted by
the very job ``cordwood compact --now`` runs on ``local[2]``. Values have 100 bytes, keys come from
a million; ``CORDWOOD_BENCH_COMPACTION`` names the sizes. Memory is that of the Python workers and
of the JVM, the largest seen at a time. A second pass over one dirty segment shows what the digests
of clean ones save.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from bench.rows import Row
from cordwood.batch.columns import Columns, Spans, encode_columns, plan_batches
from cordwood.batch.header import parse_headers
from cordwood.client.http import HttpClient
from cordwood.clock import SystemClock
from cordwood.config import BrokerConfig
from cordwood.decide.roll import RollReason
from cordwood.log.files import Files
from cordwood.log.store import Store
from cordwood.model import TopicPartition
from cordwood.testing import Broker

SIZES = [int(n) for n in os.environ.get("CORDWOOD_BENCH_COMPACTION", "1000000,10000000").split(",")]
KEYS = 1_000_000
KEY_BYTES, VALUE_BYTES = 16, 100
SEGMENT_RECORDS = 1_000_000
STEP = 100_000
CONFIG = {"cleanup.policy": "compact", "segment.entries": str(SEGMENT_RECORDS)}


def run() -> Iterator[Row]:
    from cordwood.spark import session

    spark = session("bench", master="local[2]", conf={"spark.driver.memory": "1g"})
    try:
        measure(spark, 100_000)  # workers and kernels are warm from here on
        for records in SIZES:
            yield from measure(spark, records)
    finally:
        spark.stop()


def measure(spark: Any, records: int) -> list[Row]:
    from cordwood.pipeline.compact import on_spark, run_due

    work = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    try:
        fill(work / "data", records)
        with Broker(work / "data", durability="os", pipeline="off") as broker:
            api = HttpClient(broker.http, timeout_s=600)
            rows = []
            for variant in ("whole log dirty", "one more segment dirty"):
                with Watch() as watch:
                    (outcome,) = run_due(api, on_spark(spark), topic="bench", demand=True)
                assert not outcome.error, outcome.error
                rate = outcome.records_before / watch.seconds
                note = (
                    f"{records:,} records, {outcome.records_after:,} left, "
                    f"{outcome.digests_made} of {outcome.segments_before} segments read for keys, "
                    f"{watch.seconds:.1f} s, {watch.cpu_seconds:.1f} CPU s, workers "
                    f"{watch.workers_bytes >> 20} MiB, JVM {watch.jvm_bytes >> 20} MiB"
                )
                rows.append(Row("compaction", variant, rate, "records/s", note))
                broker.run(lambda: append_more(broker))
            return rows
    finally:
        shutil.rmtree(work)


async def append_more(broker: Broker) -> None:
    inside = broker.service.broker
    assert inside is not None
    partition = inside.store.partition(TopicPartition("bench", 0))
    rng = np.random.default_rng(7)
    await inside.topics.on_writer(lambda: append(partition, rng, STEP))


def fill(data: Path, records: int) -> None:
    """A topic of so many records in segments of a million."""
    store = Store.open(data, BrokerConfig(), SystemClock(), Files())
    store.create_topic("bench", 1, CONFIG)
    partition = store.partition(TopicPartition("bench", 0))
    rng = np.random.default_rng(records)
    for _ in range(0, records, STEP):
        append(partition, rng, min(STEP, records))
    store.roll(partition, RollReason.DEMAND)
    store.close()


def append(partition: Any, rng: np.random.Generator, count: int) -> None:
    numbers = rng.integers(0, KEYS, count)
    keys = np.char.zfill(numbers.astype(str), KEY_BYTES).astype(f"S{KEY_BYTES}")
    rows = Columns.of(
        np.arange(count, dtype=np.int64),
        np.full(count, int(time.time() * 1000), np.int64),
        keys=fixed(np.frombuffer(keys.tobytes(), np.uint8), KEY_BYTES, count),
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
    """Looks at our children while something runs: their memory together, and their CPU time."""

    def __init__(self) -> None:
        self.workers_bytes = self.jvm_bytes = 0
        self.seconds = self.cpu_seconds = 0.0
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

    def _look(self) -> None:
        while not self._done.wait(0.1):
            jvm = workers = 0
            for pid, (name, resident, cpu) in processes():
                self._cpu[pid] = cpu
                if name == "java":
                    jvm += resident
                elif pid != os.getpid():
                    workers += resident
            self.jvm_bytes = max(self.jvm_bytes, jvm)
            self.workers_bytes = max(self.workers_bytes, workers)


def processes() -> list[tuple[int, tuple[str, int, float]]]:
    """This process and all below it: name, resident bytes, CPU seconds."""
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
