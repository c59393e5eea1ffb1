"""Measures appends, random reads, recovery and memory of the log at different sizes.

Appends are made like the writer's commits: one append, one sync, one publish. Large logs are built
from prepared batches, so they take seconds. Reads are of one batch at a random offset; their time
must not grow with the log, nor the time to open it with the number of sealed segments.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

if __package__ in {None, ""}:  # run as a script: the repository is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.rows import Row
from cordwood.batch.header import parse_header
from cordwood.batch.records import encode_batch
from cordwood.clock import SystemClock
from cordwood.config import MIB, TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.log.files.disk import Files
from cordwood.log.write.partition import Partition
from cordwood.model import Record, TopicPartition

RECORD_BYTES = 100
BATCH_RECORDS = 160  # about 16 KiB, a Kafka client's default
TP = TopicPartition("bench", 0)


def run() -> Iterator[Row]:
    """Run all measurements."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as name:
        root = Path(name)
        yield from appends(root)
        yield from reads(root)
        yield from recoveries(root)


def a_batch(records: int) -> bytearray:
    """Return an uncompressed batch of records with values of 100 bytes."""
    now_ms = SystemClock().now_ms()
    return bytearray(
        encode_batch([Record(i, now_ms, None, b"x" * RECORD_BYTES) for i in range(records)])
    )


def opened(directory: Path, config: TopicConfig | None = None) -> Partition:
    return Partition.open(
        directory, TP, config or TopicConfig(), files=Files(), clock=SystemClock()
    )


# --- appends ----------------------------------------------------------------------------------


def appends(root: Path) -> Iterator[Row]:
    """Measure commits of 16 KiB and 1 MiB, with and without fsync."""
    for label, batches, total_bytes in (("16 KiB", 1, 48 * MIB), ("1 MiB", 64, 256 * MIB)):
        for durability in ("os", "fsync"):
            partition = opened(root / f"append-{label[:2].strip()}-{durability}")
            seconds, commits, size_bytes = append(partition, batches, total_bytes, durability)
            note = f"{commits / seconds:.0f} commits/s"
            yield Row(
                "append", f"{durability}, commits of {label}", size_bytes / seconds / 1e6, "MB/s",
                note,
            )  # fmt: skip


def append(
    partition: Partition, batches: int, total_bytes: int, durability: str
) -> tuple[float, int, int]:
    data = a_batch(BATCH_RECORDS) * batches
    one = parse_header(data)
    headers = [one] * batches
    if durability == "fsync":
        total_bytes = min(total_bytes, 64 * MIB if batches > 1 else 8 * MIB)
    commits = total_bytes // len(data)
    started = time.perf_counter()
    for _ in range(commits):
        partition.append(data, headers)
        if durability == "fsync":
            partition.sync()
        partition.publish()
    seconds = time.perf_counter() - started
    partition.close()
    return seconds, commits, commits * len(data)


# --- reads ------------------------------------------------------------------------------------


def build(directory: Path, records: int, config: TopicConfig) -> Partition:
    """Build a log of that many records, in commits of 1 MiB."""
    partition = opened(directory, config)
    data = a_batch(BATCH_RECORDS) * 64
    headers = [parse_header(data)] * 64
    while partition.log_end_offset < records:
        partition.append(data, headers)
        partition.publish()
    return partition


def reads(root: Path) -> Iterator[Row]:
    """Measure reads of one batch at a random offset, from the page cache."""
    config = TopicConfig(segment_bytes=64 * MIB, segment_entries=10**9)
    for records in (1_000_000, 20_000_000):
        build(root / f"read-{records}", records, config).close()
        variant = f"{records // 10**6} M records"
        before = rss_mb()
        partition = opened(root / f"read-{records}", config)
        yield Row("first read after opening", variant, timed(partition.read, 0, 1) * 1e6, "µs")
        chance = random.Random(1)
        offsets = [chance.randrange(partition.high_watermark) for _ in range(4000)]
        for offset in offsets:  # load the index of every segment, and fill the page cache
            partition.read(offset, 1)
        took = sorted(timed(partition.read, offset, 1) * 1e6 for offset in offsets)
        note = f"{len(partition.segments())} segments, p99 {took[int(len(took) * 0.99)]:.0f} µs"
        yield Row("read at a random offset", variant, statistics.median(took), "µs p50", note)
        yield Row("RSS of the open log", variant, rss_mb() - before, "MB more than before")
        partition.close()


def timed(act, *args) -> float:
    started = time.perf_counter()
    act(*args)
    return time.perf_counter() - started


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# --- recovery ---------------------------------------------------------------------------------


def recoveries(root: Path) -> Iterator[Row]:
    """Measure opening after a kill, which scans the active segment but not the sealed ones."""
    data = a_batch(BATCH_RECORDS) * 64
    headers = [parse_header(data)] * 64
    for active_mb in (1, 16):
        for sealed in (1, 50):
            directory = root / f"recover-{sealed}-{active_mb}"
            partition = opened(directory)
            for _ in range(sealed):
                partition.append(data, headers)
                partition.publish()
                partition.roll(RollReason.DEMAND)
            for _ in range(active_mb):
                partition.append(data, headers)
            partition.sync()
            partition.publish()
            partition.abandon("killed by the benchmark")
            took = []
            for _ in range(21):
                started = time.perf_counter()
                again = opened(directory)
                took.append(time.perf_counter() - started)
                again.abandon("killed again")
            yield Row(
                f"recovery, {active_mb} MiB active",
                f"{sealed} sealed",
                statistics.median(took) * 1e3,
                "ms",
                f"best {min(took) * 1e3:.2f} ms",
            )


if __name__ == "__main__":
    from bench.run import table

    print(table(list(run())))
