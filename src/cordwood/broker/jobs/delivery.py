"""Delivery service: apply what Spark jobs stage to the log, completely and exactly once.

Jobs stage two kinds of work under ``staging/<job>/``. A *swap* replaces sealed segments by
rewritten ones (``swaps``). A *delivery* appends record batches to
partitions, for the sink and for the router, in four steps:

1. The query's tasks stage files of record batches. The driver names them in a request, each with
   its sha256.
2. The broker reads the files, checks their hashes, syncs them, and numbers every batch (a producer
   id for the query, consecutive sequence numbers). It then records the delivery durably, with
   the ids of all topics and the new positions of the query's cursors. From here on the delivery
   is carried out, whatever crashes.
3. The broker reads each file again, checks its hash again, and appends the bytes it has checked.
   It skips batches that the log already has by sequence number and cancels those for topics
   deleted since step 2 (``staged_appends``).
4. The broker marks the delivery as done and moves the cursors, in one transaction, and deletes
   the files.

A request repeated after step 2 resumes at step 3; after step 4 it has no effect. A restart finishes
recorded deliveries. So each batch of a query is in the log exactly once, for every kind of reader,
whether the broker, the driver or an executor dies. A topic that was deleted and created again
counts as another topic, so a batch is delivered to it again (``decide.delivery``).

A delivery that cannot be finished (its files are gone, a partition is offline) is *quarantined*: a
restart continues without it, and ``/readyz`` and ``GET /api/v1/deliveries`` name it. Only its own
query waits, until the delivery can be finished or an operator discards it.

A request may state where its cursors must stand now. A second driver of the same job, perhaps a
zombie, is then refused with ``StaleDelivery`` instead of delivering the same records again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from cordwood.broker.jobs.delivery_request import Delivery
from cordwood.broker.jobs.query_locks import QueryLocks
from cordwood.broker.jobs.staged_appends import StagedAppender
from cordwood.broker.jobs.staged_jobs import StagedJobs
from cordwood.broker.readers import check_cursor
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import HOUR_MS
from cordwood.decide.delivery import (
    CursorMove,
    DeliveryDue,
    DeliveryRecord,
    numbers_left,
    plan_delivery,
    plan_forget,
)
from cordwood.decide.routing import ROUTER
from cordwood.errors import (
    CordwoodError,
    QuarantinedDelivery,
    RequestError,
    StaleDelivery,
    UnavailableError,
    UnknownJob,
)
from cordwood.log.lifecycle.store import Store
from cordwood.log.staging.area import StagingArea, check_name
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.protocol.api.deliveries import DeliveryRow

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

SWEEP_S: Final = 3600.0
ONCE_MS: Final = HOUR_MS  # a driver retries for a few minutes at most


@dataclass(slots=True)
class DeliveryStats:
    """Counters that the metrics read."""

    delivered: int = 0
    cancelled_records: int = 0
    discarded_records: int = 0


class DeliveryService:
    """Delivers staged batches, and quarantines deliveries that cannot be finished."""

    def __init__(
        self,
        *,
        store: Store,
        topics: TopicService,
        appender: StagedAppender,
        clock: Clock,
        metadata: AsyncMetadata,
        background: Executor,
        retention_ms: int,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._registry = metadata.readers.deliveries
        self._topics = topics
        self._appender = appender
        self._clock = clock
        self.retention_ms = retention_ms
        self._locks = QueryLocks()
        self.staged = StagedJobs(StagingArea(store.data), clock, background)
        self.quarantined: dict[str, str] = {}  # query → why its delivery could not be finished
        self.stats = DeliveryStats()

    async def stop(self) -> None:
        """Cancel running deliveries; the next start finishes them."""
        for task in list(self.staged.running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # --- deliveries -----------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> bool:
        """Append a query's batch; False if it was delivered before.

        Continues after the requester disconnects: an append that waits for the disk cannot be
        cancelled, and a repeated request must find it done, not half done.
        """
        check_name(delivery.job, "job")
        targets = await self.staged.in_background(delivery.targets)
        task = asyncio.ensure_future(self._deliver(delivery, targets))
        self.staged.running[task] = delivery.job
        task.add_done_callback(self.staged.running.pop)
        return await asyncio.shield(task)

    async def _deliver(self, delivery: Delivery, targets: Mapping[str, str]) -> bool:
        async with self._locks.held(delivery.query):
            last = await self._metadata.run(self._registry.get, delivery.query)
            if last is not None and not last.is_done:
                last = await self._finish_earlier(delivery, last)
            earlier = set() if last is None else set(last.topics)
            names = set(targets)
            ids = {name: self._topic_id(name) for name in names | earlier}
            moves_cursors = bool(delivery.cursors)
            plan = plan_delivery(last, delivery.batch, names, ids, moves_cursors=moves_cursors)
            if plan.due is DeliveryDue.STALE:
                assert last is not None, "a batch is older than another"
                raise StaleDelivery(
                    f"query {delivery.query} already delivered batch {last.batch} and now sends "
                    f"batch {delivery.batch}: its checkpoint is older than its last delivery; use "
                    "the newest checkpoint"
                )
            if plan.due is DeliveryDue.REPEAT:
                await self.staged.remove(delivery.job)
                return False
            if plan.topics != names:
                delivery = await self.staged.in_background(delivery.limited, plan.topics)
                targets = {name: targets[name] for name in plan.topics}
            record = await self._accept(delivery, targets, last)
            await self._finish(delivery.query, record)
            return True

    async def _finish_earlier(
        self, delivery: Delivery, last: DeliveryRecord
    ) -> DeliveryRecord | None:
        """Finish the delivery that was accepted before.

        If its files are gone and none of its records is stored, newly staged files replace them.
        """
        try:
            return await self._finish(delivery.query, last)
        except UnknownJob:
            is_untouched = await self._is_untouched(last)
            if is_untouched and delivery.batch == last.batch and delivery.job != last.job:
                logger.warning(
                    "delivery.staged_again query=%s batch=%d", delivery.query, delivery.batch
                )
                return replace(last, batch=last.batch - 1, is_done=True, parts=(), cursors=())
            raise self._held_up(delivery.query, last) from None
        except RequestError:
            raise self._held_up(delivery.query, last) from None
        except UnavailableError as error:  # the driver retries it up to its own limit
            raise type(error)(str(self._held_up(delivery.query, last))) from None

    async def _is_untouched(self, record: DeliveryRecord) -> bool:
        """Return whether no record of the delivery is stored anywhere."""
        missing = await self._appender.pending(record)
        return sum(missing.values()) == sum(part.records for part in record.parts)

    def _held_up(self, query: str, record: DeliveryRecord) -> QuarantinedDelivery:
        return QuarantinedDelivery(
            f"batch {record.batch} of query {query} was accepted and cannot be completed: "
            f"{self.quarantined.get(query, 'unknown')}. Fix the cause and deliver again, or run "
            f"`cordwood pipeline discard {query}` to give up the missing records"
        )

    async def recover(self) -> None:
        """Finish deliveries recorded before a restart; one that fails is quarantined."""
        records, broken = self._registry.recent()
        for query, error in broken.items():
            self._quarantine(query, error)
        pending = {query: each for query, each in records.items() if not each.is_done}
        self.staged.accepted = {query: record.job for query, record in pending.items()}
        for query, record in pending.items():
            try:
                await self._finish(query, record)
            except CordwoodError:
                continue  # already logged and quarantined
            except Exception as error:  # noqa: BLE001 - no failed delivery may stop the start-up
                self._quarantine(query, error)

    async def _accept(
        self, delivery: Delivery, targets: Mapping[str, str], last: DeliveryRecord | None
    ) -> DeliveryRecord:
        """Number the parts and record the delivery; from here on it is carried out."""
        await self._check_cursors(delivery.cursors)
        topics = await self._resolve(delivery, targets)
        earlier = {} if last is None else dict(last.topics)
        known = {name: self._topic_id(name) for name in earlier}
        kept = {name: topic_id for name, topic_id in earlier.items() if known[name] == topic_id}
        numbers = {} if last is None else numbers_left(last, kept | topics)
        parts = await self._appender.number(delivery.job, delivery.parts, numbers)
        producer_id = last.producer_id if last is not None else -1
        if producer_id < 0:
            producer_id = await self._metadata.run(self._metadata.readers.new_producer_id)
        record = DeliveryRecord(
            batch=delivery.batch,
            job=delivery.job,
            producer_id=producer_id,
            is_done=False,
            next=numbers,
            parts=parts,
            cursors=tuple(CursorMove(*where, at) for where, at in delivery.cursors.items()),
            topics=kept | topics,
            accepted_ms=self._clock.now_ms(),
            is_once=delivery.is_once,
        )
        await self._metadata.run(self._record, delivery, record)
        self.staged.accepted[delivery.query] = delivery.job
        return record

    async def _resolve(self, delivery: Delivery, targets: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of the topics, creating missing targets; raises if one was recreated."""
        expected = {name: topic_id for name, topic_id in targets.items() if topic_id}
        for name, topic_id in {**expected, **delivery.sources}.items():
            if self._topic_id(name) != topic_id:
                raise StaleDelivery(
                    f"topic {name} was deleted, or created again, since batch {delivery.batch} of "
                    f"query {delivery.query} was planned; run the query again"
                )
        topics = {}
        is_route = any(where.reader == ROUTER for where in delivery.cursors)
        for name in targets:
            topic = await self._topics.ensure(name, explicit=True, is_route=is_route)
            topics[name] = topic.id
        for where in delivery.cursors:
            topics[where.topic] = self._topics.get(where.topic).id
        return topics

    async def _check_cursors(self, cursors: Mapping[ReaderPartition, int]) -> None:
        """Raise if a cursor would move past the end of its partition."""
        for (_, topic, partition), offset in cursors.items():
            check_cursor(await self._topics.open_partition(topic, partition), offset)

    def _record(self, delivery: Delivery, record: DeliveryRecord) -> None:
        """Check the start positions and record the delivery.

        Runs as one change of the metadata, so no cursor moves in between.
        """
        for where, start in delivery.starts.items():
            cursor = self._metadata.readers.cursor(where)
            stands = cursor.offset if cursor else 0
            if stands != start:
                raise StaleDelivery(
                    f"reader {where.reader} of {where.topic}-{where.partition} is at offset "
                    f"{stands}, but query {delivery.query} delivers from {start}: another driver "
                    "of the query is running"
                )
        self._registry.put(delivery.query, record)

    async def _finish(self, query: str, record: DeliveryRecord) -> DeliveryRecord:
        """Append the batches that the log does not have yet, then mark the delivery as done."""
        try:
            cancelled = await self._appender.append(record)
            done = await self._mark_done(query, record)
        except CordwoodError as error:
            self._quarantine(query, error)
            raise
        except OSError as error:
            self._quarantine(query, error)
            raise UnavailableError(f"the delivery of query {query}: {error}") from error
        self.stats.delivered += 1
        self.stats.cancelled_records += cancelled.total()
        await self.staged.remove(record.job)
        return done

    async def _mark_done(self, query: str, record: DeliveryRecord) -> DeliveryRecord:
        now_ms = self._clock.now_ms()
        cursors = {
            ReaderPartition(reader, topic, partition): Cursor(offset, commit_ms=now_ms)
            for reader, topic, partition, offset in record.cursors
        }
        done = replace(record, is_done=True, parts=(), cursors=())
        await self._metadata.run(self._registry.put, query, done, cursors)
        self.staged.accepted.pop(query, None)
        self.quarantined.pop(query, None)
        return done

    # --- quarantine -----------------------------------------------------------------------

    def _quarantine(self, query: str, error: Exception) -> None:
        if query not in self.quarantined:
            logger.error("delivery.quarantined query=%s error=%s", query, error)
        self.quarantined[query] = str(error)

    async def retry_quarantined(self) -> None:
        """Retry quarantined deliveries: a partition may be online, or disk space free, again."""
        for query in list(self.quarantined):
            async with self._locks.held(query):
                try:
                    record = await self._metadata.run(self._registry.get, query)
                    if record is not None and not record.is_done:
                        await self._finish(query, record)
                except CordwoodError:
                    continue  # already logged and quarantined
                except Exception as error:  # noqa: BLE001 - the other deliveries are still retried
                    self._quarantine(query, error)

    async def give_up(self, query: str) -> dict[str, int]:
        """Discard the missing records of a query's delivery; returns their count by partition.

        What is stored stays: the cursors move, and the query continues after this batch. If the
        query's last delivery is done or its record is unreadable, the query is forgotten instead.
        """
        async with self._locks.held(query):
            records, broken = self._registry.recent()
            if query in broken or records.get(query, DeliveryRecord(batch=0)).is_done:
                await self._metadata.run(self._registry.erase, query)
                self.staged.accepted.pop(query, None)
                self.quarantined.pop(query, None)
                return {}
            record = records[query]
            lost = await self._missing(record)
            await self._mark_done(query, record)
            self.stats.discarded_records += sum(lost.values())
            logger.warning("delivery.discarded query=%s records=%s", query, lost)
            with contextlib.suppress(RequestError):
                await self.staged.remove(record.job)
            return lost

    async def _missing(self, record: DeliveryRecord) -> dict[str, int]:
        try:
            missing = await self._appender.pending(record)
        except CordwoodError:  # an offline partition does not know, so count all its records
            missing = Counter()
            for part in record.parts:
                missing[part[:2]] += part.records  # type: ignore[index]
        return {f"{topic}-{number}": count for (topic, number), count in missing.items() if count}

    async def describe(self, query: str | None = None) -> dict[str, DeliveryRow]:
        """Describe the last delivery of one query, or of all queries in memory."""
        records, broken = self._registry.recent()
        rows = {name: self._row(name, record) for name, record in records.items()}
        rows |= {name: DeliveryRow(quarantined=str(error)) for name, error in broken.items()}
        if query is None:
            return rows
        if query not in rows and (record := await self._metadata.run(self._registry.get, query)):
            rows[query] = self._row(query, record)
        return {name: row for name, row in rows.items() if name == query}

    def _row(self, query: str, record: DeliveryRecord) -> DeliveryRow:
        return DeliveryRow(
            batch=record.batch,
            done=record.is_done,
            topics=tuple(sorted(record.topics)),
            accepted_ms=record.accepted_ms,
            quarantined=self.quarantined.get(query),
        )

    @property
    def known_count(self) -> int:
        """Number of queries in memory."""
        return len(self._registry)

    # --- sweeping -----------------------------------------------------------------

    async def sweep(self) -> list[str]:
        """Delete files of dead jobs and forget idle queries; returns the swept jobs."""
        swept = await self.staged.sweep()
        await self.forget_idle()
        return swept

    async def forget_idle(self) -> list[str]:
        """Forget queries that have delivered nothing for a long time; returns their names."""
        records, _ = self._registry.recent()
        idle = plan_forget(records, self._clock.now_ms(), ONCE_MS, self.retention_ms)
        idle = [query for query in idle if query not in self._locks]
        if idle:
            await self._metadata.run(self._forget_still_idle, idle)
            logger.info("delivery.forgotten queries=%d", len(idle))
        return idle

    def _forget_still_idle(self, queries: Iterable[str]) -> None:
        """Check again and forget; runs as one change, so that no record is written meanwhile."""
        records, _ = self._registry.recent()
        still = {query: records[query] for query in queries if query in records}
        self._registry.forget(plan_forget(still, self._clock.now_ms(), ONCE_MS, self.retention_ms))

    async def keep_swept(self) -> None:
        """Sweep and retry quarantined deliveries every ``SWEEP_S`` seconds, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (CordwoodError, OSError) as error:
                logger.warning("staging.unswept error=%s", error)
            await asyncio.sleep(SWEEP_S)
            await self.retry_quarantined()

    def _topic_id(self, name: str) -> str | None:
        topic = self._topics.all().get(name)
        return None if topic is None else topic.id
