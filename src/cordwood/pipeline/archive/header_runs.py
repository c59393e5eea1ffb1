"""Batch headers of the ranges to archive, from which the driver plans and cuts bundles.

Executors read the headers of all ranges in parallel and keep the result on their disks. The driver
streams one range after another, so its memory does not grow with the number of batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.batch.header import parse_headers
from cordwood.decide.archive import BatchSpan, Span, plan_bundles, planned_records
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.failure_reasons import patiently, plain_errors
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism
from cordwood.pipeline.runtime.tasks import spread
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.pipeline.source.splits import plan_splits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PartitionRun = tuple[TopicPartition, BatchSpan]
PAGE_RUNS: Final = 4096  # batches in one row
_PAGES: Final = "task bigint, page binary"


class HeaderTask(NamedTuple):
    """A range whose batch headers one task reads; ``number`` is the task's index."""

    number: int
    options: SourceOptions
    whole: Range


def cut_bundles(
    runs: Iterable[PartitionRun],
    due: Sequence[tuple[TopicPartition, Span]],
    *,
    records_max: int,
    bytes_max: int,
) -> dict[TopicPartition, list[Span]]:
    """Cut each partition's due range into bundles; ``runs`` come in the order of ``due``."""
    limits = {"records_max": records_max, "bytes_max": bytes_max}
    spans = {tp: plan_bundles((), span, **limits) for tp, span in due}
    whole = dict(due)
    for tp, batches in itertools.groupby(runs, key=lambda each: each[0]):
        spans[tp] = plan_bundles((run for _, run in batches), whole[tp], **limits)
    return spans


def count_planned(
    runs: Iterable[PartitionRun], spans: Sequence[tuple[TopicPartition, Span]]
) -> dict[tuple[TopicPartition, Span], tuple[int, int]]:
    """Compute ``planned_records`` of every span in one pass; ``runs`` are in the spans' order."""
    counts = dict.fromkeys(spans, (0, 0))
    for tp, batches in itertools.groupby(runs, key=lambda each: each[0]):
        mine, at = [span for owner, span in spans if owner == tp], 0
        for _, run in batches:
            while at < len(mine) and mine[at].end <= run.base_offset:
                at += 1
            reached = at
            while reached < len(mine) and mine[reached].start < run.end_offset:
                low, high = counts[tp, mine[reached]]
                more = planned_records((run,), mine[reached])
                counts[tp, mine[reached]] = low + more[0], high + more[1]
                reached += 1
    return counts


@contextmanager
def scanned(
    spark: SparkSession, options: SourceOptions, ranges: Sequence[Range]
) -> Iterator[Callable[[], Iterator[PartitionRun]]]:
    """Read the batch headers of the ranges on all executors in parallel.

    Yields a function; each call streams the batches in the order of the ranges, without repeats.
    """
    from pyspark import StorageLevel

    with open_log(options) as log:
        cores = parallelism(spark)
        parts = [part for whole in ranges for part in plan_splits([whole], log.pieces, cores=cores)]
    tasks = [HeaderTask(number, options, part) for number, part in enumerate(parts)]
    pages = spread(spark, scan_task, tasks, _PAGES).persist(StorageLevel.DISK_ONLY)

    def stream() -> Iterator[PartitionRun]:
        with plain_errors():
            for row in pages.toLocalIterator():
                tp = tasks[row["task"]].whole.tp
                yield from ((tp, run) for run in _unpack(row["page"]))

    with labelled(spark, "read batch headers"):
        with plain_errors():
            patiently(pages.count)  # later reads come from the executors' disks
        yield lambda: without_repeats(stream())
    pages.unpersist()


def without_repeats(runs: Iterable[PartitionRun]) -> Iterator[PartitionRun]:
    """Drop repeats: a batch across the edge of two ranges is found in both."""
    last: tuple[TopicPartition | None, int] = None, -1
    for tp, run in runs:
        if tp != last[0] or run.base_offset > last[1]:
            last = tp, run.base_offset
            yield tp, run


def scan_task(task: HeaderTask) -> Iterator[Any]:
    """Runs on an executor: yield the batches of a range, one page at a time."""
    import pyarrow as pa

    runs = read_runs(task.options, task.whole)
    while page := list(itertools.islice(runs, PAGE_RUNS)):
        yield pa.RecordBatch.from_pydict({"task": [task.number], "page": [_pack(page)]})


def read_runs(options: SourceOptions, whole: Range) -> Iterator[BatchSpan]:
    """Yield the batches that overlap the range, read from their headers."""
    with open_log(options) as log:
        for chunk in log.chunks(whole, None):
            for header in parse_headers(chunk.data):
                records = 0 if header.is_control else header.count
                run = BatchSpan(header.base_offset, header.end_offset, records, header.size_bytes)
                if run.end_offset > whole.start and run.base_offset < whole.end:
                    yield run


def _pack(runs: Sequence[BatchSpan]) -> bytes:
    import numpy as np

    return np.array(runs, dtype="<i8").tobytes()


def _unpack(page: bytes) -> Iterator[BatchSpan]:
    import numpy as np

    rows = np.frombuffer(page, dtype="<i8").reshape(-1, len(BatchSpan._fields))
    return (BatchSpan(*row) for row in rows.tolist())
