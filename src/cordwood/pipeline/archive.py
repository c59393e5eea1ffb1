"""``archive``: Spark writes a topic's sealed offsets as bundles, reads them back, and says so.

1. Driver and tasks prove to each other that they see the same place (``probe``). Tasks look at the
   batch headers of what is due, and ``decide.archive`` cuts it into bundles.
2. A task per bundle writes it to ``incoming`` and reads it back: its sum, every batch's checksum,
   every offset.
3. The driver reads every bundle there itself, and compares its records with those planned. Only
   then it adds the entries to the manifest (one write, read back), moves the bundles into place,
   and tells the broker, which reads them again before RECLAIM may count on them.

A run that dies before the manifest has left nothing but files in ``incoming``, which the next one
removes; one that dies later is finished by the next run before it begins its own work.

Nothing here touches the log: it is read like any consumer reads it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.client.http import ANSWER_S
from cordwood.client.storage import Depot
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
    shelf_name,
)
from cordwood.errors import CordwoodError, CorruptionError, StaleManifest
from cordwood.model import SegmentState, TopicPartition
from cordwood.pipeline.broker import BrokerApi, Where
from cordwood.pipeline.bundle_task import BundleTask, Written, write_task
from cordwood.pipeline.header_runs import FoundRun, count_planned, cut_bundles, looked
from cordwood.pipeline.identity import data_id_at
from cordwood.pipeline.labels import labelled
from cordwood.pipeline.logs import open_log
from cordwood.pipeline.offsets import Range
from cordwood.pipeline.options import SourceOptions, parse_options
from cordwood.pipeline.probe import not_shared, shared_place
from cordwood.pipeline.shelf import CHECKERS, Shelf
from cordwood.pipeline.staging import Yard
from cordwood.pipeline.tasks import Watch, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUNDLE_BYTES: Final = 256 * MIB
READ_BYTES_S: Final = 4 * MIB  # how slowly the broker may read a bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an operator asks to be archived."""

    topic: str
    through_seq: int | None = None  # archive up to this seq, included
    through_ms: int | None = None  # archive records older than this
    bundle_records: int = KEEP_ALL
    bundle_bytes: int = KEEP_ALL
    lines: bool = True  # put the human view beside the batches
    parquet: bool = False


class Due(NamedTuple):
    """A partition's offsets to archive, and what else its entries must say."""

    tp: TopicPartition
    span: Span
    cursors: dict[str, int]


def create_archive(
    spark: SparkSession,
    api: BrokerApi,
    where: Where,
    depot: Depot,
    request: Request,
    *,
    watch: Watch | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Entry]:
    """Archive what is due; the manifest entries this run added or finished.

    ``warn`` is told when the broker could not read the bundles, and why.
    """
    state = api.archive(request.topic)
    topic_id = str(state["id"])
    shelf = Shelf(depot, shelf_name(request.topic, topic_id))
    with shelf.held():
        entries = shelf.entries()
        _check_whole(shelf, entries, state)
        shelf.sweep(entries)
        finished = settle(api, shelf, entries, state, warn)
        if finished:
            state = api.archive(request.topic)
        options = source_options(api, where, request.topic)
        due = _plan_due(api, options, state, request)
        if not due:
            return finished
        try:
            new = _write_bundles(
                spark, shelf, request, options=options, due=due, after=entries,
                topic_id=topic_id, watch=watch,
            )  # fmt: skip
            _check_topic(api, request.topic, topic_id)
        except BaseException as error:
            shelf.sweep(entries)
            if isinstance(error, CordwoodError):
                _check_topic(api, request.topic, topic_id)  # one that went explains the rest
            raise
        shelf.write_manifest([*entries, *new])
        _finish(api, shelf, new, warn)
        return [*finished, *new]


def _write_bundles(
    spark: SparkSession,
    shelf: Shelf,
    request: Request,
    *,
    options: SourceOptions,
    due: Sequence[Due],
    after: Sequence[Entry],
    topic_id: str,
    watch: Watch | None,
) -> list[Entry]:
    """Bundles in ``incoming`` that tasks and driver have read, and their entries."""
    ranges = [Range(each.tp, *each.span) for each in due]
    with (
        labelled(spark, f"archive {request.topic}"),
        looked(spark, options, ranges) as stream,
    ):
        spans = _plan_spans(due, stream(), request)
        planned = count_planned(stream(), spans)
    with (
        labelled(spark, f"archive {request.topic}"),
        shared_place(spark, shelf.depot, shelf.home, tasks=len(spans), option="--dest") as probe,
    ):
        tasks = [
            BundleTask(
                options, shelf.depot.place, shelf.home, tp, span, request.lines, request.parquet,
                probe, planned[tp, span],
            )
            for tp, span in spans
        ]  # fmt: skip
        label = f"write {len(tasks)} bundles"
        written = run_tasks(spark, write_task, tasks, _in_offsets(tasks, watch), label=label)
    cursors = {each.tp.partition: each.cursors for each in due}
    new = _chain(after, tasks, written, topic_id, cursors)
    check_incoming(shelf, new)
    _check_counts(spark, tasks, written)
    return new


def check_incoming(shelf: Shelf, entries: Sequence[Entry]) -> None:
    """What tasks say they wrote must lie at the place as the driver sees it, byte for byte."""
    with ThreadPoolExecutor(CHECKERS) as pool:
        for findings in pool.map(shelf.check, entries):
            for finding in findings:
                if finding.problem is Problem.MISSING:
                    what = f"wrote {finding.where}, which the driver does not see there"
                    raise not_shared(shelf.depot.place, "--dest", what)
                raise CorruptionError(
                    f"{finding.where} in {shelf.depot.place}: {finding.detail}; nothing was "
                    "entered, run this again"
                )


