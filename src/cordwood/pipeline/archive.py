"""``archive``: Spark writes a topic's sealed offsets as bundles, reads them back, and says so.

1. Tasks look at the batch headers of what is due, and ``decide.archive`` cuts it into bundles.
2. A task per bundle writes it to ``incoming`` and reads it back: its sum, every batch's checksum,
   every offset.
3. The driver adds the entries to the manifest (one write, read back), moves the bundles into place,
   and tells the broker. Only now may RECLAIM count on them.

A run that dies before 3 has left nothing but files in ``incoming``, which the next one writes
again; one that dies within 3 is finished by the next run before it begins its own work.

Nothing here touches the log: it is read like any consumer reads it.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.batch.header import parse_headers
from cordwood.config import KEEP_ALL, MIB
from cordwood.decide.archive import (
    Entry,
    Run,
    Sealed,
    Span,
    bundle_name,
    check_known,
    genesis,
    plan_bundles,
    plan_due,
    seal_entry,
)
from cordwood.errors import CorruptionError
from cordwood.model import SegmentState, TopicPartition
from cordwood.pipeline.broker import BrokerApi, Where
from cordwood.pipeline.bundles import Facts, check_bundle, digest, write_bundle
from cordwood.pipeline.depot import Depot, open_depot
from cordwood.pipeline.logs import open_log
from cordwood.pipeline.offsets import Range
from cordwood.pipeline.options import SourceOptions, parse_options
from cordwood.pipeline.shelf import Shelf, parquet_name, shelf_name
from cordwood.pipeline.splits import plan_splits
from cordwood.pipeline.staging import Yard
from cordwood.pipeline.tasks import Watch, naming, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUNDLE_BYTES: Final = 256 * MIB


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


@dataclass(frozen=True, slots=True)
class BundleTask:
    """One bundle to write; small and picklable."""

    options: SourceOptions
    place: str
    home: str
    tp: TopicPartition
    span: Span
    lines: bool
    parquet: bool


class Written(NamedTuple):
    """What a task wrote and read back."""

    facts: Facts
    parquet_sha256: str | None


def create_archive(
    spark: SparkSession,
    api: BrokerApi,
    where: Where,
    depot: Depot,
    request: Request,
    *,
    watch: Watch | None = None,
) -> list[Entry]:
    """Archive what is due; the manifest entries this run added or finished."""
    state = api.archive(request.topic)
    shelf = Shelf(depot, shelf_name(request.topic, state["id"]))
    with shelf.held():
        entries = shelf.entries()
        _check_whole(shelf, entries, state)
        finished = settle(api, shelf, entries, state)
        if finished:
            state = api.archive(request.topic)
        options = source_options(api, where, request.topic)
        due = _plan_due(api, options, state, request)
        tasks = _plan_tasks(spark, options, shelf, due, request)
        try:
            written = run_tasks(spark, write_task, tasks, _in_offsets(tasks, watch))
        except BaseException:
            shelf.drop_incoming(bundle_name(task.tp.partition, task.span) for task in tasks)
            raise
        cursors = {each.tp.partition: each.cursors for each in due}
        new = _chain(entries, tasks, written, state["id"], cursors)
        if new:
            shelf.write_manifest([*entries, *new])
            _finish(api, shelf, new)
        return [*finished, *new]


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
    return parse_options(said, streaming=False)


# --- what a crash left ----------------------------------------------------------------------


def settle(
    api: BrokerApi, shelf: Shelf, entries: Sequence[Entry], state: dict[str, Any]
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
    if left:
        _finish(api, shelf, left)
    return left


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


def _finish(api: BrokerApi, shelf: Shelf, entries: Sequence[Entry]) -> None:
    """Bundles into their places, then the news to the broker."""
    for entry in entries:
        shelf.place(entry.bundle)
    for partition in sorted({entry.partition for entry in entries}):
        told = [
            {
                "start_offset": entry.span.start,
                "end_offset": entry.span.end,
                "name": f"{shelf.home}/{entry.bundle}",
                "sha256": entry.sha256,
                "link": entry.link,
                "place": shelf.depot.place,
            }
            for entry in entries
            if entry.partition == partition
        ]
        api.record_bundles(entries[0].topic, partition, told)


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


def _plan_tasks(
    spark: SparkSession,
    options: SourceOptions,
    shelf: Shelf,
    due: Sequence[Due],
    request: Request,
) -> list[BundleTask]:
    bytes_max = request.bundle_bytes
    if request.bundle_records == request.bundle_bytes == KEEP_ALL:
        bytes_max = BUNDLE_BYTES
    with open_log(options) as log:
        looks = [
            (options, part)
            for each in due
            for part in plan_splits([Range(each.tp, *each.span)], log.pieces)
        ]
    seen: dict[TopicPartition, dict[int, Run]] = {each.tp: {} for each in due}
    for (_, part), runs in zip(looks, run_tasks(spark, look_task, looks), strict=True):
        seen[part.tp] |= {run.base_offset: run for run in runs}
    return [
        BundleTask(
            options, shelf.depot.place, shelf.home, each.tp, span, request.lines, request.parquet
        )
        for each in due
        for span in plan_bundles(
            [run for _, run in sorted(seen[each.tp].items())],
            each.span,
            records_max=request.bundle_records,
            bytes_max=bytes_max,
        )
    ]


def look_task(task: tuple[SourceOptions, Range]) -> list[Run]:
    """On an executor: the batches of a range, by their headers."""
    options, whole = task
    runs = []
    with open_log(options) as log:
        for chunk in log.chunks(whole, None):
            for header in parse_headers(chunk.data):
                records = 0 if header.is_control else header.count
                runs.append(Run(header.base_offset, header.end_offset, records, header.size_bytes))
    return [run for run in runs if run.end_offset > whole.start and run.base_offset < whole.end]


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


# --- writing, on an executor ----------------------------------------------------------------


def write_task(task: BundleTask) -> Written:
    """Write one bundle to ``incoming`` and read it back from there."""
    depot = open_depot(task.place)
    shelf = Shelf(depot, task.home)
    name = bundle_name(task.tp.partition, task.span)
    with tempfile.TemporaryFile() as file:
        with naming(Path(tempfile.gettempdir())), open_log(task.options) as log:
            chunks = log.chunks(Range(task.tp, *task.span), None)
            facts = write_bundle(file, task.tp, task.span, chunks, lines=task.lines)
        file.seek(0)
        depot.put(shelf.incoming(name), file)
    _read_back(shelf, name, facts.sha256)
    with closing(depot.open(shelf.incoming(name))) as bundle:
        records = check_bundle(bundle, task.tp, task.span)
    if records != facts.records:
        raise CorruptionError(f"{name} holds {records} records, and {facts.records} were written")
    return Written(facts, _write_parquet(task, shelf, name) if task.parquet else None)


def _read_back(shelf: Shelf, name: str, sha256: str) -> None:
    with closing(shelf.depot.open(shelf.incoming(name))) as file:
        found = digest(file)
    if found != sha256:
        raise CorruptionError(f"{name} reads back as {found}, and {sha256} was written")


def _write_parquet(task: BundleTask, shelf: Shelf, bundle: str) -> str:
    """The same records as a Parquet file beside the bundle."""
    name = parquet_name(bundle)
    with tempfile.TemporaryFile() as file:
        _write_rows(file, task)
        file.seek(0)
        sha256 = digest(file)
        file.seek(0)
        shelf.depot.put(shelf.incoming(name), file)
    _read_back(shelf, name, sha256)
    return sha256


def _write_rows(file: IO[bytes], task: BundleTask) -> None:
    import pyarrow.parquet as pq

    from cordwood.batch.arrow import SPARK_COLUMNS, arrow_batches, arrow_schema
    from cordwood.batch.columns import decode_columns

    with (
        pq.ParquetWriter(file, arrow_schema(SPARK_COLUMNS), compression="zstd") as writer,
        open_log(task.options) as log,
    ):
        for chunk in log.chunks(Range(task.tp, *task.span), None):
            columns = decode_columns(
                chunk.data,
                start_offset=max(chunk.start_offset, task.span.start),
                end_offset=task.span.end,
            )
            for batch in arrow_batches(columns, *task.tp, SPARK_COLUMNS):
                writer.write_batch(batch)
