"""``audit``: a Spark job that checks partitions for gaps and repeats, and the router for losses.

Gaps and repeats are found from batch headers alone. The check of the router joins the offsets of
the ingress topic with the source offsets in the headers of routed records (``src.*``) and dead
letters (``dlq.*``). ``decide.audit`` defines the verdicts. The job only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.batch.header import parse_headers
from cordwood.decide import deadletters, provenance
from cordwood.decide.audit import AuditWindow, PartitionAudit, RangeAudit, audit_partition
from cordwood.model import TopicPartition
from cordwood.pipeline.archive.job import source_options
from cordwood.pipeline.replay.job import header_text
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.failure_reasons import patiently, told
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism, told_parallelism
from cordwood.pipeline.runtime.tasks import spread
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import COMMITTED, SourceOptions
from cordwood.pipeline.source.splits import plan_splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUTER: Final = "route"  # the reader whose cursor shows what the router has processed
WINDOW: Final = "1 day"
NUMBERS_HELD: Final = 50_000  # sequence numbers that a task buffers before it emits them
_NUMBER: Final = ("producer", "epoch", "sequence")  # identifies an idempotent producer's batch
_WALKED: Final = (
    "part bigint, start bigint, producer bigint, epoch bigint, sequence bigint, piece struct<"
    + ", ".join(f"{name}: bigint" for name in RangeAudit._fields)
    + ">"
)


class Books(NamedTuple):
    """The router's counts per time window of the ingress topic, and the first wrong offsets."""

    windows: list[AuditWindow]
    samples: list[dict[str, Any]]


# --- gaps and repeats -----------------------------------------------------------------------


class AuditTask(NamedTuple):
    """A range to read; ``part`` is the index of its partition among those audited."""

    part: int
    options: SourceOptions
    whole: Range


class AuditTotals(NamedTuple):
    """The driver's view of all partitions; its size does not grow with the number of batches."""

    pieces: dict[int, list[RangeAudit]]  # by partition, in offset order
    renumbered: dict[int, int]


def audit_topics(
    spark: SparkSession, api: BrokerApi, where: BrokerAddress, topics: Sequence[str]
) -> list[PartitionAudit]:
    """Audit every partition of the topics."""
    looks: list[AuditTask] = []
    described: list[tuple[TopicPartition, tuple[int, int], bool]] = []
    for topic in topics:
        options = source_options(api, where, topic)
        found = api.topic(topic)
        compacted = "compact" in found["config"].get("cleanup.policy", "delete")
        with open_log(options) as log:
            tps = [TopicPartition(topic, part["partition"]) for part in found["partitions"]]
            for tp, bounds in log.bounds(tps).items():
                part = len(described)
                described.append((tp, (bounds.start, bounds.end), compacted))
                if bounds.start < bounds.end:
                    splits = plan_splits([Range(tp, *bounds)], log.pieces, cores=parallelism(spark))
                    looks += [AuditTask(part, options, split) for split in splits]
    with labelled(spark, f"audit batch headers of {', '.join(topics)}"):
        walked = _walk_all(spark, looks)
    return [
        audit_partition(
            *tp,
            bounds,
            walked.pieces.get(part, []),
            compacted=compacted,
            renumbered=walked.renumbered.get(part, 0),
        )
        for part, (tp, bounds, compacted) in enumerate(described)
    ]


def _walk_all(spark: SparkSession, looks: Sequence[AuditTask]) -> AuditTotals:
    if not looks:
        return AuditTotals({}, {})
    with told():
        rows = patiently(walk_summary(spark, looks).collect)
    pieces: dict[int, list[RangeAudit]] = {}
    for row in sorted(row for row in rows if row["start"] is not None):
        facts = (row["piece"][name] for name in RangeAudit._fields)
        pieces.setdefault(row["part"], []).append(RangeAudit(*facts))
    return AuditTotals(pieces, {row["part"]: row["again"] for row in rows if row["start"] is None})


def walk_summary(spark: SparkSession, looks: Sequence[AuditTask]) -> DataFrame:
    """Return a row per range with its result, and one per partition with its repeated sequences.

    Finding a repeated producer sequence takes all batches of a partition, so Spark groups them and
    the driver receives only counts.
    """
    from pyspark.sql import functions as F  # noqa: N812

    walked = spread(spark, walk_task, looks, _WALKED)
    numbers = walked.groupBy("part", "start", *_NUMBER).agg(
        F.count(F.lit(1)).alias("batches"), F.first("piece").alias("piece")
    )
    again = F.sum(F.col("batches") - 1).alias("again")
    return numbers.groupBy("part", "start").agg(again, F.first("piece").alias("piece"))


