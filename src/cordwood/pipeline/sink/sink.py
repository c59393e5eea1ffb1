"""``df.write`` and ``df.writeStream.format("cordwood")``: rows become records, exactly once.

Tasks encode their rows as batches and stage them. On commit, the driver asks the broker to append
them as one delivery, identified by (query, batch). Spark stores a streaming query's id in its
checkpoint, passes it to tasks as a local property, and repeats a batch only under the same number.
So a batch that is committed twice after a crash is appended once. A batch write gets a random id;
inside ``foreachBatch``, the options ``queryId`` and ``batchId`` make it idempotent in the same way.

This module only implements Spark's writer classes: ``options`` validates options and columns, and
``runtime.staging`` writes the staged files.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cordwood.batch.columns import Columns, HeaderSpans, Spans
from cordwood.batch.key_groups import NULL, partitions_of
from cordwood.clock import SystemClock
from cordwood.errors import InvalidOption, InvalidRecord
from cordwood.model import is_topic_name
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.staging import StagingTarget, StagingWriter, name_job
from cordwood.pipeline.runtime.targets import Targets
from cordwood.pipeline.sink.options import SinkOptions, check_columns
from cordwood.plural import plural
from cordwood.protocol.api.deliveries import Deliver, DeliveryPart

QUERY_PROPERTY: Final = "sql.streaming.queryId"  # set by Spark for every task of a streaming query
BATCH_PROPERTY: Final = "streaming.sql.batchId"


class StagedRows(WriterCommitMessage):
    """Commit message of one task: the query and the staged parts; sent to the driver."""

    def __init__(self, query: str, job: str, parts: Sequence[DeliveryPart]) -> None:
        """Takes plain values only, as it is pickled."""
        self.query = query
        self.job = job
        self.parts = list(parts)


class TopicWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Reject rows that cannot become records before any task runs."""
        _check(options, schema, overwrite=overwrite)
        self._options = options
        self._query = options.query or f"write-{secrets.token_hex(8)}"
        self._job = name_job(self._query, options.batch or 0)
        self._plan = SinkPlan.of(options)

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage the rows of one task; runs on an executor."""
        return StagedRows(self._query, self._job, self._plan.stage(iterator, self._job))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deliver the staged rows; runs on the driver after every task has staged."""
        is_once = self._options.query is None  # the id is random, so it cannot be used again
        _deliver(self._options, messages, self._options.batch or 0, once=is_once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Discard the staged files; runs on the driver when a task failed."""
        self._plan.staging.discard(self._job)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write; Spark creates a new one for each commit, so it keeps no state."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Reject rows that cannot become records before any task runs."""
        _check(options, schema, overwrite=overwrite)
        self._options = options
        self._plan: SinkPlan | None = None

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage the rows of one task; runs on an executor."""
        context = TaskContext.get()
        assert context is not None, "a task has its context"
        query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        assert query is not None, "Spark names the query of a streaming task"
        assert batch is not None, "Spark numbers the batch of a streaming task"
        self._plan = self._plan or SinkPlan.of(self._options)
        job = f"stream-{query}.{batch}"
        return StagedRows(f"stream-{query}", job, self._plan.stage(iterator, job))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Deliver the staged rows; runs on the driver and is repeated after a crash."""
        _deliver(self._options, messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's
    ) -> None:
        """Discard the staged files; runs on the driver when a task failed."""
        jobs = {message.job for message in messages if isinstance(message, StagedRows)}
        if jobs:
            staging = SinkPlan.of(self._options).staging
            for job in jobs:
                staging.discard(job)


class SinkPlan:
    """What tasks need from the broker: where to stage files, and the target topics."""

    def __init__(self, options: SinkOptions, staging: StagingTarget, targets: Targets) -> None:
        """Takes plain values only, as a plan is pickled for every task."""
        self._options = options
        self.staging = staging
        self._targets = targets

    @classmethod
    def of(cls, options: SinkOptions) -> SinkPlan:
        """Ask the broker for the staging directory and its topics."""
        with closing(BrokerApi(options.where)) as api:
            return cls(options, StagingTarget.of(api), Targets.of(api))

    def partition_count(self, topic: str) -> int:
        """The topic's number of partitions, or the number it will be created with."""
        return self._targets.get(topic).partitions

    def stage(self, batches: Iterator[Any], job: str) -> Sequence[DeliveryPart]:
        """Write rows to staged files; returns the parts in order."""
        now_ms = SystemClock().now_ms()
        with StagingWriter(self.staging, job, self._targets, codec=self._options.codec) as writer:
            for batch in batches:
                for topic, rows in self._by_topic(batch):
                    self._add(writer, topic, rows, now_ms)
            return writer.flush()

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any]]:
        import pyarrow.compute as pc

        if self._options.topic is not None:
            if batch.num_rows:
                yield self._options.topic, batch
            return
        column = batch.column("topic")
        for topic in pc.unique(column).to_pylist():
            if topic is None or not is_topic_name(topic):
                raise InvalidRecord(
                    f"column topic has {topic!r}, which is not a valid topic name; set the option "
                    "topic, or filter such rows"
                )
            yield topic, batch.filter(pc.equal(column, topic))

    def _add(self, writer: StagingWriter, topic: str, batch: Any, now_ms: int) -> None:
        """Divide one topic's rows among its partitions."""
        columns = _columns(batch, now_ms)
        count = self.partition_count(topic)
        partitions = self._partitions(topic, batch, columns, count)
        for partition in np.unique(partitions).tolist():
            rows = np.flatnonzero(partitions == partition)
            chosen = columns if len(rows) == len(columns) else columns.chosen(rows)
            writer.add(topic, partition, chosen)

    def _partitions(self, topic: str, batch: Any, columns: Columns, count: int) -> Any:
        """The column ``partition`` if not null, else by key as Kafka does, else one per task."""
        context = TaskContext.get()
        own = context.partitionId() % count if context else 0
        assert columns.keys is not None, "keys are spans, null ones too"
        partitions = partitions_of(columns.keys, count)
        partitions[partitions == NULL] = own
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            given = column.fill_null(NULL).to_numpy(zero_copy_only=False).astype(np.int64)
            wrong = given[~column.is_null().to_numpy(zero_copy_only=False)]
            wrong = wrong[(wrong < 0) | (wrong >= count)]
            if len(wrong):
                raise InvalidRecord(
                    f"column partition has {wrong[0]}, but topic {topic} has "
                    f"{plural(count, 'partition')}"
                )
            partitions = np.where(given == NULL, partitions, given)
        return partitions


