"""``archive``: a Spark job that writes a topic's sealed records as bundles and verifies them.

1. Tasks read the batch headers of the due range, and ``decide.archive`` cuts it into bundles. The
   driver and the tasks prove to each other that they see the same storage (``probe``).
2. One task per bundle writes it to ``incoming`` and reads it back: its sha256, the checksum of
   every batch and every offset.
3. The driver reads every bundle there as well, and compares the record counts with the plan. Only
   then does it add the entries to the manifest (one write, read back), move the bundles into place
   and report them to the broker (``reporting``). The broker reads them again before RECLAIM relies
   on them.

A run that dies before it writes the manifest leaves only files in ``incoming``, which the next run
removes. A run that dies later is finished by the next run before that starts its own work.

This module only reads the log, as any consumer does.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cordwood.client.storage import Storage
from cordwood.client.topic_archive import CHECKERS, TopicArchive
from cordwood.config import KEEP_ALL, MIB
from cordwood.decide import archive as plans
from cordwood.errors import CorruptionError
from cordwood.model import SegmentState, TopicPartition
from cordwood.pipeline.archive.bundle_task import BundleTask, WrittenBundle, write_task
from cordwood.pipeline.archive.header_runs import PartitionRun, count_planned, cut_bundles, scanned
from cordwood.pipeline.archive.reporting import BundleReporter, Warn
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.probe import not_shared, shared_place
from cordwood.pipeline.runtime.tasks import Watch, run_tasks
from cordwood.pipeline.runtime.topic_reads import unchanged_topic, whole_log_options
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.plural import plural
from cordwood.protocol.api.archive import ArchivedTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUNDLE_BYTES: Final = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequest:
    """What to archive and how, as the operator asked."""

    topic: str
    through_seq: int | None = None  # archive up to this seq, included
    through_ms: int | None = None  # archive records older than this
    bundle_records: int = KEEP_ALL
    bundle_bytes: int = KEEP_ALL
    default_bytes: int = BUNDLE_BYTES  # limit of a bundle if neither is set
    lines: bool = True  # add the records as readable text beside the batches
    parquet: bool = False


class DueRange(NamedTuple):
    """A partition's offsets to archive, and the cursors to store in its manifest entries."""

    tp: TopicPartition
    span: plans.Span
    cursors: dict[str, int]


def create_archive(
    spark: SparkSession,
    api: BrokerApi,
    storage: Storage,
    request: ArchiveRequest,
    *,
    watch: Watch | None = None,
    warn: Warn | None = None,
) -> list[plans.Entry]:
    """Archive what is due; returns the manifest entries that this run added or finished.

    ``warn`` is called with the reason if the broker could not read the bundles.
    """
    state = api.archive(request.topic)
    topic_id = state.id
    topic_archive = TopicArchive(storage, plans.topic_archive_name(request.topic, topic_id))
    reporter = BundleReporter(api, topic_archive, warn)
    with topic_archive.held():
        entries = topic_archive.entries()
        reporter.check_whole(entries, state)
        topic_archive.sweep(entries)
        finished = reporter.finish_earlier(entries, state)
        if finished:
            state = api.archive(request.topic)
        options = whole_log_options(api, request.topic)
        due = _plan_due(api, options, state, request)
        if not due:
            return finished
        try:
            with unchanged_topic(api, request.topic, topic_id):
                new = _write_bundles(
                    spark, topic_archive, request, options=options, due=due, after=entries,
                    topic_id=topic_id, watch=watch,
                )  # fmt: skip
        except BaseException:
            topic_archive.sweep(entries)
            raise
        topic_archive.write_manifest([*entries, *new])
        reporter.finish(new)
        return [*finished, *new]


def _write_bundles(
    spark: SparkSession,
    topic_archive: TopicArchive,
    request: ArchiveRequest,
    *,
    options: SourceOptions,
    due: Sequence[DueRange],
    after: Sequence[plans.Entry],
    topic_id: str,
    watch: Watch | None,
) -> list[plans.Entry]:
    """Write and verify the bundles in ``incoming``; returns their manifest entries."""
    ranges = [Range(each.tp, *each.span) for each in due]
    with (
        labelled(spark, f"archive {request.topic}"),
        scanned(spark, options, ranges) as stream,
    ):
        spans = _plan_spans(due, stream(), request)
        planned = count_planned(stream(), spans)
    with (
        labelled(spark, f"archive {request.topic}"),
        shared_place(
            spark, topic_archive.storage, topic_archive.home, tasks=len(spans), option="--dest"
        ) as probe,
    ):
        tasks = [
            BundleTask(
                options, topic_archive.storage.place, topic_archive.home, tp, span,
                request.lines, request.parquet, probe, planned[tp, span],
            )
            for tp, span in spans
        ]  # fmt: skip
        label = f"write {plural(len(tasks), 'bundle')}"
        written = run_tasks(spark, write_task, tasks, _in_offsets(tasks, watch), label=label)
    cursors = {each.tp.partition: each.cursors for each in due}
    new = _chain(after, tasks, written, topic_id, cursors)
    check_incoming(topic_archive, new)
    _check_counts(spark, tasks, written)
    return new


