"""Replay: select dead letters with SQL, rewrite them, and append each to a topic exactly once.

A replay's id is a hash of its topic, condition, rewriting, target and name. Its progress is the
cursor of the reader ``replay-<id>`` on the dead-letter topic; the broker moves the cursor and
appends the delivery in one step. So a replay that dies continues where it stopped, running it twice
has no further effect, and running it after new dead letters arrived takes only those. To repeat a
replay on purpose, give it another name.

A delivery takes letters from every partition that has some left. Its tasks stage them in parallel,
and the broker appends them in the order of partition and offset. So letters of one source partition
that go to the same target partition keep their order.

The dead letters themselves are only read. A replayed record keeps its own headers; ``replay.id``
replaces the headers about its origin and the reason it was dead-lettered (``letters``).
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cordwood.model import Codec
from cordwood.pipeline.replay.letters import Replay, letters, rewritten, run_expressions
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism
from cordwood.pipeline.runtime.staging import StagingTarget, name_job
from cordwood.pipeline.runtime.tasks import Watch, run_on_rows
from cordwood.pipeline.runtime.topic_reads import read_options
from cordwood.plural import plural
from cordwood.protocol.api.deliveries import (
    Deliver,
    DeliveryCursor,
    DeliveryPart,
    ListReplays,
    RecordReplay,
    ReplayRecord,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_RECORDS: Final = 50_000  # dead letters one task reads for one delivery
TASK_RECORDS_MIN: Final = 5_000  # for fewer, another task costs more than it saves


class ReplaySlice(NamedTuple):
    """Offsets of one partition that one delivery reads."""

    partition: int
    start: int
    end: int
    cursor: int  # the cursor position that the delivery requires
    topic_id: str = ""  # id of the dead-letter topic

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end - self.start


class ReplayOutcome(NamedTuple):
    """The result of a run."""

    id: str
    scanned: int
    replayed: int


class StagedLetters(NamedTuple):
    """What one task staged, and the position of its first letter."""

    partition: int
    offset: int
    parts: list[DeliveryPart]
    records: int


def run_replay(
    spark: SparkSession,
    api: BrokerApi,
    replay: Replay,
    *,
    rate: float | None = None,
    batch_records: int | None = None,
    task_records_min: int = TASK_RECORDS_MIN,
    cores: int | None = None,
    watch: Watch | None = None,
) -> ReplayOutcome:
    """Replay the letters that this replay has not read yet, batch by batch.

    A delivery reads ``batch_records`` letters, by default ``TASK_RECORDS`` per core, in tasks of at
    least ``task_records_min``. ``rate`` is the limit in records per second. ``watch`` is called
    with the letters read and their total.
    """
    cores = cores or parallelism(spark)
    batch_records = batch_records or TASK_RECORDS * cores
    if rate is not None:
        batch_records = min(batch_records, max(1, int(rate)))
    run = _ReplayRun(spark, api, replay, cores, task_records_min)
    first = api.next_batch(replay.reader)
    started = time.monotonic()
    record = _begin(api, replay)
    scanned = replayed = 0
    rounds = plan_rounds(_left(api, replay), batch_records)
    total = sum(piece.size for pieces in rounds for piece in pieces)
    for batch, pieces in enumerate(rounds, first):
        size = sum(piece.size for piece in pieces)
        with labelled(
            spark, f"replay {replay.topic} to {replay.to}, {scanned} of {plural(total, 'letter')}"
        ):
            records = run.deliver(pieces, batch)
        scanned += size
        replayed += records
        record = msgspec.structs.replace(
            record, scanned=record.scanned + size, records=record.records + records, updated=_now()
        )
        api.call(RecordReplay(replay.id, record))
        if watch is not None:
            watch(scanned, total)
        if rate is not None:
            time.sleep(max(0.0, replayed / rate - (time.monotonic() - started)))
    record = msgspec.structs.replace(record, updated=_now(), state="done")
    api.call(RecordReplay(replay.id, record))
    return ReplayOutcome(replay.id, scanned, replayed)


def _left(api: BrokerApi, replay: Replay) -> list[ReplaySlice]:
    """Return the offsets not read yet, per partition, up to the current last stable offset."""
    cursors = {
        part.partition: part.cursors.get(replay.reader)
        for part in api.archive(replay.topic).partitions
    }
    left = []
    topic = api.topic(replay.topic)
    for part in topic.partitions:
        cursor = cursors.get(part.partition) or 0
        start, end = max(part.log_start_offset, cursor), part.last_stable_offset
        if start < end:
            left.append(ReplaySlice(part.partition, start, end, cursor, topic.id))
    return left


def plan_rounds(left: Sequence[ReplaySlice], batch_records: int) -> list[list[ReplaySlice]]:
    """Plan deliveries of about ``batch_records``, shared evenly by partitions with letters left."""
    rounds = []
    while left:
        share = max(1, batch_records // len(left))
        rounds.append([each._replace(end=min(each.end, each.start + share)) for each in left])
        left = [
            whole._replace(start=done.end, cursor=done.end)
            for whole, done in zip(left, rounds[-1], strict=True)
            if done.end < whole.end
        ]
    return rounds


def _begin(api: BrokerApi, replay: Replay) -> ReplayRecord:
    """Mark the replay as running in the catalog; returns its record, with earlier runs' totals."""
    known = {row.id: row for row in api.call(ListReplays()).replays}.get(replay.id)
    record = ReplayRecord(
        **asdict(replay),
        started=(known and known.started) or _now(),
        updated=_now(),
        scanned=known.scanned if known else 0,
        records=known.records if known else 0,
        state="running",
    )
    api.call(RecordReplay(replay.id, record))
    return record


