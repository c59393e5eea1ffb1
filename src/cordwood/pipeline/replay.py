"""Replay: dead letters, chosen and rewritten by SQL, go back into a topic; each of them once.

A replay *is* what it does: topic, conditions, rewriting and target give it its id. How far it has
come is a cursor of the reader ``replay-<id>`` on the dead-letter topic, which the gate moves in the
same step that appends a batch. So a replay that dies half way goes on where it stopped, one that is
run twice does nothing the second time, and one that is run again after new letters came takes only
those. To do the same again on purpose, give it another name.

The dead letters themselves are only read. A replayed record keeps its own headers; those that said
where it came from and why it died give way to ``replay.id``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.decide import deadletters, provenance
from cordwood.errors import InvalidOption
from cordwood.model import Codec
from cordwood.pipeline.archive import source_options
from cordwood.pipeline.broker import BrokerApi, Cursor, Part, Where
from cordwood.pipeline.options import COMMITTED
from cordwood.pipeline.sink_options import SinkOptions
from cordwood.pipeline.tasks import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLAY_ID: Final = "replay.id"
BATCH_RECORDS: Final = 50_000  # dead letters looked at for one delivery
OURS: Final = ("dlq.", "src.", "replay.")  # headers that are about an earlier journey


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What to replay, and how."""

    topic: str
    to: str
    where: str | None = None
    set_key: str | None = None
    set_value: str | None = None
    name: str = ""

    @property
    def id(self) -> str:
        """The same replay has the same id."""
        said = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def reader(self) -> str:
        """Whose cursor says how far it has come; also what the gate knows it by."""
        return f"replay-{self.id}"


class Slice(NamedTuple):
    """Offsets of one partition that one delivery looks at."""

    partition: int
    start: int
    end: int
    stands: int  # where the cursor must be for it


class Outcome(NamedTuple):
    """What a run did."""

    id: str
    scanned: int
    replayed: int