def walk_task(look: AuditTask) -> Iterator[Any]:
    """Runs on an executor: read a range's batch headers; yields sequences, then the result."""
    _, options, whole = look
    first = reached = -1
    records = markers = thinned = repeats = holes = 0
    numbers: list[tuple[int, int, int]] = []
    with open_log(options) as log:
        for chunk in log.chunks(whole, None):
            for header in parse_headers(chunk.data):
                if header.base_offset < whole.start and header.end_offset <= whole.start:
                    continue
                if header.base_offset >= whole.end:
                    break
                span = header.end_offset - header.base_offset
                first = header.base_offset if first < 0 else first
                if reached >= 0 and header.base_offset > reached:
                    holes += header.base_offset - reached
                repeats += 0 <= header.base_offset < reached
                markers += span if header.is_control else 0
                records += 0 if header.is_control else header.count
                thinned += 0 if header.is_control else span - header.count
                if header.base_sequence >= 0 and not header.is_control:
                    producer = header.producer_id, header.producer_epoch
                    numbers.append((*producer, header.base_sequence))
                reached = max(reached, header.end_offset)
            if len(numbers) >= NUMBERS_HELD:
                yield _rows(look.part, numbers=numbers)
                numbers = []
    if numbers:
        yield _rows(look.part, numbers=numbers)
    piece = RangeAudit(first, reached, records, markers, thinned, holes, repeats)
    yield _rows(look.part, start=whole.start, piece=piece)


def _rows(
    part: int,
    *,
    numbers: Sequence[tuple[int, int, int]] = (),
    start: int | None = None,
    piece: RangeAudit | None = None,
) -> Any:
    """Build rows of ``_WALKED``: one for each sequence number, or one with the range's result."""
    import pyarrow as pa

    kinds = dict.fromkeys(("part", "start", *_NUMBER), pa.int64())
    kinds["piece"] = pa.struct([(name, pa.int64()) for name in RangeAudit._fields])
    rows: list[dict[str, Any]] = [
        {"part": part, "start": start, **dict(zip(_NUMBER, number, strict=True))}
        for number in numbers
    ] or [{"part": part, "start": start, "piece": piece and piece._asdict()}]
    return pa.RecordBatch.from_pylist(rows, pa.schema(kinds.items()))


# --- the router's counts --------------------------------------------------------------------


def balance_books(
    spark: SparkSession,
    api: BrokerApi,
    where: BrokerAddress,
    *,
    ignored: Sequence[str] = (),
    window: str = WINDOW,
) -> Books | None:
    """Check by source offset that ingested = routed + dead-lettered.

    Returns None if no router has run, or if there is no other topic to compare with.
    """
    source = str(api.status()["ingress_topic"])
    counts = api.partition_counts()
    passed = api.positions(source, ROUTER) if source in counts else {}
    others = sorted(set(counts) - {source, *ignored})
    if not passed or not others:
        return None
    with labelled(spark, f"balance the books of {source}"):
        marked = _marked(_entries(spark, api, where, source, others), window)
        joined = _judged(marked, passed, _floors(spark, api, where, source, others), api, source)
        return _sum_up(joined)


def _entries(
    spark: SparkSession, api: BrokerApi, where: BrokerAddress, source: str, others: Sequence[str]
) -> DataFrame:
    """Return (kind, partition, offset, timestamp) of every ingested record and of every copy."""
    from pyspark.sql import functions as F  # noqa: N812

    own = _read(spark, api, where, [source], "partition,offset,timestamp").select(
        F.lit("ingested").alias("kind"), "partition", "offset", "timestamp"
    )
    return own.unionByName(_copies(spark, api, where, source, others).drop("topic", "own_offset"))