def _check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption('a topic can only be appended to, not overwritten; use mode("append")')
    check_columns(schema.fields, options)


def _columns(batch: Any, now_ms: int) -> Columns:
    """The rows of an Arrow batch as columns that reference its buffers without a copy."""
    from cordwood.batch.arrow import columns_from_arrow

    names = batch.schema.names
    rows = batch.num_rows
    columns = columns_from_arrow(
        offsets=np.arange(rows, dtype=np.int64),
        timestamps_ms=np.full(rows, now_ms, np.int64),
        keys=batch.column("key") if "key" in names else None,
        values=batch.column("value"),
        headers=batch.column("headers") if "headers" in names else None,
    )
    if columns.keys is not None:
        return columns
    return Columns.of(
        columns.offsets,
        np.full(rows, now_ms, np.int64),
        keys=Spans.nulls(rows),
        values=columns.values,
        headers=columns.headers or HeaderSpans.none(rows),
    )


def _deliver(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch: int,
    *,
    once: bool = False,
) -> None:
    """Ask the broker to append the staged parts, in the order of the tasks."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    parts = tuple(part for message in staged for part in message.parts)
    if not parts:
        return
    (query,), (job,) = {message.query for message in staged}, {message.job for message in staged}
    with closing(BrokerApi(options.where)) as api:
        api.deliver(Deliver(query, batch, job, parts, once=once))
