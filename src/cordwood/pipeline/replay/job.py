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
replaces the headers about its origin and the reason it was dead-lettered.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.decide import deadletters, provenance
from cordwood.errors import InvalidOption
from cordwood.model import Codec
from cordwood.pipeline.archive.job import source_options
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi, Cursor, Part
from cordwood.pipeline.runtime.failure_reasons import failure, is_late, our_error, patiently
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism, told_parallelism
from cordwood.pipeline.runtime.tasks import Watch
from cordwood.pipeline.sink.options import SinkOptions
from cordwood.pipeline.source.options import COMMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLAY_ID: Final = "replay.id"
TASK_RECORDS: Final = 50_000  # dead letters one task reads for one delivery
TASK_RECORDS_MIN: Final = 5_000  # for fewer, another task costs more than it saves
OURS: Final = ("dlq.", "src.", "replay.")  # prefixes of headers about an earlier routing or replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which dead letters to replay, where to, and how to rewrite them."""

    topic: str
    to: str
    where: str | None = None
    set_key: str | None = None
    set_value: str | None = None
    name: str = ""

    @property
    def id(self) -> str:
        """Hash of all fields: the same replay always has the same id."""
        said = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def reader(self) -> str:
        """The reader whose cursor is the replay's progress; also the query name of deliveries."""
        return f"replay-{self.id}"


class ReplaySlice(NamedTuple):
    """Offsets of one partition that one delivery reads."""

    partition: int
    start: int
    end: int
    stands: int  # the cursor position that the delivery requires
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


