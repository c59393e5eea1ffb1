"""Routing: the streaming query from the ingress topic to the routes, exactly once.

Records never pass through the JVM. The query's source plans ranges of offsets. The task that reads
a range also routes it and stages the result (``executor``); its only output row names the staged
files. The driver then asks the broker to append all parts of the micro-batch and to move the cursor
of the reader ``route``, in one step. Meanwhile the tasks of the next micro-batch run.

The cursor is the query's only position. A delivery names the offsets it starts from, and the broker
accepts it only if the cursor is there. So no record is routed twice or left out, whichever process
dies, even when two drivers run at once. Spark's checkpoint is temporary: each start uses a new one
and begins at the cursor.

Bindings are read again for each micro-batch. Records in a route keep the order of their source
partition.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from cordwood.decide.routing import Bindings
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi, Cursor, Part
from cordwood.pipeline.runtime.failure_reasons import our_error, plain_reason
from cordwood.pipeline.runtime.session import is_remote, told_parallelism
from cordwood.pipeline.runtime.staging import StagingTarget, StagingWriter
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.options import COMMITTED, SourceOptions, parse_options
from cordwood.pipeline.source.source import Split, TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger("cordwood.pipeline")

READER: Final = "route"
FORMAT: Final = "cordwood-route"
RECORDS_MAX: Final = 1_000_000  # per micro-batch: bounds staged data and work repeated on failure
TASK_RECORDS_MAX: Final = 200_000  # so that several cores share a large micro-batch
IDLE_WAIT_S: Final = 1.0  # how long one call of ``latestOffset`` waits for new records
POLL_S: Final = 0.01
IDLE_POLL_S: Final = 0.04  # after ``BUSY_S`` without records, so that an idle query costs little
BUSY_S: Final = 5.0
SCRATCH: Final = "cordwood-route-"
SCHEMA: Final = "partition int, start bigint, end bigint, job string, parts string"
_WANTED: Final = frozenset({"offset", "timestamp", "key", "value", "headers"})


@dataclass(frozen=True, slots=True)
class RouteJob:
    """What to route, and where to stage it; small and picklable."""

    where: BrokerAddress
    topic: str
    dead_letter_topic: str
    staging: StagingTarget
    topic_id: str  # id of the routed topic: if it is created again, the cursor is a different one
    records_max: int = RECORDS_MAX
    parallelism: int | None = None  # how many tasks the executors run at the same time

    @property
    def query(self) -> str:
        """Name of the query in deliveries."""
        return f"{READER}.{self.topic}"

    def source_options(self) -> SourceOptions:
        """Return options that read segment files if reachable, else use Kafka.

        Records that are no longer in the log do not fail the query.
        """
        said = {
            **COMMITTED,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": str(self.records_max),
            "maxRecordsPerPartition": str(TASK_RECORDS_MAX),
        }
        if self.staging.is_reachable():
            said["path"] = self.staging.data
        if self.where.servers:
            said["kafka.bootstrap.servers"] = self.where.servers
        if self.parallelism:
            said["parallelism"] = str(self.parallelism)
        return parse_options(said, streaming=True)


class RouteSplit(InputPartition):
    """One task: a range, and the routing table that decides where its records go."""

    def __init__(self, split: Split, routing_table: Any, job: str) -> None:
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
        return RouteReader(_parse_job(self.options["job"]))


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
        stands = self._broker().positions(self._job.topic, READER)
        begin = {self._job.topic: {str(at): offset for at, offset in sorted(stands.items())}}
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
            self._api = BrokerApi(self._job.where, for_parent=True)  # in case Spark's JVM dies
        return self._api

    def _routing_table(self) -> Any:
        from cordwood.pipeline.route.executor import RoutingTable
        from cordwood.pipeline.sink.targets import Targets

        api = self._broker()
        return RoutingTable(
            bindings=parse_bindings(api.bindings(), self._job.topic),
            dead_letter_topic=self._job.dead_letter_topic,
            targets=Targets.of(api),
        )


def parse_bindings(rows: Sequence[Mapping[str, str]], source: str) -> Bindings:
    """Parse bindings from the rows of the broker's list."""
    found: dict[str, dict[str, str]] = {"exact": {}, "prefix": {}}
    for row in rows:
        found[row["kind"]][row["key"]] = row["topic"]
    return Bindings(exact=found["exact"], prefix=found["prefix"], source=source)


