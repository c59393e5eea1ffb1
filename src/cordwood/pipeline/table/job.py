"""``table``: the latest state per key of a changelog topic, as files other tools read.

A later run reads only the records appended since and merges them into the table. Merging is
idempotent, so a run that dies is simply run again. The table is a registered reader of its topic:
compaction keeps tombstones until the table has read them, so no deleted key stays in the table.

Tasks write files, the driver verifies and counts each of them (``table.files``), and only then do
they become the table (``table.storage``). A run that fails leaves the table as it was.

A key is expected in one partition, as with Kafka's partitioner; a key in two partitions gives two
rows. Records without a key are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.client.storage import Storage, open_storage
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.probe import TASKS_MAX, shared_place
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.tasks import WATCH_S, followed
from cordwood.pipeline.runtime.topic_reads import (
    read_options,
    read_topics,
    unchanged_topic,
    whole_log_options,
)
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.table.files import INCOMING, check_present, write_files
from cordwood.pipeline.table.storage import LOCK, DeltaTable, ParquetTable, TableState, open_table
from cordwood.plural import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, int, int], None]  # stage, offsets done, total offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """Which topic to build a table of, where, in which format, and as of when."""

    topic: str
    out: str | Path  # a directory, or the URL of an object store
    form: str = "parquet"
    as_of_ms: int | None = None
    as_of_offset: int | None = None

    @property
    def is_as_of(self) -> bool:
        """Whether the table is to show a past state."""
        return self.as_of_ms is not None or self.as_of_offset is not None

    @property
    def reader(self) -> str:
        """Name of the table as a registered reader of its topic; depends only on its location."""
        place = str(self.out) if "://" in str(self.out) else str(Path(self.out).absolute())
        return f"table-{hashlib.sha256(place.rstrip('/').encode()).hexdigest()[:8]}"


class Built(NamedTuple):
    """The result of a run."""

    rows: int
    read: int  # offsets read in this run
    is_incremental: bool
    place: str


def build_table(
    spark: SparkSession,
    api: BrokerApi,
    request: TableRequest,
    *,
    progress: Progress | None = None,
    storage: Storage | None = None,
    watch_s: float = WATCH_S,
) -> Built:
    """Bring the table up to date, or to a past state; ``storage`` is ``out``, already opened.

    ``progress`` is called about every ``watch_s`` seconds.
    """
    storage = storage or open_storage(str(request.out))
    table = open_table(storage, request.form)
    with storage.held(LOCK), labelled(spark, f"table {request.topic}"):
        table.sweep()
        return _build(
            spark, api, request, storage=storage, table=table, progress=progress, watch_s=watch_s
        )


def _build(
    spark: SparkSession,
    api: BrokerApi,
    request: TableRequest,
    *,
    storage: Storage,
    table: ParquetTable | DeltaTable,
    progress: Progress | None,
    watch_s: float,
) -> Built:
    topic_id = api.archive(request.topic).id
    starts, ends = _bounds(api, request)
    state = table.state()
    if state is not None:
        check_present(storage, state.files)
    is_incremental = state is not None and _continues(state, topic_id, ends)
    begin = starts
    if is_incremental and state is not None:
        begin = {at: max(start, state.offsets.get(at, 0)) for at, start in starts.items()}
        if begin == ends:
            return Built(state.rows, 0, is_incremental=True, place=table.place)
    read = sum(ends[at] - begin[at] for at in ends)
    stages = Stages(request.topic, read, progress) if progress else None
    try:
        with (
            unchanged_topic(api, request.topic, topic_id),
            shared_place(spark, storage, INCOMING, tasks=TASKS_MAX, option="--out") as probe,
        ):
            if not request.is_as_of:  # only now: an unusable ``out`` must not hold back RECLAIM
                api.register(request.topic, request.reader)
            changes = latest(_read(spark, api, request.topic, begin=begin, ends=ends))
            if is_incremental and state is not None:
                changes = latest(table.read(spark, state).unionByName(changes))
            with (
                labelled(spark, f"newest value of each key, {plural(read, 'offset')} to read"),
                followed(spark, stages.report if stages else None, interval_s=watch_s),
            ):
                files = write_files(changes.where("value is not null"), storage, probe)
        published = table.publish(files, TableState(topic_id, ends))
    finally:
        table.sweep()
    if not request.is_as_of:
        for partition, end in ends.items():
            api.advance(request.topic, partition, request.reader, end)
    return Built(published.rows, read, is_incremental=is_incremental, place=table.place)


class Stages:
    """Turns the progress of Spark stages into offsets, counting every task of a stage alike.

    The first stage that runs reads the topic; all others merge its records by key.
    """

    def __init__(self, topic: str, offsets: int, progress: Progress) -> None:
        self._topic = topic
        self._offsets = offsets
        self._progress = progress
        self._first: int | None = None
        progress(f"reading {topic}", 0, offsets)

    def report(self, stages: Sequence[Any]) -> None:
        """Report progress from the stages that are active in Spark now."""
        if not stages:
            return
        at = min(stage.stageId for stage in stages)
        self._first = at if self._first is None else self._first
        done = sum(stage.numCompletedTasks for stage in stages)
        total = sum(stage.numTasks for stage in stages)
        about = "reading" if at == self._first else "merging"
        self._progress(f"{about} {self._topic}", self._offsets * done // total, self._offsets)


def latest(changes: DataFrame) -> DataFrame:
    """Return the newest row of every key, tombstones included."""
    from pyspark.sql import functions as F  # noqa: N812

    newest = F.max_by(F.struct("value", "timestamp", "offset"), "offset").alias("newest")
    grouped = changes.where("key is not null").groupBy("partition", "key").agg(newest)
    return grouped.select("key", "newest.value", "partition", "newest.offset", "newest.timestamp")


def _continues(state: TableState, topic_id: str, ends: Mapping[int, int]) -> bool:
    """Return whether the table can be updated to these ends: same topic, no offset moves back."""
    return state.topic_id == topic_id and all(
        at in ends and offset <= ends[at] for at, offset in state.offsets.items()
    )


def _bounds(api: BrokerApi, request: TableRequest) -> tuple[dict[int, int], dict[int, int]]:
    """Return the start and end offset to read of each partition."""
    options = replace(whole_log_options(api, request.topic), committed=True)
    count = api.partition_counts()
    if request.topic not in count:
        api.topic(request.topic)  # raises the error for a missing topic
    tps = [TopicPartition(request.topic, number) for number in range(count[request.topic])]
    with open_log(options) as log:
        bounds = log.bounds(tps)
        ends = {tp.partition: of.end for tp, of in bounds.items()}
        if request.as_of_ms is not None:
            for tp in tps:
                later = log.find_time(tp, request.as_of_ms + 1)
                ends[tp.partition] = ends[tp.partition] if later is None else later
        if request.as_of_offset is not None:
            ends = {at: min(end, request.as_of_offset) for at, end in ends.items()}
    starts = {tp.partition: min(of.start, ends[tp.partition]) for tp, of in bounds.items()}
    return starts, ends


def _read(
    spark: SparkSession,
    api: BrokerApi,
    topic: str,
    *,
    begin: Mapping[int, int],
    ends: Mapping[int, int],
) -> DataFrame:
    def offsets(at: Mapping[int, int]) -> str:
        return json.dumps({topic: {str(partition): offset for partition, offset in at.items()}})

    options = read_options(
        StagingTarget.of(api),
        topic,
        columns="key,value,partition,offset,timestamp",
        startingOffsets=offsets(begin),
        endingOffsets=offsets(ends),
    )
    return read_topics(spark, options)