def _copies(
    spark: SparkSession, api: BrokerApi, where: BrokerAddress, source: str, others: Sequence[str]
) -> DataFrame:
    """Return routed records and dead letters with the source offset from their headers."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = _read(spark, api, where, others, "topic,partition,offset,timestamp,headers")

    is_dead = header_text(deadletters.TOPIC) == source
    is_routed = header_text(provenance.SOURCE_TOPIC) == source
    kind = F.when(is_dead, "dead").when(is_routed, "routed")
    at = F.when(is_dead, header_text(deadletters.PARTITION)).otherwise(
        header_text(provenance.SOURCE_PARTITION)
    )
    offset = F.when(is_dead, header_text(deadletters.OFFSET)).otherwise(
        header_text(provenance.SOURCE_OFFSET)
    )
    return frame.select(
        kind.alias("kind"),
        at.try_cast("int").alias("partition"),
        offset.try_cast("bigint").alias("offset"),
        "timestamp",
        "topic",
        F.col("offset").alias("own_offset"),
    ).where("kind is not null and partition is not null and offset is not null")


def _marked(entries: DataFrame, window: str) -> DataFrame:
    """Return one row per source offset: the number of records of each kind, and its window."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = [
        F.count_if(F.col("kind") == kind).alias(kind) for kind in ("ingested", "routed", "dead")
    ]
    grouped = entries.groupBy("partition", "offset").agg(
        *counts, F.min("timestamp").alias("timestamp")
    )
    return grouped.withColumn("window", F.window("timestamp", window)["start"].cast("string"))


def _floors(
    spark: SparkSession, api: BrokerApi, where: BrokerAddress, source: str, others: Sequence[str]
) -> dict[int, int]:
    """Return, per source partition, the offset below which copies may have been removed.

    RECLAIM or compaction may have removed them, so a missing copy there is no loss.
    """
    worn = {
        topic: "compact" in found["config"].get("cleanup.policy", "delete")
        for topic in others
        if (found := api.topic(topic))
        and (
            "compact" in found["config"].get("cleanup.policy", "delete")
            or any(part["log_start_offset"] > 0 for part in found["partitions"])
        )
    }
    if not worn:
        return {}
    from pyspark.sql import functions as F  # noqa: N812

    copies = _copies(spark, api, where, source, sorted(worn))
    edges = copies.groupBy("topic", "partition").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    floors: dict[int, int] = {}
    for row in edges.collect():
        edge = row["last"] + 1 if worn[row["topic"]] else row["first"]
        floors[row["partition"]] = max(floors.get(row["partition"], 0), edge)
    return floors


def _judged(
    marked: DataFrame, passed: dict[int, int], floors: dict[int, int], api: BrokerApi, source: str
) -> DataFrame:
    """Give each source offset a verdict."""
    from pyspark.sql import functions as F  # noqa: N812

    starts = {
        part["partition"]: part["log_start_offset"] for part in api.topic(source)["partitions"]
    }

    def per_partition(values: dict[int, int]) -> Any:
        verdict = F.lit(0).cast("bigint")
        for partition, value in values.items():
            verdict = F.when(F.col("partition") == partition, F.lit(value)).otherwise(verdict)
        return verdict

    copies = F.col("routed") + F.col("dead")
    is_here = F.col("ingested") > 0
    is_gone = F.col("offset") < per_partition(starts)
    verdict = (
        F.when(copies > 1, "duplicated")
        .when(~is_here & ~is_gone, "strangers")
        .when((copies == 0) & (F.col("offset") >= per_partition(passed)), "pending")
        .when((copies == 0) & (F.col("offset") < per_partition(floors)), "expired")
        .when(copies == 0, "missing")
        .otherwise("fine")
    )
    return marked.withColumn("verdict", verdict)


def _sum_up(judged: DataFrame) -> Books:
    from pyspark.sql import functions as F  # noqa: N812

    kinds = ("pending", "expired", "missing", "duplicated", "strangers")
    summed = judged.groupBy("window").agg(
        F.sum("ingested").alias("ingested"),
        F.sum("routed").alias("routed"),
        F.sum("dead").alias("dead_lettered"),
        *[F.count_if(F.col("verdict") == kind).alias(kind) for kind in kinds],
    )
    wrong = judged.where(F.col("verdict").isin("missing", "duplicated", "strangers"))
    samples = wrong.orderBy("partition", "offset").limit(20)
    return Books(
        [AuditWindow(**row.asDict()) for row in summed.orderBy("window").collect()],
        [row.asDict() for row in samples.select("verdict", "partition", "offset").collect()],
    )


def _read(
    spark: SparkSession, api: BrokerApi, where: BrokerAddress, topics: Sequence[str], columns: str
) -> DataFrame:
    path = source_options(api, where, topics[0]).path
    options = {
        **COMMITTED,
        "subscribe": ",".join(topics),
        "columns": columns,
        "kafka.bootstrap.servers": where.servers or "",
    }
    if cores := told_parallelism(spark):
        options["parallelism"] = str(cores)
    return (
        spark.read.format("cordwood").options(**options, **({"path": path} if path else {})).load()
    )
