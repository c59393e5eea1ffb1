"""Measures rows per second of a Spark scan: our source and Parquet with the same rows.

Every row goes through Spark to the ``noop`` sink, so that the optimizer cannot skip any. Records
have a key of 16 bytes and a value of 100; ``CORDWOOD_BENCH_RECORDS`` sets how many. The third row,
``any Python source``, is the bound: prepared batches that need no decoding (``spark_floor``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import spark_floor
from bench.rows import Row
from cordwood.batch.column_encoder import encode_columns, plan_batches
from cordwood.batch.columns import Columns, Spans
from cordwood.batch.header import parse_header
from cordwood.batch.header_table import HeaderTable, walk_batches
from cordwood.log.files.disk import Files
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.layout import FORMAT, FileKind, encode_format, file_path
from cordwood.log.read.published_offsets import Published, PublishedOffsets

RECORDS = int(os.environ.get("CORDWOOD_BENCH_RECORDS", "2000000"))
SEGMENTS = 10
REPEATS = 5  # the first ones include Java's JIT compilation
KEY_BYTES, VALUE_BYTES = 16, 100
START_MS = 1_700_000_000_000


def run() -> Iterator[Row]:
    from cordwood.spark import session

    work = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    spark = session("bench", master="local[2]", conf={"spark.driver.memory": "2g"})
    try:
        data = write_topic(work / "data")
        parquet = str(work / "rows.parquet")
        ours(spark, data).write.parquet(parquet)
        yield from compare(spark, data, parquet, work)
    finally:
        spark.stop()
        shutil.rmtree(work)


def compare(spark: Any, data: str, parquet: str, work: Path) -> Iterator[Row]:
    narrow = ["key", "offset"]
    cases: dict[str, dict[str, Callable[[], Any]]] = {
        "spark scan, full rows": {
            "cordwood": lambda: ours(spark, data),
            "parquet": lambda: spark.read.parquet(parquet),
            "any Python source": spark_floor.prepare(spark, data, [], work / "full"),
        },
        "spark scan, key + offset": {
            "cordwood": lambda: ours(spark, data, narrow),
            "parquet": lambda: spark.read.parquet(parquet).select(*narrow),
            "any Python source": spark_floor.prepare(spark, data, narrow, work / "narrow"),
        },
    }
    for workload, variants in cases.items():
        for variant, seconds in alternate(variants).items():
            note = f"{RECORDS:,} records, {SEGMENTS} segments, local[2], best of {REPEATS}"
            yield Row(workload, variant, RECORDS / seconds, "rows/s", note)
    seconds = [look_up(spark, data, RECORDS // 2 + 7 * n) for n in range(1, REPEATS + 1)]
    lookup = "spark point lookup by offset"
    yield Row(lookup, "cordwood", min(seconds), "s", f"best of {REPEATS}, warm")
    yield Row(lookup, "cordwood, first", seconds[0], "s", "Spark starts workers that push filters")


def look_up(spark: Any, data: str, offset: int) -> float:
    """Return the seconds to find one record by its offset."""
    started = time.perf_counter()
    frame = ours(spark, data, filterPushdown="true")
    assert len(frame.filter(f"offset = {offset}").collect()) == 1
    return time.perf_counter() - started


def alternate(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the best seconds of each; they take turns, so that other load affects all."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(REPEATS):
        for variant, frame in variants.items():
            started = time.perf_counter()
            frame().write.format("noop").mode("overwrite").save()
            best[variant] = min(best[variant], time.perf_counter() - started)
    return best


def ours(spark: Any, data: str, columns: list[str] | None = None, **options: str) -> Any:
    from cordwood.spark import topic

    return topic(spark, "bench", path=data, columns=columns or (), **options)


def write_topic(data: Path) -> str:
    """Write the topic's files as a broker does, and return the data directory."""
    directory = data / "bench-0"
    directory.mkdir(parents=True)
    (data / FORMAT).write_bytes(encode_format())
    bounds = np.linspace(0, RECORDS, SEGMENTS + 1, dtype=np.int64)
    for base, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        write_segment(directory, base, end)
    active = int(bounds[-2])
    size_bytes = file_path(directory, active, FileKind.LOG).stat().st_size
    marks = PublishedOffsets(directory, Files())
    marks.publish(Published(0, RECORDS, RECORDS, active, size_bytes))
    marks.close()
    return str(data)


def write_segment(directory: Path, base: int, end: int) -> None:
    rng = np.random.default_rng(base)
    rows = make_rows(rng, base, end)
    log = encode_columns(rows, plan_batches(rows, batch_bytes=64 * 1024))
    file_path(directory, base, FileKind.LOG).write_bytes(log)
    index = MemoryIndex(base, interval_bytes=4096)
    for position in walk_batches(log).batches.positions.tolist():
        index.add(parse_header(log, position), position)
    index.seal()
    file_path(directory, base, FileKind.INDEX).write_bytes(index.encode_offsets())
    file_path(directory, base, FileKind.TIMEINDEX).write_bytes(index.encode_times())


def make_rows(rng: np.random.Generator, base: int, end: int) -> Columns:
    """Generate repeated keys and values of letters, neither constant nor incompressible."""
    count = end - base
    alphabet = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
    numbers = rng.integers(0, max(1, RECORDS // 10), count)
    keys = np.char.zfill(numbers.astype(str), KEY_BYTES).astype(f"S{KEY_BYTES}")
    return Columns(
        batches=HeaderTable.blank(0),
        batch_rows=np.zeros(0, np.int32),
        offsets=np.arange(base, end, dtype=np.int64),
        timestamps_ms=START_MS + np.arange(base, end, dtype=np.int64) // 100,
        keys=fixed(np.frombuffer(keys.tobytes(), np.uint8), KEY_BYTES, count),
        values=fixed(alphabet[rng.integers(0, 32, count * VALUE_BYTES)], VALUE_BYTES, count),
    )


def fixed(data: Any, size: int, count: int) -> Spans:
    """Return a column of byte strings of equal length."""
    starts = np.arange(count, dtype=np.int64) * size
    return Spans(data, starts, np.full(count, size, np.int32))
