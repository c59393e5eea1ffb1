"""The Spark data source of the router: it plans ranges, and reading a range routes it.

A task's only output row names the files it staged, so records never pass through the JVM. Bindings
are read again for each micro-batch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from cordwood.decide.routing import ROUTER, Bindings
from cordwood.pipeline.route.executor import RecordRouter, RoutingTable
from cordwood.pipeline.route.job import FORMAT, RouteJob
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.staging import StagingWriter
from cordwood.pipeline.runtime.targets import Targets
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.rows import decode_chunk
from cordwood.pipeline.source.source import Split, TopicStreamReader
from cordwood.protocol.api.readers import ListRoutes, RouteRow

IDLE_WAIT_S: Final = 1.0  # how long one call of ``latestOffset`` waits for new records
POLL_S: Final = 0.01
IDLE_POLL_S: Final = 0.04  # after ``BUSY_S`` without records, so that an idle query costs little
BUSY_S: Final = 5.0
SCHEMA: Final = "partition int, start bigint, end bigint, job string, parts string"
_WANTED: Final = frozenset({"offset", "timestamp", "key", "value", "headers"})


class RouteSplit(InputPartition):
    """One task: a range, and the routing table that decides where its records go."""

    def __init__(self, split: Split, routing_table: RoutingTable, job: str) -> None:
        """Holds plain values only, because it is pickled for every task."""
        super().__init__(None)
        self.split = split
        self.routing_table = routing_table
        self.job = job


class RouteSource(DataSource):
    """The Spark data source of ``RouteReader``; the job is passed as an option."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.readStream.format``."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of a task's row: the range it routed and what it staged."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader for ``spark.readStream``."""
        return RouteReader(msgspec.json.decode(self.options["job"], type=RouteJob))


class RouteReader(DataSourceStreamReader):
    """Plans ranges with ``TopicStreamReader``; reading a range routes it."""

    def __init__(self, job: RouteJob) -> None:
        """Sends no request yet."""
        self._job = job
        self._reader = TopicStreamReader(job.source_options(), StructType())
        self._api: BrokerApi | None = None
        self._active_s = 0.0  # when records were last found

    # --- called by Spark on the driver -------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's
        """Return the position of the cursor."""
        cursors = self._broker().positions(self._job.topic, ROUTER)
        begin = {self._job.topic: {str(at): offset for at, offset in sorted(cursors.items())}}
        return self._reader.with_topic_ids(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return the limit of a micro-batch, ``records_max``."""
        return ReadMaxRows(self._job.records_max)

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, dict[str, int]], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        """Return where the next micro-batch ends.

        Waits up to ``IDLE_WAIT_S`` for records, because a call from Spark costs more than a poll.
        """
        deadline = time.monotonic() + IDLE_WAIT_S
        while True:
            latest = self._reader.latestOffset(start, limit)
            now_s = time.monotonic()
            if latest != start:
                self._active_s = now_s
            if latest != start or now_s > deadline:
                return latest
            time.sleep(POLL_S if now_s - self._active_s < BUSY_S else IDLE_POLL_S)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802 - Spark's
        """Return the end of the topic, so that Spark's progress shows the lag."""
        return self._reader.reportLatestOffset()

    def partitions(
        self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
    ) -> Sequence[InputPartition]:
        """Plan the tasks of one micro-batch with the current bindings."""
        splits = self._reader.partitions(start, end)
        if not splits:
            return []
        routing_table = self._routing_table()
        job = f"{self._job.query}.{secrets.token_hex(6)}"
        return [
            RouteSplit(split, routing_table, job) for split in splits if isinstance(split, Split)
        ]

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        """Do nothing: the delivery has already moved the cursor."""

    def stop(self) -> None:
        """Close connections when the query ends."""
        self._reader.stop()
        if self._api is not None:
            self._api.close()
            self._api = None

    # --- called by Spark on an executor ------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Route the range; yields one row that says what was staged."""
        if isinstance(partition, RouteSplit):  # Spark passes a placeholder if there is no split
            yield route_range(self._job, partition)

    # --- internal ----------------------------------------------------------------------------

    def _broker(self) -> BrokerApi:
        if self._api is None:
            self._api = BrokerApi(
                self._job.staging.where, for_parent=True
            )  # in case Spark's JVM dies
        return self._api

    def _routing_table(self) -> RoutingTable:
        api = self._broker()
        return RoutingTable(
            bindings=parse_bindings(api.call(ListRoutes()).routes, self._job.topic),
            dead_letter_topic=self._job.dead_letter_topic,
            targets=Targets.of(api),
        )


def parse_bindings(rows: Sequence[RouteRow], source: str) -> Bindings:
    """Parse bindings from the rows of the broker's list."""
    topics: dict[str, dict[str, str]] = {"exact": {}, "prefix": {}}
    for row in rows:
        topics[row.kind][row.key] = row.topic
    return Bindings(exact=topics["exact"], prefix=topics["prefix"], source=source)


def route_range(job: RouteJob, task: RouteSplit) -> tuple[Any, ...]:
    """Runs on an executor: read, route and stage one range; returns a row of ``SCHEMA``."""
    tp, start, end = whole = task.split.range
    writer = StagingWriter(job.staging, task.job, task.routing_table.targets)
    with open_log(job.source_options()) as log, writer:
        router = RecordRouter(task.routing_table, writer)
        for chunk in log.chunks(whole, task.split.hint):
            router.route(tp, decode_chunk(chunk, whole, _WANTED))
        parts = writer.flush()
    return tp.partition, start, end, task.job, msgspec.json.encode(parts).decode()