def letters(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read dead letters with the columns that expressions may use: text, reason and source."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    said = {**options, "includeHeaders": "true"}
    if "parallelism" not in said and (cores := told_parallelism(spark)):
        said["parallelism"] = str(cores)
    frame = spark.read.format("cordwood").options(**said).load()

    def first_of(*names: str) -> Any:
        return F.coalesce(*(header_text(name) for name in names))

    return frame.select(
        "*",
        F.col("key").cast("string").alias("key_text"),
        F.col("value").cast("string").alias("value_text"),
        header_text(deadletters.REASON).alias("reason"),
        header_text(deadletters.DETAIL).alias("detail"),
        header_text(deadletters.SOURCE).alias("source"),
        first_of(deadletters.TOPIC, provenance.SOURCE_TOPIC).alias("source_topic"),
        first_of(deadletters.PARTITION, provenance.SOURCE_PARTITION)
        .cast("int")
        .alias("source_partition"),
        first_of(deadletters.OFFSET, provenance.SOURCE_OFFSET)
        .cast("bigint")
        .alias("source_offset"),
    )


def header_text(name: str) -> Any:
    """Return the last header of this name as text, or null; a name may occur more than once."""
    from pyspark.sql import functions as F  # noqa: N812

    same = F.filter("headers", lambda each: each["key"] == name)
    return F.try_element_at(F.transform(same, lambda each: each["value"].cast("string")), F.lit(-1))


def rewritten(found: DataFrame, replay: Replay) -> DataFrame:
    """Return the rows a replay selects, in the sink's format, with the old key and value.

    Raises ``InvalidOption`` if an expression is not valid.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812

    try:
        chosen = found.where(replay.where) if replay.where else found
        is_own = "exists(array({}), p -> startswith(h.key, p))".format(
            ", ".join(f"'{prefix}'" for prefix in OURS)
        )
        kept = F.expr(f"filter(coalesce(headers, array()), h -> NOT {is_own})")
        mark = F.struct(
            F.lit(REPLAY_ID).alias("key"), F.lit(replay.id.encode()).cast("binary").alias("value")
        )
        shaped = chosen.select(
            "partition",
            "offset",
            F.col("key_text").alias("old_key"),
            F.col("value_text").alias("old_value"),
            _as_bytes(chosen, replay.set_key or "key").alias("key"),
            _as_bytes(chosen, replay.set_value or "value").alias("value"),
            F.concat(kept, F.array(mark)).alias("headers"),
        )
        shaped.schema  # noqa: B018 - Spark Connect analyses the expressions only now
    except (AnalysisException, ParseException) as error:
        raise InvalidOption(f"the expression does not hold: {_first_line(error)}") from None
    return shaped


def _as_bytes(chosen: DataFrame, expression: str) -> Any:
    """Cast an expression to bytes; anything but binary becomes text first."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.expr(expression)
    kind = chosen.select(found.alias("it")).schema[0].dataType.simpleString()
    return found if kind == "binary" else found.cast("string").cast("binary")


def run_replay(
    spark: SparkSession,
    api: BrokerApi,
    where: BrokerAddress,
    replay: Replay,
    *,
    rate: float | None = None,
    batch_records: int | None = None,
    watch: Watch | None = None,
) -> ReplayOutcome:
    """Replay the letters that this replay has not read yet, batch by batch.

    A delivery reads ``batch_records`` letters, by default ``TASK_RECORDS`` per core. ``rate`` is
    the limit in records per second. ``watch`` is called with the letters read and their total.
    """
    batch_records = batch_records or TASK_RECORDS * parallelism(spark)
    if rate is not None:
        batch_records = min(batch_records, max(1, int(rate)))
    run = _ReplayRun(spark, api, where, replay)
    last = api.last_batch(replay.reader)
    started = time.monotonic()
    record = _begin(api, replay)
    scanned = replayed = 0
    rounds = plan_rounds(_left(api, replay), batch_records)
    total = sum(piece.size for pieces in rounds for piece in pieces)
    for batch, pieces in enumerate(rounds, 0 if last is None else last + 1):
        size = sum(piece.size for piece in pieces)
        with labelled(spark, f"replay {replay.topic} to {replay.to}, {scanned} of {total} letters"):
            found = run.deliver(pieces, batch)
        scanned += size
        replayed += found
        record["scanned"] += size
        record["records"] += found
        api.record_replay(replay.id, record | {"updated": _now()})
        if watch is not None:
            watch(scanned, total)
        if rate is not None:
            time.sleep(max(0.0, replayed / rate - (time.monotonic() - started)))
    api.record_replay(replay.id, record | {"updated": _now(), "state": "done"})
    return ReplayOutcome(replay.id, scanned, replayed)


def _left(api: BrokerApi, replay: Replay) -> list[ReplaySlice]:
    """Return the offsets not read yet, per partition, up to the current last stable offset."""
    stands = {
        part["partition"]: part["cursors"].get(replay.reader)
        for part in api.archive(replay.topic)["partitions"]
    }
    left = []
    topic = api.topic(replay.topic)
    for part in topic["partitions"]:
        at = stands.get(part["partition"]) or 0
        start, end = max(part["log_start_offset"], at), part["last_stable_offset"]
        if start < end:
            left.append(ReplaySlice(part["partition"], start, end, at, topic["id"]))
    return left


def plan_rounds(left: Sequence[ReplaySlice], batch_records: int) -> list[list[ReplaySlice]]:
    """Plan deliveries of about ``batch_records``, shared evenly by partitions with letters left."""
    rounds = []
    while left:
        share = max(1, batch_records // len(left))
        rounds.append([each._replace(end=min(each.end, each.start + share)) for each in left])
        left = [
            whole._replace(start=done.end, stands=done.end)
            for whole, done in zip(left, rounds[-1], strict=True)
            if done.end < whole.end
        ]
    return rounds


def read_options(api: BrokerApi, where: BrokerAddress, topic: str) -> dict[str, str]:
    """Return source options: read the topic's segment files if reachable, else use Kafka."""
    found = source_options(api, where, topic)
    said = {"path": found.path, "kafka.bootstrap.servers": where.servers, "subscribe": topic}
    return {**COMMITTED, **{name: value for name, value in said.items() if value}}


def _begin(api: BrokerApi, replay: Replay) -> dict[str, Any]:
    """Mark the replay as running in the catalog; returns its record, with earlier runs' totals."""
    known = {row["id"]: row for row in api.replays()}.get(replay.id, {})
    record = {
        **asdict(replay),
        "started": known.get("started") or _now(),
        "scanned": known.get("scanned", 0),
        "records": known.get("records", 0),
        "state": "running",
    }
    api.record_replay(replay.id, record | {"updated": _now()})
    return record


class _ReplayRun:
    """One run of a replay; turns slices into deliveries."""

    def __init__(
        self, spark: SparkSession, api: BrokerApi, where: BrokerAddress, replay: Replay
    ) -> None:
        self._spark = spark
        self._api = api
        self._where = where
        self._replay = replay
        self._options = read_options(api, where, replay.topic)

    def deliver(self, pieces: Sequence[ReplaySlice], batch: int) -> int:
        """Stage the letters of the slices, then append them and move the cursors in one step.

        Returns the number of records.
        """
        replay = self._replay
        job = f"{replay.reader}.{batch}.{secrets.token_hex(4)}"
        options = round_options(self._options, replay.topic, pieces, parallelism(self._spark))
        shaped = rewritten(letters(self._spark, options), replay)
        staged = shaped.select("partition", "offset", "key", "value", "headers").mapInArrow(
            self._stager(job, batch),
            "partition bigint, offset bigint, parts string, records bigint",
        )
        rows = sorted(collect_rows(staged))  # by partition and offset of each task's first letter
        parts = [Part(*part) for row in rows for part in json.loads(row["parts"])]
        cursors = [
            Cursor(
                replay.reader,
                replay.topic,
                piece.partition,
                piece.stands,
                piece.end,
                piece.topic_id,
            )
            for piece in pieces
        ]
        self._api.deliver(replay.reader, batch, job, parts, cursors)
        return sum(row["records"] for row in rows)

    def _stager(self, job: str, batch: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """Return the function of a task: stage its rows, and yield one row that names the files."""
        from cordwood.pipeline.sink.sink import SinkPlan

        sink = SinkOptions(
            where=self._where,
            topic=self._replay.to,
            codec=Codec.NONE,
            query=self._replay.reader,
            batch=batch,
        )
        plan = SinkPlan.of(sink)
        count = plan.partition_count(self._replay.to)

        def stage(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            found = (each for each in batches if each.num_rows)
            begin = next(found, None)
            if begin is None:
                return
            counts: list[int] = []

            def counted() -> Iterator[Any]:
                for each in itertools.chain([begin], found):
                    counts.append(each.num_rows)
                    yield with_target(each, count)

            parts = json.dumps(plan.stage(counted(), job))
            at = {name: [begin.column(name)[0].as_py()] for name in ("partition", "offset")}
            yield pa.RecordBatch.from_pydict({**at, "parts": [parts], "records": [sum(counts)]})

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
    options: Mapping[str, str], topic: str, pieces: Sequence[ReplaySlice], cores: int
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
        "maxRecordsPerPartition": str(max(TASK_RECORDS_MIN, -(-size // cores))),
        "parallelism": str(cores),
    }


def preview(spark: SparkSession, options: Mapping[str, str], replay: Replay) -> DataFrame:
    """Return the old and new key and value of every letter the replay would select."""
    from pyspark.sql import functions as F  # noqa: N812

    return rewritten(letters(spark, options), replay).select(
        "partition",
        "offset",
        "old_key",
        F.col("key").cast("string").alias("new_key"),
        "old_value",
        F.col("value").cast("string").alias("new_value"),
    )


def collect_rows(frame: DataFrame) -> list[Any]:
    """Collect the rows; raises ``InvalidOption`` if an expression fails on a row."""
    from pyspark.errors import PySparkException

    try:
        return list(patiently(frame.collect))
    except PySparkException as error:
        if is_late(error) or our_error(error) is not None:
            raise failure(error) from None
        raise InvalidOption(f"a letter could not be rewritten: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
