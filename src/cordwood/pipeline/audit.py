"""``audit``: walk every partition's batches, and balance the router's books, on Spark.

Gaps and repeats come from batch headers alone. The books join the ingress topic's offsets with the
source offsets that travel in the headers of routed records (``src.*``) and dead letters
(``dlq.*``). What the verdicts mean is in ``decide.audit``. Reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.batch.header import parse_headers
from cordwood.decide import deadletters, provenance
from cordwood.decide.audit import PartitionAudit, Piece, Window, audit_partition
from cordwood.model import TopicPartition
from cordwood.pipeline.archive import source_options
from cordwood.pipeline.broker import BrokerApi, Where
from cordwood.pipeline.logs import open_log
from cordwood.pipeline.offsets import Range
from cordwood.pipeline.options import COMMITTED, SourceOptions
from cordwood.pipeline.replay import header_text
from cordwood.pipeline.splits import plan_splits
from cordwood.pipeline.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUTER: Final = "route"  # the reader whose cursor says what the router has passed
WINDOW: Final = "1 day"


class Books(NamedTuple):
    """Windows of the ingress topic, and the first few offsets that are wrong."""

    windows: list[Window]
    samples: list[dict[str, Any]]


# --- gaps and repeats -----------------------------------------------------------------------


def audit_topics(
    spark: SparkSession, api: BrokerApi, where: Where, topics: Sequence[str]
) -> list[PartitionAudit]:
    """Every partition of the topics."""
    looks: list[tuple[SourceOptions, Range]] = []
    described: list[tuple[TopicPartition, tuple[int, int], bool]] = []
    for topic in topics:
        options = source_options(api, where, topic)
        found = api.topic(topic)
        compacted = "compact" in found["config"].get("cleanup.policy", "delete")
        with open_log(options) as log:
            tps = [TopicPartition(topic, part["partition"]) for part in found["partitions"]]
            for tp, bounds in log.bounds(tps).items():
                described.append((tp, (bounds.start, bounds.end), compacted))
                if bounds.start < bounds.end:
                    splits = plan_splits([Range(tp, *bounds)], log.pieces)
                    looks += [(options, split) for split in splits]
    pieces: dict[TopicPartition, list[Piece]] = {}
    for (_, whole), piece in zip(looks, run_tasks(spark, walk_task, looks), strict=True):
        pieces.setdefault(whole.tp, []).append(piece)
    return [
        audit_partition(*tp, bounds, pieces.get(tp, []), compacted=compacted)
        for tp, bounds, compacted in described
    ]


def walk_task(task: tuple[SourceOptions, Range]) -> Piece:
    """On an executor: the batches of a range, by their headers."""
    options, whole = task
    first = reached = -1
    records = markers = thinned = repeats = renumbered = 0
    holes: list[tuple[int, int]] = []
    numbers: set[tuple[int, int, int]] = set()
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
                    holes.append((reached, header.base_offset))
                repeats += 0 <= header.base_offset < reached
                markers += span if header.is_control else 0
                records += 0 if header.is_control else header.count
                thinned += 0 if header.is_control else span - header.count
                number = (header.producer_id, header.producer_epoch, header.base_sequence)
                if header.base_sequence >= 0 and not header.is_control:
                    renumbered += number in numbers
                    numbers.add(number)
                reached = max(reached, header.end_offset)
    return Piece(
        first,
        reached,
        records,
        markers,
        thinned,
        tuple(holes),
        repeats,
        frozenset(numbers),
        renumbered,
    )


# --- the router's books ---------------------------------------------------------------------


def balance_books(
    spark: SparkSession,
    api: BrokerApi,
    where: Where,
    *,
    ignored: Sequence[str] = (),
    window: str = WINDOW,
) -> Books | None:
    """Ingested = routed + dead-lettered, by source offset; None where no router has run."""
    source = str(api.status()["ingress_topic"])
    counts = api.partition_counts()
    passed = api.positions(source, ROUTER) if source in counts else {}
    others = sorted(set(counts) - {source, *ignored})
    if not passed or not others:
        return None
    marked = _marked(_entries(spark, api, where, source, others), window)
    joined = _judged(marked, passed, _floors(spark, api, where, source, others), api, source)
    return _sum_up(joined)


def _entries(
    spark: SparkSession, api: BrokerApi, where: Where, source: str, others: Sequence[str]
) -> DataFrame:
    """(kind, partition, offset, timestamp): what the ingress topic holds, and where copies are."""
    from pyspark.sql import functions as F  # noqa: N812

    own = _read(spark, api, where, [source], "partition,offset,timestamp").select(
        F.lit("ingested").alias("kind"), "partition", "offset", "timestamp"
    )
    return own.unionByName(_copies(spark, api, where, source, others).drop("topic", "own_offset"))


def _copies(
    spark: SparkSession, api: BrokerApi, where: Where, source: str, others: Sequence[str]
) -> DataFrame:
    """Routed records and dead letters, by the source offset their headers name."""
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
    """One row per source offset: how often each kind was found, and its window."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = [
        F.count_if(F.col("kind") == kind).alias(kind) for kind in ("ingested", "routed", "dead")
    ]
    grouped = entries.groupBy("partition", "offset").agg(
        *counts, F.min("timestamp").alias("timestamp")
    )
    return grouped.withColumn("window", F.window("timestamp", window)["start"].cast("string"))


def _floors(
    spark: SparkSession, api: BrokerApi, where: Where, source: str, others: Sequence[str]
) -> dict[int, int]:
    """Per source partition: below this offset, copies may have been reclaimed or compacted away."""
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
    """Each source offset with a verdict."""
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
        [Window(**row.asDict()) for row in summed.orderBy("window").collect()],
        [row.asDict() for row in samples.select("verdict", "partition", "offset").collect()],
    )


def _read(
    spark: SparkSession, api: BrokerApi, where: Where, topics: Sequence[str], columns: str
) -> DataFrame:
    path = source_options(api, where, topics[0]).path
    options = {
        **COMMITTED,
        "subscribe": ",".join(topics),
        "columns": columns,
        "kafka.bootstrap.servers": where.servers or "",
    }
    return (
        spark.read.format("cordwood").options(**options, **({"path": path} if path else {})).load()
    )
