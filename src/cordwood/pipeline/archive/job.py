"""``archive``: a Spark job that writes a topic's sealed records as bundles and verifies them.

1. Tasks read the batch headers of the due range, and ``decide.archive`` cuts it into bundles. The
   driver and the tasks prove to each other that they see the same storage (``probe``).
2. One task per bundle writes it to ``incoming`` and reads it back: its sha256, the checksum of
   every batch and every offset.
3. The driver reads every bundle there as well, and compares the record counts with the plan. Only
   then does it add the entries to the manifest (one write, read back), move the bundles into place
   and report them to the broker. The broker reads them again before RECLAIM relies on them.

A run that dies before it writes the manifest leaves only files in ``incoming``, which the next run
removes. A run that dies later is finished by the next run before that starts its own work.

This module only reads the log, as any consumer does.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.client.http import ANSWER_S
from cordwood.client.storage import Storage
from cordwood.config import KEEP_ALL, MIB
from cordwood.decide.archive import (
    Entry,
    Problem,
    Sealed,
    Span,
    bundle_name,
    check_known,
    genesis,
    plan_due,
    planned_records,
    seal_entry,
    topic_archive_name,
)
from cordwood.errors import CordwoodError, CorruptionError, StaleManifest
from cordwood.model import SegmentState, TopicPartition
from cordwood.pipeline.archive.bundle_task import BundleTask, WrittenBundle, write_task
from cordwood.pipeline.archive.header_runs import FoundRun, count_planned, cut_bundles, looked
from cordwood.pipeline.archive.topic_archive import CHECKERS, TopicArchive
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.probe import not_shared, shared_place
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.tasks import Watch, run_tasks
from cordwood.pipeline.source.identity import data_id_at
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUNDLE_BYTES: Final = 256 * MIB
READ_BYTES_S: Final = 4 * MIB  # slowest rate at which the broker may read a bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequest:
    """What to archive and how, as the operator asked."""

    topic: str
    through_seq: int | None = None  # archive up to this seq, included
    through_ms: int | None = None  # archive records older than this
    bundle_records: int = KEEP_ALL
    bundle_bytes: int = KEEP_ALL
    lines: bool = True  # add the records as readable text beside the batches
    parquet: bool = False


class DueRange(NamedTuple):
    """A partition's offsets to archive, and the cursors to store in its manifest entries."""

    tp: TopicPartition
    span: Span
    cursors: dict[str, int]


def create_archive(
    spark: SparkSession,
    api: BrokerApi,
    where: BrokerAddress,
    storage: Storage,
    request: ArchiveRequest,
    *,
    watch: Watch | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Entry]:
    """Archive what is due; returns the manifest entries that this run added or finished.

    ``warn`` is called with the reason if the broker could not read the bundles.
    """
    state = api.archive(request.topic)
    topic_id = str(state["id"])
    topic_archive = TopicArchive(storage, topic_archive_name(request.topic, topic_id))
    with topic_archive.held():
        entries = topic_archive.entries()
        _check_whole(topic_archive, entries, state)
        topic_archive.sweep(entries)
        finished = settle(api, topic_archive, entries, state, warn)
        if finished:
            state = api.archive(request.topic)
        options = source_options(api, where, request.topic)
        due = _plan_due(api, options, state, request)
        if not due:
            return finished
        try:
            new = _write_bundles(
                spark, topic_archive, request, options=options, due=due, after=entries,
                topic_id=topic_id, watch=watch,
            )  # fmt: skip
            _check_topic(api, request.topic, topic_id)
        except BaseException as error:
            topic_archive.sweep(entries)
            if isinstance(error, CordwoodError):
                _check_topic(api, request.topic, topic_id)  # a deleted topic explains the error
            raise
        topic_archive.write_manifest([*entries, *new])
        _finish(api, topic_archive, new, warn)
        return [*finished, *new]