def check_incoming(topic_archive: TopicArchive, entries: Sequence[plans.Entry]) -> None:
    """Check on the driver that the storage holds every file its task reported, byte for byte."""
    with ThreadPoolExecutor(CHECKERS) as pool:
        for findings in pool.map(topic_archive.check, entries):
            for finding in findings:
                if finding.problem is plans.Problem.MISSING:
                    what = f"wrote {finding.where}, but the driver does not see it there"
                    raise not_shared(topic_archive.storage.place, "--dest", what)
                raise CorruptionError(
                    f"{finding.where} in {topic_archive.storage.place}: {finding.detail}; the "
                    "manifest is unchanged; run the command again"
                )


def _check_counts(
    spark: SparkSession, tasks: Sequence[BundleTask], written: Sequence[WrittenBundle]
) -> None:
    """Check that each bundle holds the planned records.

    A bundle with fewer passes if compaction has since removed the others from the log.
    """
    for task, (stats, _) in zip(tasks, written, strict=True):
        low, high = task.planned
        if stats.records < low:
            whole = Range(task.tp, *task.span)
            with scanned(spark, task.options, [whole]) as stream:
                low, _ = plans.planned_records((run for _, run in stream()), task.span)
        if not low <= stats.records <= high:
            raise CorruptionError(
                f"a bundle of {task.tp} from seq {task.span.start + 1} holds {stats.records} "
                f"records and the log {low}; the manifest is unchanged; run the command again"
            )


def _in_offsets(tasks: Sequence[BundleTask], watch: Watch | None) -> Watch | None:
    """Scale progress from tasks to offsets, as if all bundles had the same size."""
    offsets = sum(task.span.end - task.span.start for task in tasks)
    return watch and (lambda done, total: watch(offsets * done // total, offsets))


# --- planning -------------------------------------------------------------------------------


def _plan_due(
    api: BrokerApi, options: SourceOptions, state: ArchivedTopic, request: ArchiveRequest
) -> list[DueRange]:
    archived = {part.partition: part for part in state.partitions}
    due = []
    for part in api.topic(request.topic).partitions:
        tp = TopicPartition(request.topic, part.partition)
        sealed = [
            plans.Sealed(segment.base_offset, segment.end_offset)
            for segment in part.segments
            if segment.state == SegmentState.SEALED
        ]
        span = plans.plan_due(
            sealed,
            log_start=part.log_start_offset,
            archived_end=archived[tp.partition].archived_end,
            stable_end=part.last_stable_offset,
            through=_through(options, tp, request),
        )
        if span is not None:
            due.append(DueRange(tp, span, archived[tp.partition].cursors))
    return due


def _through(options: SourceOptions, tp: TopicPartition, request: ArchiveRequest) -> int:
    if request.through_seq is not None:
        return request.through_seq
    if request.through_ms is None:
        return KEEP_ALL
    with open_log(options) as log:
        offset = log.find_time(tp, request.through_ms)
    return KEEP_ALL if offset is None else offset


def _plan_spans(
    due: Sequence[DueRange], runs: Iterable[PartitionRun], request: ArchiveRequest
) -> list[tuple[TopicPartition, plans.Span]]:
    whole = [(each.tp, each.span) for each in due]
    is_limited = request.bundle_records < KEEP_ALL or request.bundle_bytes < KEEP_ALL
    bytes_max = request.bundle_bytes if is_limited else request.default_bytes
    cut = cut_bundles(runs, whole, records_max=request.bundle_records, bytes_max=bytes_max)
    return [(each.tp, span) for each in due for span in cut[each.tp]]


def _chain(
    entries: Sequence[plans.Entry],
    tasks: Sequence[BundleTask],
    written: Sequence[WrittenBundle],
    topic_id: str,
    cursors: dict[int, dict[str, int]],
) -> list[plans.Entry]:
    """Build the new manifest entries, each linked to the one before it."""
    archived = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    chained = list(entries)
    for task, (stats, parquet_sha256) in zip(tasks, written, strict=True):
        previous = chained[-1].link if chained else plans.genesis(task.tp.topic, topic_id)
        entry = plans.Entry(
            number=len(chained) + 1,
            bundle=plans.bundle_name(task.tp.partition, task.span),
            topic=task.tp.topic,
            topic_id=topic_id,
            partition=task.tp.partition,
            first_seq=task.span.start + 1,
            last_seq=task.span.end,
            first_ms=stats.first_ms,
            newest_ms=stats.newest_ms,
            records=stats.records,
            size_bytes=stats.size_bytes,
            sha256=stats.sha256,
            parquet_sha256=parquet_sha256,
            transactional=stats.transactional,
            archived=archived,
            cursors=cursors[task.tp.partition],
            previous=previous,
        )
        chained.append(plans.seal_entry(entry))
    return chained[len(entries) :]