def letters(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Dead letters with what an expression may name: texts, and why and where they died."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    frame = spark.read.format("cordwood").options(**options, includeHeaders="true").load()

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
    """The last header of a name as text, or null; it may have been given more than once."""
    from pyspark.sql import functions as F  # noqa: N812

    same = F.filter("headers", lambda each: each["key"] == name)
    return F.try_element_at(F.transform(same, lambda each: each["value"].cast("string")), F.lit(-1))


def rewritten(found: DataFrame, replay: Replay) -> DataFrame:
    """The rows a replay chooses, as the sink takes them, with the old key and value beside."""
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
        shaped.schema  # noqa: B018 - Spark Connect looks at the expressions only now
    except (AnalysisException, ParseException) as error:
        raise InvalidOption(f"the expression does not hold: {_first_line(error)}") from None
    return shaped


def _as_bytes(chosen: DataFrame, expression: str) -> Any:
    """A record's bytes from whatever an expression gives: numbers and texts as text."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.expr(expression)
    kind = chosen.select(found.alias("it")).schema[0].dataType.simpleString()
    return found if kind == "binary" else found.cast("string").cast("binary")


def run_replay(
    spark: SparkSession,
    api: BrokerApi,
    where: Where,
    replay: Replay,
    *,
    rate: float | None = None,
    batch_records: int = BATCH_RECORDS,
    watch: Watch | None = None,
) -> Outcome:
    """Replay what this replay has not replayed yet, batch by batch; ``watch`` hears of letters."""
    if rate is not None:
        batch_records = min(batch_records, max(1, int(rate)))
    run = _Run(spark, api, where, replay)
    last = api.last_batch(replay.reader)
    started = time.monotonic()
    record = _begin(api, replay)
    scanned = replayed = 0
    pieces = plan_slices(api, replay, batch_records)
    total = sum(piece.end - piece.start for piece in pieces)
    for batch, piece in enumerate(pieces, 0 if last is None else last + 1):
        found = run.deliver(piece, batch)
        scanned += piece.end - piece.start
        replayed += found
        record["scanned"] += piece.end - piece.start
        record["records"] += found
        api.record_replay(replay.id, record | {"updated": _now()})
        if watch is not None:
            watch(scanned, total)
        if rate is not None:
            time.sleep(max(0.0, replayed / rate - (time.monotonic() - started)))
    api.record_replay(replay.id, record | {"updated": _now(), "state": "done"})
    return Outcome(replay.id, scanned, replayed)


def plan_slices(api: BrokerApi, replay: Replay, batch_records: int) -> list[Slice]:
    """What is left, partition by partition, up to the end as it is now."""
    stands = {
        part["partition"]: part["cursors"].get(replay.reader)
        for part in api.archive(replay.topic)["partitions"]
    }
    slices = []
    for part in api.topic(replay.topic)["partitions"]:
        number, end = part["partition"], part["last_stable_offset"]
        at = stands.get(number) or 0
        for start in range(max(part["log_start_offset"], at), end, batch_records):
            slices.append(Slice(number, start, min(end, start + batch_records), at))
            at = slices[-1].end
    return slices


def read_options(api: BrokerApi, where: Where, topic: str) -> dict[str, str]:
    """How Spark reaches the topic: its files from here, or the wire."""
    found = source_options(api, where, topic)
    said = {"path": found.path, "kafka.bootstrap.servers": where.servers, "subscribe": topic}
    return {**COMMITTED, **{name: value for name, value in said.items() if value}}


def _begin(api: BrokerApi, replay: Replay) -> dict[str, Any]:
    """The replay's record in the catalog, as earlier runs left it."""
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


class _Run:
    """One run of a replay: slices become deliveries."""

    def __init__(self, spark: SparkSession, api: BrokerApi, where: Where, replay: Replay) -> None:
        self._spark = spark
        self._api = api
        self._where = where
        self._replay = replay
        self._options = read_options(api, where, replay.topic)

    def deliver(self, piece: Slice, batch: int) -> int:
        """Stage what the slice holds; then append it and move the cursor, in one step."""
        replay = self._replay
        job = f"{replay.reader}.{batch}.{secrets.token_hex(4)}"
        found = letters(self._spark, slice_options(self._options, replay.topic, piece))
        shaped = rewritten(found, replay).select("key", "value", "headers")
        staged = shaped.coalesce(1).mapInArrow(  # one task: the order is kept
            self._stager(job, batch), "parts string, records bigint"
        )
        rows = collect_rows(staged)
        parts = [Part(*part) for row in rows for part in json.loads(row["parts"])]
        cursor = Cursor(replay.reader, replay.topic, piece.partition, piece.stands, piece.end)
        self._api.deliver(replay.reader, batch, job, parts, [cursor])
        return sum(row["records"] for row in rows)

    def _stager(self, job: str, batch: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """What the task does: rows → staged files, and one row that names them."""
        from cordwood.pipeline.sink import Plan

        sink = SinkOptions(
            where=self._where,
            topic=self._replay.to,
            codec=Codec.NONE,
            query=self._replay.reader,
            batch=batch,
        )
        plan = Plan.of(sink)

        def stage(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            counts: list[int] = []

            def counted() -> Iterator[Any]:
                for each in batches:
                    counts.append(each.num_rows)
                    yield each

            parts = json.dumps(plan.stage(counted(), job))
            yield pa.RecordBatch.from_pydict({"parts": [parts], "records": [sum(counts)]})

        return stage


def slice_options(options: Mapping[str, str], topic: str, piece: Slice) -> dict[str, str]:
    """Source options that read just one slice."""
    starting, ending = ({topic: {str(piece.partition): at}} for at in (piece.start, piece.end))
    others = {name: value for name, value in options.items() if name != "subscribe"}
    return {
        **others,
        "assign": json.dumps({topic: [piece.partition]}),
        "startingOffsets": json.dumps(starting),
        "endingOffsets": json.dumps(ending),
    }


def preview(spark: SparkSession, options: Mapping[str, str], replay: Replay) -> DataFrame:
    """What a replay would do to every letter there is: old and new key and value."""
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
    """The rows; what an expression does to a row it cannot handle is the operator's to fix."""
    from pyspark.errors import PySparkException

    try:
        return list(frame.collect())
    except PySparkException as error:
        raise InvalidOption(f"a letter could not be rewritten: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