def _write_bundles(
    spark: SparkSession,
    topic_archive: TopicArchive,
    request: ArchiveRequest,
    *,
    options: SourceOptions,
    due: Sequence[DueRange],
    after: Sequence[Entry],
    topic_id: str,
    watch: Watch | None,
) -> list[Entry]:
    """Write and verify the bundles in ``incoming``; returns their manifest entries."""
    ranges = [Range(each.tp, *each.span) for each in due]
    with (
        labelled(spark, f"archive {request.topic}"),
        looked(spark, options, ranges) as stream,
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
        label = f"write {len(tasks)} bundles"
        written = run_tasks(spark, write_task, tasks, _in_offsets(tasks, watch), label=label)
    cursors = {each.tp.partition: each.cursors for each in due}
    new = _chain(after, tasks, written, topic_id, cursors)
    check_incoming(topic_archive, new)
    _check_counts(spark, tasks, written)
    return new


def check_incoming(topic_archive: TopicArchive, entries: Sequence[Entry]) -> None:
    """Check on the driver that the storage holds every file its task reported, byte for byte."""
    with ThreadPoolExecutor(CHECKERS) as pool:
        for findings in pool.map(topic_archive.check, entries):
            for finding in findings:
                if finding.problem is Problem.MISSING:
                    what = f"wrote {finding.where}, which the driver does not see there"
                    raise not_shared(topic_archive.storage.place, "--dest", what)
                raise CorruptionError(
                    f"{finding.where} in {topic_archive.storage.place}: {finding.detail}; nothing "
                    "was entered, run this again"
                )


def _check_counts(
    spark: SparkSession, tasks: Sequence[BundleTask], written: Sequence[WrittenBundle]
) -> None:
    """Check that each bundle holds the planned records.

    A bundle with fewer passes if compaction has since removed the others from the log.
    """
    for task, (facts, _) in zip(tasks, written, strict=True):
        low, high = task.planned
        if facts.records < low:
            whole = Range(task.tp, *task.span)
            with looked(spark, task.options, [whole]) as stream:
                low, _ = planned_records((run for _, run in stream()), task.span)
        if not low <= facts.records <= high:
            raise CorruptionError(
                f"a bundle of {task.tp} from seq {task.span.start + 1} holds {facts.records} "
                f"records and the log {low}; nothing was entered, run this again"
            )


def _check_topic(api: BrokerApi, topic: str, topic_id: str) -> None:
    """Check that the topic is still the same one, because tasks read it by name."""
    if api.archive(topic)["id"] != topic_id:
        raise StaleManifest(
            f"topic {topic} was deleted and created again while it was archived; nothing was "
            "entered, run this again"
        )


def _in_offsets(tasks: Sequence[BundleTask], watch: Watch | None) -> Watch | None:
    """Scale progress from tasks to offsets, as if all bundles had the same size."""
    offsets = sum(task.span.end - task.span.start for task in tasks)
    return watch and (lambda done, total: watch(offsets * done // total, offsets))


def source_options(api: BrokerApi, where: BrokerAddress, topic: str) -> SourceOptions:
    """Return options that read segment files if they are reachable from here, else use Kafka."""
    staging = StagingTarget.of(api, where)
    said = {"subscribe": topic}
    if where.servers:
        said["kafka.bootstrap.servers"] = where.servers
    if staging.is_reachable():
        said["path"] = staging.data
    return replace(parse_options(said, streaming=False), data_id=data_id_at(said.get("path")))


# --- finishing an earlier run ---------------------------------------------------------------


def settle(
    api: BrokerApi,
    topic_archive: TopicArchive,
    entries: Sequence[Entry],
    state: dict[str, Any],
    warn: Callable[[str], None] | None = None,
) -> list[Entry]:
    """Finish an earlier run: check and place the bundles the broker does not know, and report them.

    Returns the entries of those bundles.
    """
    ends = {part["partition"]: part["archived_end"] for part in state["partitions"]}
    left = [entry for entry in entries if entry.span.start >= ends.get(entry.partition, 0)]
    for entry in left:
        if findings := topic_archive.check(entry):
            first = findings[0]
            raise CorruptionError(
                f"an earlier run entered {first.where} in the manifest of {topic_archive.home}, "
                f"and {first.detail}; restore the bundle from a copy"
            )
    _tell_unverified(api, topic_archive, entries, state, warn)
    _finish(api, topic_archive, left, warn)
    return left


def _tell_unverified(
    api: BrokerApi,
    topic_archive: TopicArchive,
    entries: Sequence[Entry],
    state: dict[str, Any],
    warn: Callable[[str], None] | None,
) -> None:
    """Report again the bundles that the broker could not read before: it may be able to now."""
    unverified = {
        bundle["name"]
        for part in state["partitions"]
        for bundle in part["bundles"]
        if bundle["place"] == topic_archive.storage.place and not bundle["verified"]
    }
    for entry in entries:
        is_asked = f"{topic_archive.home}/{entry.bundle}" in unverified
        if is_asked and (reason := _tell(api, topic_archive, entry)):
            _warn(reason, warn)
            return  # it cannot read the others either


def _check_whole(
    topic_archive: TopicArchive, entries: Sequence[Entry], state: dict[str, Any]
) -> None:
    """Check that the manifest holds every bundle the broker knows, or the chain would fork."""
    if findings := check_known(entries, known_links(state, topic_archive.storage.place)):
        first = findings[0]
        raise CorruptionError(
            f"{first.where}: {first.detail} ({topic_archive.home} in "
            f"{topic_archive.storage.place}); "
            "restore the manifest from a copy, or archive to another place with --dest"
        )


def known_links(state: dict[str, Any], place: str) -> dict[str, str]:
    """Return bundle → link of the bundles the broker knows at this place."""
    return {
        bundle["name"].partition("/")[2]: bundle["link"]
        for part in state["partitions"]
        for bundle in part["bundles"]
        if bundle["place"] == place
    }


def _finish(
    api: BrokerApi,
    topic_archive: TopicArchive,
    entries: Sequence[Entry],
    warn: Callable[[str], None] | None,
) -> None:
    """Move the bundles into place, then report them to the broker, which reads each one."""
    for entry in entries:
        topic_archive.place(entry)
    reasons = [reason for entry in entries if (reason := _tell(api, topic_archive, entry))]
    if reasons:
        _warn(reasons[0], warn)


def _tell(api: BrokerApi, topic_archive: TopicArchive, entry: Entry) -> str | None:
    """Ask the broker to read and record a bundle; returns the reason if it could not read it."""
    told = {
        "start_offset": entry.span.start,
        "end_offset": entry.span.end,
        "name": f"{topic_archive.home}/{entry.bundle}",
        "sha256": entry.sha256,
        "link": entry.link,
        "place": topic_archive.storage.place,
    }
    answer_s = ANSWER_S + entry.size_bytes / READ_BYTES_S
    return api.record_bundle(entry.topic, entry.partition, told, answer_s=answer_s)


def _warn(reason: str, warn: Callable[[str], None] | None) -> None:
    if warn is not None:
        warn(
            f"{reason}; with archive.required it keeps these records until it can: run this "
            "again then, or believe the job with archive.verified.by=job on the topic"
        )


# --- planning -------------------------------------------------------------------------------


def _plan_due(
    api: BrokerApi, options: SourceOptions, state: dict[str, Any], request: ArchiveRequest
) -> list[DueRange]:
    archived = {part["partition"]: part for part in state["partitions"]}
    due = []
    for part in api.topic(request.topic)["partitions"]:
        tp = TopicPartition(request.topic, part["partition"])
        sealed = [
            Sealed(segment["base_offset"], segment["end_offset"])
            for segment in part["segments"]
            if segment["state"] == SegmentState.SEALED
        ]
        span = plan_due(
            sealed,
            log_start=part["log_start_offset"],
            archived_end=archived[tp.partition]["archived_end"],
            stable_end=part["last_stable_offset"],
            through=_through(options, tp, request),
        )
        if span is not None:
            due.append(DueRange(tp, span, archived[tp.partition]["cursors"]))
    return due


def _through(options: SourceOptions, tp: TopicPartition, request: ArchiveRequest) -> int:
    if request.through_seq is not None:
        return request.through_seq
    if request.through_ms is None:
        return KEEP_ALL
    with open_log(options) as log:
        found = log.find_time(tp, request.through_ms)
    return KEEP_ALL if found is None else found


def _plan_spans(
    due: Sequence[DueRange], runs: Iterable[FoundRun], request: ArchiveRequest
) -> list[tuple[TopicPartition, Span]]:
    bytes_max = request.bundle_bytes
    if request.bundle_records == request.bundle_bytes == KEEP_ALL:
        bytes_max = BUNDLE_BYTES
    whole = [(each.tp, each.span) for each in due]
    cut = cut_bundles(runs, whole, records_max=request.bundle_records, bytes_max=bytes_max)
    return [(each.tp, span) for each in due for span in cut[each.tp]]


def _chain(
    entries: Sequence[Entry],
    tasks: Sequence[BundleTask],
    written: Sequence[WrittenBundle],
    topic_id: str,
    cursors: dict[int, dict[str, int]],
) -> list[Entry]:
    """Build the new manifest entries, each linked to the one before it."""
    archived = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    chained = list(entries)
    for task, (facts, parquet_sha256) in zip(tasks, written, strict=True):
        previous = chained[-1].link if chained else genesis(task.tp.topic, topic_id)
        entry = Entry(
            number=len(chained) + 1,
            bundle=bundle_name(task.tp.partition, task.span),
            topic=task.tp.topic,
            topic_id=topic_id,
            partition=task.tp.partition,
            first_seq=task.span.start + 1,
            last_seq=task.span.end,
            first_ms=facts.first_ms,
            newest_ms=facts.newest_ms,
            records=facts.records,
            size_bytes=facts.size_bytes,
            sha256=facts.sha256,
            parquet_sha256=parquet_sha256,
            transactional=facts.transactional,
            archived=archived,
            cursors=cursors[task.tp.partition],
            previous=previous,
        )
        chained.append(seal_entry(entry))
    return chained[len(entries) :]