def _check_counts(
    spark: SparkSession, tasks: Sequence[BundleTask], written: Sequence[Written]
) -> None:
    """Each bundle holds what was planned; or what is left of it, where the log was compacted."""
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
    """Tasks read by name: what they read is this topic's only if it still is this topic."""
    if api.archive(topic)["id"] != topic_id:
        raise StaleManifest(
            f"topic {topic} was deleted and created again while it was archived; nothing was "
            "entered, run this again"
        )


def _in_offsets(tasks: Sequence[BundleTask], watch: Watch | None) -> Watch | None:
    """The same, told in offsets: bundles are cut to be of a size."""
    offsets = sum(task.span.end - task.span.start for task in tasks)
    return watch and (lambda done, total: watch(offsets * done // total, offsets))


def source_options(api: BrokerApi, where: Where, topic: str) -> SourceOptions:
    """Read segment files where they can be reached from here, else over the wire."""
    yard = Yard.of(api, where)
    said = {"subscribe": topic}
    if where.servers:
        said["kafka.bootstrap.servers"] = where.servers
    if yard.is_reachable():
        said["path"] = yard.data
    return replace(parse_options(said, streaming=False), data_id=data_id_at(said.get("path")))


# --- what a crash left ----------------------------------------------------------------------


def settle(
    api: BrokerApi,
    shelf: Shelf,
    entries: Sequence[Entry],
    state: dict[str, Any],
    warn: Callable[[str], None] | None = None,
) -> list[Entry]:
    """Finish an earlier run: entries the broker has not been told of are checked, placed, told."""
    ends = {part["partition"]: part["archived_end"] for part in state["partitions"]}
    left = [entry for entry in entries if entry.span.start >= ends.get(entry.partition, 0)]
    for entry in left:
        if findings := shelf.check(entry):
            first = findings[0]
            raise CorruptionError(
                f"an earlier run entered {first.where} in the manifest of {shelf.home}, and "
                f"{first.detail}; restore the bundle from a copy"
            )
    _tell_unverified(api, shelf, entries, state, warn)
    _finish(api, shelf, left, warn)
    return left


def _tell_unverified(
    api: BrokerApi,
    shelf: Shelf,
    entries: Sequence[Entry],
    state: dict[str, Any],
    warn: Callable[[str], None] | None,
) -> None:
    """What the broker could not read when it was told: perhaps it can now."""
    unverified = {
        bundle["name"]
        for part in state["partitions"]
        for bundle in part["bundles"]
        if bundle["place"] == shelf.depot.place and not bundle["verified"]
    }
    for entry in entries:
        is_asked = f"{shelf.home}/{entry.bundle}" in unverified
        if is_asked and (reason := _tell(api, shelf, entry)):
            _warn(reason, warn)
            return  # nor can it read the others


def _check_whole(shelf: Shelf, entries: Sequence[Entry], state: dict[str, Any]) -> None:
    """The manifest must hold what the broker was told lies here, or the chain would fork."""
    if findings := check_known(entries, known_links(state, shelf.depot.place)):
        first = findings[0]
        raise CorruptionError(
            f"{first.where}: {first.detail} ({shelf.home} in {shelf.depot.place}); restore the "
            "manifest from a copy, or archive to another place with --dest"
        )


def known_links(state: dict[str, Any], place: str) -> dict[str, str]:
    """Bundle → link, of those the broker knows to lie at this place."""
    return {
        bundle["name"].partition("/")[2]: bundle["link"]
        for part in state["partitions"]
        for bundle in part["bundles"]
        if bundle["place"] == place
    }


def _finish(
    api: BrokerApi,
    shelf: Shelf,
    entries: Sequence[Entry],
    warn: Callable[[str], None] | None,
) -> None:
    """Bundles into their places, then the news to the broker, which reads each."""
    for entry in entries:
        shelf.place(entry)
    reasons = [reason for entry in entries if (reason := _tell(api, shelf, entry))]
    if reasons:
        _warn(reasons[0], warn)


def _tell(api: BrokerApi, shelf: Shelf, entry: Entry) -> str | None:
    """Have the broker read a bundle and record it; why it could not read it, if so."""
    told = {
        "start_offset": entry.span.start,
        "end_offset": entry.span.end,
        "name": f"{shelf.home}/{entry.bundle}",
        "sha256": entry.sha256,
        "link": entry.link,
        "place": shelf.depot.place,
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
    api: BrokerApi, options: SourceOptions, state: dict[str, Any], request: Request
) -> list[Due]:
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
            due.append(Due(tp, span, archived[tp.partition]["cursors"]))
    return due


def _through(options: SourceOptions, tp: TopicPartition, request: Request) -> int:
    if request.through_seq is not None:
        return request.through_seq
    if request.through_ms is None:
        return KEEP_ALL
    with open_log(options) as log:
        found = log.find_time(tp, request.through_ms)
    return KEEP_ALL if found is None else found


def _plan_spans(
    due: Sequence[Due], runs: Iterable[FoundRun], request: Request
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
    written: Sequence[Written],
    topic_id: str,
    cursors: dict[int, dict[str, int]],
) -> list[Entry]:
    """New entries, each linked to the one before it."""
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
