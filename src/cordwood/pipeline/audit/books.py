"""``audit``: a Spark job that checks that the router lost and repeated no record.

It joins the offsets of the ingress topic with the source offsets in the headers of routed records
(``src.*``) and dead letters (``dlq.*``). ``decide.audit`` defines the verdicts. The job only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.decide import deadletters, provenance
from cordwood.decide.audit import AuditWindow
from cordwood.decide.routing import ROUTER
from cordwood.pipeline.audit.job import is_compacted
from cordwood.pipeline.replay.letters import header_text
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.topic_reads import read_options, read_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW: Final = "1 day"


class Books(NamedTuple):
    """The router's counts per time window of the ingress topic, and the first wrong offsets."""

    windows: list[AuditWindow]
    samples: list[dict[str, Any]]


def balance_books(
    spark: SparkSession,
    api: BrokerApi,
    *,
    ignored: Sequence[str] = (),
    window: str = WINDOW,
) -> Books | None:
    """Check by source offset that ingested = routed + dead-lettered.

    Returns None if no router has run, or if there is no other topic to compare with.
    """
    source = api.status().ingress_topic
    counts = api.partition_counts()
    passed = api.positions(source, ROUTER) if source in counts else {}
    others = sorted(set(counts) - {source, *ignored})
    if not passed or not others:
        return None
    with labelled(spark, f"balance the books of {source}"):
        marked = _marked(_entries(spark, api, source, others), window)
        joined = _judged(marked, passed, _floors(spark, api, source, others), api, source)
        return _sum_up(joined)


def _entries(spark: SparkSession, api: BrokerApi, source: str, others: Sequence[str]) -> DataFrame:
    """Return (kind, partition, offset, timestamp) of every ingested record and of every copy."""
    from pyspark.sql import functions as F  # noqa: N812

    own = _read(spark, api, [source], "partition,offset,timestamp").select(
        F.lit("ingested").alias("kind"), "partition", "offset", "timestamp"
    )
    return own.unionByName(_copies(spark, api, source, others).drop("topic", "own_offset"))


def _copies(spark: SparkSession, api: BrokerApi, source: str, others: Sequence[str]) -> DataFrame:
    """Return routed records and dead letters with the source offset from their headers."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = _read(spark, api, others, "topic,partition,offset,timestamp,headers")

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
    spark: SparkSession, api: BrokerApi, source: str, others: Sequence[str]
) -> dict[int, int]:
    """Return, per source partition, the offset below which copies may have been removed.

    RECLAIM or compaction may have removed them, so a missing copy there is no loss.
    """
    compacted: dict[str, bool] = {}  # by topic; only topics that may lack copies
    for topic in others:
        described = api.topic(topic)
        is_reclaimed = any(part.log_start_offset > 0 for part in described.partitions)
        if is_compacted(described) or is_reclaimed:
            compacted[topic] = is_compacted(described)
    if not compacted:
        return {}
    from pyspark.sql import functions as F  # noqa: N812

    copies = _copies(spark, api, source, sorted(compacted))
    edges = copies.groupBy("topic", "partition").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    floors: dict[int, int] = {}
    for row in edges.collect():
        edge = row["last"] + 1 if compacted[row["topic"]] else row["first"]
        floors[row["partition"]] = max(floors.get(row["partition"], 0), edge)
    return floors


def _judged(
    marked: DataFrame, passed: dict[int, int], floors: dict[int, int], api: BrokerApi, source: str
) -> DataFrame:
    """Give each source offset a verdict."""
    from pyspark.sql import functions as F  # noqa: N812

    starts = {part.partition: part.log_start_offset for part in api.topic(source).partitions}

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


def _read(spark: SparkSession, api: BrokerApi, topics: Sequence[str], columns: str) -> DataFrame:
    return read_topics(spark, read_options(StagingTarget.of(api), *topics, columns=columns))
