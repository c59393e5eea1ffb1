"""Routing: the streaming query from the ingress topic to the routes, exactly once.

Records never pass through the JVM. The query's source plans ranges of offsets (``source``). The
task that reads a range also routes it and stages the result (``executor``); its only output row
names the staged files. The driver then asks the broker to append all parts of the micro-batch and
to move the cursor of the reader ``route``, in one step. Meanwhile the tasks of the next micro-batch
run.

The cursor is the query's only position. A delivery names the offsets it starts from, and the broker
accepts it only if the cursor is there. So no record is routed twice or left out, whichever process
dies, even when two drivers run at once. Spark's checkpoint is temporary: each start uses a new one
and begins at the cursor. Records in a route keep the order of their source partition.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cordwood.decide.routing import ROUTER
from cordwood.model import TopicPartition
from cordwood.pipeline.route.job import FORMAT, RECORDS_MAX, RouteJob
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.failure_reasons import our_error, plain_reason
from cordwood.pipeline.runtime.session import is_remote, known_parallelism
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.source.log_access import open_log
from cordwood.protocol.api.deliveries import Deliver, DeliveryCursor, decode_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger("cordwood.pipeline")

SCRATCH: Final = "cordwood-route-"


@dataclass(slots=True)
class RouteTotals:
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
        self.totals = RouteTotals()
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
            self._api = BrokerApi(self._job.staging.where)
        parts = tuple(part for row in rows for part in decode_parts(row[4]))
        job = rows[0][3]
        cursors = self._cursors(rows)
        self._api.deliver(Deliver(self._job.query, self._batch, job, parts, cursors))
        self._batch += 1
        self.totals.batches += 1
        self.totals.routed_records += sum(end - start for _, start, end, *_ in rows)
        self.totals.delivery_ms += int(1000 * (time.monotonic() - started))

    def _cursors(self, rows: Sequence[tuple[Any, ...]]) -> tuple[DeliveryCursor, ...]:
        """Return one cursor move per partition, from its first start offset to its last end."""
        spans: dict[int, tuple[int, int]] = {}
        for partition, start, end, *_ in rows:
            first, last = spans.get(partition, (start, start))
            assert start == last, "the ranges of a partition follow each other"
            spans[partition] = first, end
        return tuple(
            DeliveryCursor(ROUTER, self._job.topic, partition, end, start, self._job.topic_id)
            for partition, (start, end) in spans.items()
        )

    def close(self) -> None:
        """Close the connection to the broker."""
        if self._api is not None:
            self._api.close()


class OverlappedDelivery:
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
        from cordwood.pipeline.route.source import RouteSource  # late: it needs PySpark

        self._api = api
        job = replace(job, parallelism=known_parallelism(spark))
        prepare_cursor(api, job)
        self._delivery = RouteDelivery(job, api.next_batch(job.query))
        self._overlap = OverlappedDelivery(self._delivery)
        self._is_remote = is_remote(spark)
        self._checkpoint = make_scratch()
        spark.dataSource.register(RouteSource)
        self.query: StreamingQuery = (
            spark.readStream.format(FORMAT)
            .option("job", msgspec.json.encode(job).decode())
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


def plan_route(api: BrokerApi, *, records_max: int = RECORDS_MAX) -> RouteJob:
    """Plan the job from the broker's settings."""
    status = api.status()
    topic = status.ingress_topic
    api.register(topic, ROUTER)  # creates the topic if it does not exist
    return RouteJob(
        topic=topic,
        dead_letter_topic=status.dead_letter_topic,
        staging=StagingTarget.of(api),
        topic_id=api.topic(topic).id,
        records_max=records_max,
    )


def prepare_cursor(api: BrokerApi, job: RouteJob) -> None:
    """Register the reader, and move a cursor that is below the log start up to it.

    Records skipped this way are logged as lost.
    """
    api.register(job.topic, ROUTER)
    cursors = api.positions(job.topic, ROUTER)
    tps = [TopicPartition(job.topic, partition) for partition in sorted(cursors)]
    with open_log(job.source_options()) as log:
        bounds = log.bounds(tps)
    for tp, (begin, _) in bounds.items():
        if begin > cursors[tp.partition]:
            lost = cursors[tp.partition], begin
            logger.warning("route.data_lost partition=%s from=%d to=%d", tp, *lost)
            api.advance(tp.topic, tp.partition, ROUTER, begin)


def make_scratch() -> Path:
    """Create a directory for Spark's checkpoint; removes those of processes that have ended."""
    for old in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
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