class _ReplayRun:
    """One run of a replay; turns slices into deliveries."""

    def __init__(
        self,
        spark: SparkSession,
        api: BrokerApi,
        replay: Replay,
        cores: int,
        task_records_min: int,
    ) -> None:
        self._spark = spark
        self._api = api
        self._replay = replay
        self._cores = cores
        self._task_records_min = task_records_min
        self._options = read_options(StagingTarget.of(api), replay.topic)

    def deliver(self, pieces: Sequence[ReplaySlice], batch: int) -> int:
        """Stage the letters of the slices, then append them and move the cursors in one step.

        Returns the number of records.
        """
        replay = self._replay
        job = name_job(replay.reader, batch)
        options = round_options(
            self._options, replay.topic, pieces, self._cores, records_min=self._task_records_min
        )
        shaped = rewritten(letters(self._spark, options), replay)
        rows = shaped.select("partition", "offset", "key", "value", "headers")
        results = run_expressions(partial(run_on_rows, rows, self._stager(job, batch)))
        staged = sorted(result for result in results if result is not None)
        cursors = tuple(
            DeliveryCursor(replay.reader, replay.topic, piece.partition, piece.end, piece.cursor,
                           piece.topic_id)
            for piece in pieces
        )  # fmt: skip
        parts = tuple(part for each in staged for part in each.parts)
        self._api.deliver(Deliver(replay.reader, batch, job, parts, cursors))
        return sum(each.records for each in staged)

    def _stager(self, job: str, batch: int) -> Callable[[Iterator[Any]], StagedLetters | None]:
        """Return the function of a task: stage its rows; None if it has none."""
        from cordwood.pipeline.sink.options import SinkOptions
        from cordwood.pipeline.sink.sink import SinkPlan

        plan = SinkPlan.of(
            SinkOptions(
                where=self._api.where,
                topic=self._replay.to,
                codec=Codec.NONE,
                query=self._replay.reader,
                batch=batch,
            )
        )
        count = plan.partition_count(self._replay.to)

        def stage(batches: Iterator[Any]) -> StagedLetters | None:
            letters = (each for each in batches if each.num_rows)
            first = next(letters, None)
            if first is None:
                return None
            counts: list[int] = []

            def counted() -> Iterator[Any]:
                for each in itertools.chain([first], letters):
                    counts.append(each.num_rows)
                    yield with_target(each, count)

            parts = list(plan.stage(counted(), job))
            partition, offset = (first.column(name)[0].as_py() for name in ("partition", "offset"))
            return StagedLetters(partition, offset, parts, sum(counts))

        return stage


def with_target(letters: Any, count: int) -> Any:
    """Return the batch in the sink's format, with a target partition for keyless letters.

    All keyless letters of a partition get the same target, to keep their order. The sink would
    choose one per task, and several tasks share the letters of a partition.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    source = letters.column("partition").to_numpy(zero_copy_only=False)
    own = pa.array(source % count, pa.int32())
    target = pc.if_else(letters.column("key").is_null(), own, pa.nulls(len(own), pa.int32()))
    columns = [letters.column(name) for name in ("key", "value", "headers")]
    return pa.RecordBatch.from_arrays([*columns, target], ["key", "value", "headers", "partition"])


def round_options(
    options: Mapping[str, str],
    topic: str,
    pieces: Sequence[ReplaySlice],
    cores: int,
    *,
    records_min: int = TASK_RECORDS_MIN,
) -> dict[str, str]:
    """Return source options that read exactly these slices, with work for every core."""
    starting, ending = (
        {topic: {str(piece.partition): getattr(piece, side) for piece in pieces}}
        for side in ("start", "end")
    )
    size = sum(piece.size for piece in pieces)
    others = {name: value for name, value in options.items() if name != "subscribe"}
    return {
        **others,
        "assign": json.dumps({topic: [piece.partition for piece in pieces]}),
        "startingOffsets": json.dumps(starting),
        "endingOffsets": json.dumps(ending),
        "maxRecordsPerPartition": str(max(records_min, -(-size // cores))),
        "parallelism": str(cores),
    }


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