def route_range(job: RouteJob, task: RouteSplit) -> tuple[Any, ...]:
    """Runs on an executor: read, route and stage one range; returns a row of ``SCHEMA``."""
    from cordwood.batch.columns import decode_columns
    from cordwood.pipeline.route.executor import Router

    tp, start, end = whole = task.split.range
    outbox = StagingWriter(job.staging, task.job, task.routing_table.targets)
    with open_log(job.source_options()) as log, outbox:
        router = Router(task.routing_table, outbox)
        for chunk in log.chunks(whole, task.split.hint):
            try:
                columns = decode_columns(
                    chunk.data,
                    start_offset=chunk.start_offset,
                    end_offset=end,
                    wanted=_WANTED,
                    aborted=chunk.aborted,
                )
            except CorruptBatch as error:
                raise CorruptionError(
                    f"{tp}, offsets {chunk.start_offset} to {chunk.end_offset}: {error}; run "
                    "`cordwood segment verify`"
                ) from None
            router.route(tp, columns)
        parts = outbox.flush()
    return tp.partition, start, end, task.job, json.dumps(parts)


# --- the driver -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """Counts and times of a run."""

    batches: int = 0
    routed_records: int = 0
    tasks_ms: int = 0
    delivery_ms: int = 0


class RouteDelivery:
    """Asks the broker to append what the tasks of a micro-batch staged, one batch after another.

    Picklable until its first delivery, because with Spark Connect it runs on the server.
    """

    def __init__(self, job: RouteJob, batch: int) -> None:
        """``batch`` is the number of the first micro-batch to deliver."""
        self.totals = Totals()
        self._job = job
        self._batch = batch
        self._api: BrokerApi | None = None

    def __call__(self, staged: DataFrame, _: int) -> None:
        """Run the tasks of one micro-batch and deliver the result."""
        if rows := self.collect(staged):
            self.hand_over(rows)

    def collect(self, staged: DataFrame) -> list[tuple[Any, ...]]:
        """Run the tasks; returns their rows, sorted by partition and offset."""
        started = time.monotonic()
        rows = sorted(tuple(row) for row in staged.collect())
        self.totals.tasks_ms += int(1000 * (time.monotonic() - started))
        return rows

    def hand_over(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Deliver the records and move the cursors in one step."""
        started = time.monotonic()
        if self._api is None:
            self._api = BrokerApi(self._job.where)
        parts = [Part(*part) for row in rows for part in json.loads(row[4])]
        job = rows[0][3]
        self._api.deliver(self._job.query, self._batch, job, parts, self._cursors(rows))
        self._batch += 1
        self.totals.batches += 1
        self.totals.routed_records += sum(end - start for _, start, end, *_ in rows)
        self.totals.delivery_ms += int(1000 * (time.monotonic() - started))

    def _cursors(self, rows: Sequence[tuple[Any, ...]]) -> list[Cursor]:
        """Return one cursor move per partition, from its first start offset to its last end."""
        spans: dict[int, tuple[int, int]] = {}
        for partition, start, end, *_ in rows:
            first, last = spans.get(partition, (start, start))
            assert start == last, "the ranges of a partition follow each other"
            spans[partition] = first, end
        return [
            Cursor(READER, self._job.topic, partition, start, end, self._job.topic_id)
            for partition, (start, end) in spans.items()
        ]

    def close(self) -> None:
        """Close the connection to the broker."""
        if self._api is not None:
            self._api.close()


class Overlap:
    """Delivers on a separate thread while the next micro-batch's tasks run."""

    def __init__(self, delivery: RouteDelivery) -> None:
        """Starts without a delivery in progress."""
        self._delivery = delivery
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-deliver")
        self._newest: Future[None] | None = None  # all earlier ones have succeeded

    def __call__(self, staged: DataFrame, _: int) -> None:
        """Run one micro-batch and start its delivery once the previous one has succeeded.

        Raises the previous delivery's error, which ends the query; the next start begins at the
        cursor.
        """
        rows = self._delivery.collect(staged)
        if self._newest is not None:
            self._newest.result()
        if rows:
            self._newest = self._thread.submit(self._delivery.hand_over, rows)

    def error(self) -> BaseException | None:
        """Return the error of the newest delivery, if it has failed."""
        newest = self._newest
        return newest.exception() if newest is not None and newest.done() else None

    def close(self) -> None:
        """Wait for the delivery in progress, then close."""
        self._thread.shutdown()
        self._delivery.close()


class RouteQuery:
    """The running query."""

    def __init__(self, spark: SparkSession, job: RouteJob, api: BrokerApi) -> None:
        """Registers the reader and starts at its cursor; ``stop`` closes ``api``."""
        self._api = api
        job = replace(job, parallelism=told_parallelism(spark))
        stand_up(api, job)
        last = api.last_batch(job.query)
        self._delivery = RouteDelivery(job, 0 if last is None else last + 1)
        self._overlap = Overlap(self._delivery)
        self._is_remote = is_remote(spark)
        self._checkpoint = make_scratch()
        spark.dataSource.register(RouteSource)
        self.query: StreamingQuery = (
            spark.readStream.format(FORMAT)
            .option("job", _encode_job(job))
            .load()
            .writeStream.queryName(job.query)
            .foreachBatch(self._delivery if self._is_remote else self._overlap)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .start()
        )

    def stop(self) -> None:
        """Stop the query; a micro-batch in progress is delivered completely or not at all."""
        try:
            self.query.stop()
        finally:
            self._overlap.close()
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            self._api.close()

    def failure(self) -> str | None:
        """Return why the query ended or cannot continue; None while it runs."""
        error = self._overlap.error()
        if error is not None:
            return f"{type(error).__name__}: {error}"
        if self.query.isActive:
            return None
        return _cause(self.query.exception())

    def report(self) -> dict[str, Any]:
        """Return the totals of this run so far; empty with Spark Connect, which counts remotely."""
        return {} if self._is_remote else asdict(self._delivery.totals)


def plan_route(api: BrokerApi, where: BrokerAddress, *, records_max: int = RECORDS_MAX) -> RouteJob:
    """Plan the job from the broker's settings."""
    status = api.status()
    topic = status["ingress_topic"]
    api.register(topic, READER)  # creates the topic if it does not exist
    return RouteJob(
        where=where,
        topic=topic,
        dead_letter_topic=status["dead_letter_topic"],
        staging=StagingTarget.of(api, where),
        topic_id=api.topic(topic)["id"],
        records_max=records_max,
    )


def stand_up(api: BrokerApi, job: RouteJob) -> None:
    """Register the reader, and move a cursor that is below the log start up to it.

    Records skipped this way are logged as lost.
    """
    api.register(job.topic, READER)
    stands = api.positions(job.topic, READER)
    tps = [TopicPartition(job.topic, partition) for partition in sorted(stands)]
    with open_log(job.source_options()) as log:
        bounds = log.bounds(tps)
    for tp, (begin, _) in bounds.items():
        if begin > stands[tp.partition]:
            lost = stands[tp.partition], begin
            logger.warning("route.data_lost partition=%s from=%d to=%d", tp, *lost)
            api.advance(tp.topic, tp.partition, READER, begin)


def make_scratch() -> Path:
    """Create a directory for Spark's checkpoint; removes those of processes that have ended."""
    room = Path(tempfile.gettempdir())
    for old in room.glob(f"{SCRATCH}*"):
        pid = old.name.removeprefix(SCRATCH).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))


def _cause(error: BaseException | None) -> str:
    """Return the reason in one sentence, with the error's class if it is one of cordwood's."""
    if error is None:
        return "the query ended"
    ours = our_error(error)
    return plain_reason(error) if ours is None else f"{type(ours).__name__}: {ours}"


def _encode_job(job: RouteJob) -> str:
    return json.dumps(asdict(job))


def _parse_job(text: str) -> RouteJob:
    said = json.loads(text)
    where = BrokerAddress(**said.pop("where"))
    staging = said.pop("staging")
    staging["where"] = BrokerAddress(**staging["where"])
    return RouteJob(where=where, staging=StagingTarget(**staging), **said)
