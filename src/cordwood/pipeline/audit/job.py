"""``audit``: a Spark job that checks partitions for gaps and repeats.

They are found from batch headers alone; ``decide.audit`` defines the verdicts. The job only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.batch.header import parse_headers
from cordwood.decide.audit import PartitionAudit, RangeAudit, audit_partition
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.failure_reasons import patiently, plain_errors
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism
from cordwood.pipeline.runtime.tasks import spread
from cordwood.pipeline.runtime.topic_reads import whole_log_options
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.pipeline.source.splits import plan_splits
from cordwood.protocol.api.topics import TopicDetail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS_HELD: Final = 50_000  # sequence numbers that a task buffers before it emits them
_NUMBER: Final = ("producer", "epoch", "sequence")  # identifies an idempotent producer's batch
_WALKED: Final = (
    "part bigint, start bigint, producer bigint, epoch bigint, sequence bigint, piece struct<"
    + ", ".join(f"{name}: bigint" for name in RangeAudit._fields)
    + ">"
)


class AuditTask(NamedTuple):
    """A range to read; ``part`` is the index of its partition among those audited."""

    part: int
    options: SourceOptions
    whole: Range


class AuditTotals(NamedTuple):
    """The driver's view of all partitions; its size does not grow with the number of batches."""

    pieces: dict[int, list[RangeAudit]]  # by partition, in offset order
    renumbered: dict[int, int]


def is_compacted(topic: TopicDetail) -> bool:
    """Whether the policy of a topic, as the broker describes it, removes superseded records."""
    return "compact" in topic.config.get("cleanup.policy", "delete")


def audit_topics(
    spark: SparkSession, api: BrokerApi, topics: Sequence[str]
) -> list[PartitionAudit]:
    """Audit every partition of the topics."""
    tasks: list[AuditTask] = []
    described: list[tuple[TopicPartition, tuple[int, int], bool]] = []
    for topic in topics:
        options = whole_log_options(api, topic)
        answer = api.topic(topic)
        compacted = is_compacted(answer)
        with open_log(options) as log:
            tps = [TopicPartition(topic, part.partition) for part in answer.partitions]
            for tp, bounds in log.bounds(tps).items():
                part = len(described)
                described.append((tp, (bounds.start, bounds.end), compacted))
                if bounds.start < bounds.end:
                    splits = plan_splits([Range(tp, *bounds)], log.pieces, cores=parallelism(spark))
                    tasks += [AuditTask(part, options, split) for split in splits]
    with labelled(spark, f"audit batch headers of {', '.join(topics)}"):
        walked = _walk_all(spark, tasks)
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


def _walk_all(spark: SparkSession, tasks: Sequence[AuditTask]) -> AuditTotals:
    if not tasks:
        return AuditTotals({}, {})
    with plain_errors():
        rows = patiently(walk_summary(spark, tasks).collect)
    pieces: dict[int, list[RangeAudit]] = {}
    for row in sorted(row for row in rows if row["start"] is not None):
        pieces.setdefault(row["part"], []).append(RangeAudit(**row["piece"].asDict()))
    return AuditTotals(pieces, {row["part"]: row["again"] for row in rows if row["start"] is None})


def walk_summary(spark: SparkSession, tasks: Sequence[AuditTask]) -> DataFrame:
    """Return a row per range with its result, and one per partition with its repeated sequences.

    Finding a repeated producer sequence takes all batches of a partition, so Spark groups them and
    the driver receives only counts.
    """
    from pyspark.sql import functions as F  # noqa: N812

    walked = spread(spark, walk_task, tasks, _WALKED)
    numbers = walked.groupBy("part", "start", *_NUMBER).agg(
        F.count(F.lit(1)).alias("batches"), F.first("piece").alias("piece")
    )
    again = F.sum(F.col("batches") - 1).alias("again")
    return numbers.groupBy("part", "start").agg(again, F.first("piece").alias("piece"))


def walk_task(task: AuditTask) -> Iterator[Any]:
    """Runs on an executor: read a range's batch headers; yields sequences, then the result."""
    part, options, whole = task
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
                yield _rows(part, numbers=numbers)
                numbers = []
    if numbers:
        yield _rows(part, numbers=numbers)
    piece = RangeAudit(first, reached, records, markers, thinned, holes, repeats)
    yield _rows(part, start=whole.start, piece=piece)


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
