"""Measures the batch codec in records per second on one core, next to aiokafka's compiled classes.

Records have 100 bytes. Lines → batch includes parsing and checksum; batch → Arrow includes checksum
verification. Seconds are CPU seconds of the one working thread. Run ``python -m bench codec``, or
this file alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if __package__ in {None, ""}:  # run as a script: the repository is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from bench.rows import Row
from cordwood.batch.arrow import SPARK_COLUMNS, arrow_batch, wanted_columns
from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns
from cordwood.batch.header import check_batches, parse_header
from cordwood.batch.header_table import walk_batches
from cordwood.batch.lines import LineProducer, encode_lines, encode_lines_plain, load_kernels
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.batch.validation import check_body
from cordwood.model import Codec, Record

LINES = 10_000
RECORDS = 50_000
BATCH_RECORDS = 1_000
SLOW_RECORDS = 5_000
SECONDS = 0.5
NOW_MS = 1_700_000_000_000
NAMES = [name for name in SPARK_COLUMNS if name != "headers"]

Measured = tuple[str, int, Callable[[], object]]


def per_second(count: int, call: Callable[[], object]) -> float:
    """Return the best rate in CPU time of this thread, which other processes do not affect."""
    call()
    best, until = float("inf"), time.thread_time() + SECONDS
    while time.thread_time() < until:
        started = time.thread_time()
        call()
        best = min(best, time.thread_time() - started)
    return count / best


def lines_of(count: int) -> bytes:
    """Return lines of about a hundred bytes."""
    return b"".join(b"test.probe|1700000000000|%d|%s\n" % (n, b"x" * 69) for n in range(count))


def records_of(count: int) -> list[Record]:
    """Return records with a key of 16 bytes and a varying value of 100."""
    return [
        Record(n, NOW_MS + n, b"key-%012d" % n, (b"value %d, and so on; " % n * 5)[:100])
        for n in range(count)
    ]


def batches_of(
    records: list[Record], codec: Codec = Codec.NONE, size: int = BATCH_RECORDS
) -> bytes:
    """Return concatenated batches, as in a segment."""
    return b"".join(
        encode_batch(records[start : start + size], codec=codec)
        for start in range(0, len(records), size)
    )


def aiokafka_lines(chunk: bytes) -> bytes:
    """Encode lines like our encoder, with aiokafka's compiled builder."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for offset, line in enumerate(chunk.split(b"\n")[:-1]):
        key, timestamp, n, payload = line.split(b"|", 3)
        builder.append(offset, NOW_MS, key, payload, [("ts", timestamp), ("n", n)])
    return bytes(builder.build())


def aiokafka_build(records: list[Record]) -> bytes:
    """Run only the builder on existing records."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for record in records:
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, [])
    return bytes(builder.build())


def aiokafka_iterate(batches: list[bytes]) -> None:
    """Iterate over every record."""
    for data in batches:
        for _ in DefaultRecordBatch(data):
            pass


def aiokafka_arrow(batches: list[bytes]) -> pa.RecordBatch:
    """Convert every record to Arrow columns."""
    rows = [
        (r.key, r.value, r.offset, r.timestamp, r.timestamp_type)
        for data in batches
        for r in DefaultRecordBatch(data)
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column) for column in zip(*rows, strict=True)],
        names=["key", "value", "offset", "timestamp", "timestampType"],
    )


def line_rows() -> Iterator[Measured]:
    """Measure ingress lines → batch."""
    chunk, few = lines_of(LINES), lines_of(SLOW_RECORDS)
    producer = LineProducer(1, 0, None)
    yield "ours", LINES, lambda: encode_lines(chunk, NOW_MS)
    yield "ours, numbered producer", LINES, lambda: encode_lines(chunk, NOW_MS, producer=producer)
    yield "ours, plain Python", SLOW_RECORDS, lambda: encode_lines_plain(few, NOW_MS)
    yield "aiokafka builder", SLOW_RECORDS, lambda: aiokafka_lines(few)


def arrow_rows(records: list[Record]) -> Iterator[Measured]:
    """Measure batches → Arrow with Spark's columns, without headers."""
    wanted = wanted_columns(NAMES)

    def arrow(data: bytes, names: list[str], columns: frozenset[str]) -> object:
        return arrow_batch(decode_columns(data, wanted=columns), "topic", 0, names)

    for codec in Codec:
        data = batches_of(records, codec)
        name = "ours" if codec is Codec.NONE else f"ours, {codec.name.lower()}"
        yield name, len(records), lambda data=data: arrow(data, NAMES, wanted)
    data = batches_of(records)
    some, key = ["key", "offset"], frozenset({"key"})
    yield "ours, key and offset", len(records), lambda: arrow(data, some, key)
    alone = batches_of(records, size=1)
    yield "ours, one record a batch", len(records), lambda: arrow(alone, NAMES, wanted)
    theirs = [
        encode_batch(records[start : start + BATCH_RECORDS])
        for start in range(0, SLOW_RECORDS, BATCH_RECORDS)
    ]
    yield "aiokafka, iterated only", SLOW_RECORDS, lambda: aiokafka_iterate(theirs)
    yield "aiokafka → Arrow", SLOW_RECORDS, lambda: aiokafka_arrow(theirs)
    yield "ours, plain Python", SLOW_RECORDS, lambda: [decode_batch(part) for part in theirs]


def encode_rows(records: list[Record]) -> Iterator[Measured]:
    """Measure columns → batches."""
    columns = decode_columns(batches_of(records))
    few = records[:SLOW_RECORDS]
    yield "ours", len(records), lambda: encode_columns(columns)
    yield "aiokafka builder", SLOW_RECORDS, lambda: aiokafka_build(few)
    yield "ours, plain Python", SLOW_RECORDS, lambda: encode_batch(few)


def byte_rows(records: list[Record]) -> Iterator[Row]:
    """Measure checks and walks, whose cost depends on bytes, not records."""
    data = batches_of(records)
    produced = encode_batch(records[:BATCH_RECORDS])
    header = parse_header(produced)
    small = batches_of(records, size=1)
    check, walk = "check a produced batch", "walk a segment"
    for workload, variant, given, call in [
        (check, "header and checksum", produced, lambda: check_batches(produced, 1 << 30)),
        (check, "every record", produced, lambda: check_body(produced, 0, header, 0)),
        (walk, "1,000 records a batch", data, lambda: walk_batches(data)),
        (walk, "one record a batch", small, lambda: walk_batches(small)),
    ]:
        yield Row(workload, variant, per_second(len(given), call) / 1e6, "MB/s")


def warm_seconds() -> float:
    """Return the seconds to import and load all kernels from numba's cache, in a new process."""
    program = (
        "import time; start = time.perf_counter(); from cordwood.batch.kernels import loader; "
        "loader.load_kernels(); print(time.perf_counter() - start)"
    )
    runs = [subprocess.check_output([sys.executable, "-c", program]) for _ in range(3)]
    return min(float(run) for run in runs)


def run() -> list[Row]:
    """Run all measurements."""
    load_kernels()
    records = records_of(RECORDS)
    rows = [
        Row(workload, variant, per_second(count, call), "records/s")
        for workload, measured in [
            ("lines → batch", line_rows()),
            ("batch → Arrow", arrow_rows(records)),
            ("columns → batch", encode_rows(records)),
        ]
        for variant, count, call in measured
    ]
    rows += byte_rows(records)
    rows.append(Row("load the kernels", "cached", warm_seconds(), "s"))
    return rows


if __name__ == "__main__":
    from bench.run import table

    print(table(run()))
