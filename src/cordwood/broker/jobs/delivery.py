"""Delivery service: apply what Spark jobs stage to the log, completely and exactly once.

Jobs stage two kinds of work under ``staging/<job>/``. A *swap* replaces sealed segments by
rewritten ones; ``log.swap.ladder`` carries it out. A *delivery* appends record batches to
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
restart continues without it, and ``/readyz`` and ``GET /api/deliveries`` name it. Only its own
query waits, until the delivery can be finished or an operator discards it.

A request may state where its cursors must stand now. A second driver of the same job, perhaps a
zombie, is then refused with ``StaleDelivery`` instead of delivering the same records again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from cordwood.broker.jobs.staged_appends import StagedAppender
from cordwood.broker.readers import check_cursor
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import HOUR_MS
from cordwood.decide.delivery import (
    CursorMove,
    DeliveryDue,
    DeliveryRecord,
    Part,
    numbers_left,
    plan_delivery,
    plan_forget,
    plan_sweep,
)
from cordwood.errors import (
    CordwoodError,
    QuarantinedDelivery,
    RequestError,
    StaleDelivery,
    UnavailableError,
    UnknownJob,
)
from cordwood.log.lifecycle.store import Store
from cordwood.log.staging.area import StagingArea, check_name, check_sha256
from cordwood.log.swap.ladder import Verified
from cordwood.metadata.keys import Cursor, ReaderPartition

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

SWEEP_S: Final = 3600.0
SWEEP_IDLE_MS: Final = 24 * HOUR_MS  # a job that left its files unchanged this long is dead
ONCE_MS: Final = HOUR_MS  # a driver retries for a few minutes at most


class Delivery(NamedTuple):
    """A driver's append request; the parts of each partition are in append order."""

    query: str
    batch: int
    job: str
    parts: Sequence[Part]
    cursors: Mapping[ReaderPartition, int]
    starts: Mapping[ReaderPartition, int] = MappingProxyType({})  # where the cursors must stand now
    sources: Mapping[str, str] = MappingProxyType({})  # ids of the topics that the cursors are on
    is_once: bool = False  # this is the query's only batch


@dataclass(slots=True)
class DeliveryStats:
    """Counters that the metrics read."""

    delivered: int = 0
    cancelled_records: int = 0
    discarded_records: int = 0


@dataclass(slots=True)
class _QueryLock:
    """The lock of one query, and how many requests hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class DeliveryService:
    """Deliver staged batches, apply swaps, and manage the staging area."""

    def __init__(
        self,
        *,
        store: Store,
        topics: TopicService,
        appender: StagedAppender,
        clock: Clock,
        meta_thread: Executor,
        verifying: Executor,
        background: Executor,
        retention_ms: int,
    ) -> None:
        self._store = store
        self._registry = store.catalog.deliveries
        self._topics = topics
        self._appender = appender
        self._clock = clock
        self._meta_thread = meta_thread
        self._verifying = verifying  # swaps read for minutes and must not delay a delivery
        self._background = background
        self._retention_ms = retention_ms
        self._staging = StagingArea(store.data)
        self._turns: dict[str, _QueryLock] = {}
        self._under_way: dict[asyncio.Task[bool], str] = {}  # running delivery → its job
        self._promised: dict[str, str] = {}  # query → the job whose files were accepted
        self.quarantined: dict[str, str] = {}  # query → why its delivery could not be finished
        self.stats = DeliveryStats()

    async def stop(self) -> None:
        """Cancel running deliveries; the next start finishes them."""
        for task in list(self._under_way):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # --- swaps ----------------------------------------------------------------------------

    async def swap(self, verified: Verified) -> None:
        """Apply a verified swap on the writer thread, between two commits."""
        await self._topics.on_writer(lambda: self._store.apply_job(verified))
        manifest = verified.manifest
        logger.info("swap.applied job=%s partition=%s", manifest.job, manifest.topic_partition)

    async def in_verifying(self, act: Callable[[], T]) -> T:
        """Run ``act`` on the verification executor, so that its long reads delay no delivery."""
        return await asyncio.get_running_loop().run_in_executor(self._verifying, act)

    # --- deliveries -----------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> bool:
        """Append a query's batch; False if it was delivered before.

        Continues after the requester disconnects: an append that waits for the disk cannot be
        cancelled, and a repeated request must find it done, not half done.
        """
        check_name(delivery.job, "job")
        await self._in_background(_check_files, delivery.parts)
        targets = await self._in_background(_targets_of, delivery.parts)
        task = asyncio.ensure_future(self._deliver(delivery, targets))
        self._under_way[task] = delivery.job
        task.add_done_callback(self._under_way.pop)
        return await asyncio.shield(task)

    async def _deliver(self, delivery: Delivery, targets: Mapping[str, str]) -> bool:
        async with self._turn(delivery.query):
            last = await self._in_meta(self._registry.get, delivery.query)
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
                    f"query {delivery.query} delivered batch {last.batch} and now comes with "
                    f"{delivery.batch}: its checkpoint is older than what it delivered"
                )
            if plan.due is DeliveryDue.REPEAT:
                await self._forget(delivery.job)
                return False
            if plan.topics != names:
                wanted = await self._in_background(_parts_for, delivery.parts, plan.topics)
                delivery = delivery._replace(parts=wanted)
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
            f"batch {record.batch} of query {query} was accepted and cannot be finished: "
            f"{self.quarantined.get(query, 'unknown')}. Remove the cause and deliver again, or run "
            f"`cordwood pipeline discard {query}` to give up the records that are missing"
        )

    async def recover(self) -> None:
        """Finish deliveries recorded before a restart; one that fails is quarantined."""
        records, broken = self._registry.recent()
        for query, error in broken.items():
            self._quarantine(query, error)
        pending = {query: each for query, each in records.items() if not each.is_done}
        self._promised = {query: record.job for query, record in pending.items()}
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
            producer_id = await self._in_meta(self._store.catalog.new_producer_id)
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
        await self._in_meta(self._write_down, delivery, record)
        self._promised[delivery.query] = delivery.job
        return record

    async def _resolve(self, delivery: Delivery, targets: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of the topics, creating missing targets; raises if one was recreated."""
        expected = {name: topic_id for name, topic_id in targets.items() if topic_id}
        for name, topic_id in {**expected, **delivery.sources}.items():
            if self._topic_id(name) != topic_id:
                raise StaleDelivery(
                    f"topic {name} was deleted, or created again, since batch {delivery.batch} of "
                    f"query {delivery.query} was planned; run it again"
                )
        topics = {}
        for name in targets:
            topics[name] = (await self._topics.ensure(name, explicit=True)).id
        for where in delivery.cursors:
            topics[where.topic] = self._topics.get(where.topic).id
        return topics

    async def _check_cursors(self, cursors: Mapping[ReaderPartition, int]) -> None:
        """Raise if a cursor would move past the end of its partition."""
        for (_, topic, partition), offset in cursors.items():
            check_cursor(await self._topics.open_partition(topic, partition), offset)

    def _write_down(self, delivery: Delivery, record: DeliveryRecord) -> None:
        """Check the start positions and record the delivery.

        Runs on the metadata thread, where every cursor moves, so no cursor moves in between.
        """
        for where, start in delivery.starts.items():
            cursor = self._store.catalog.cursor(where)
            stands = cursor.offset if cursor else 0
            if stands != start:
                raise StaleDelivery(
                    f"reader {where.reader} of {where.topic}-{where.partition} stands at {stands}, "
                    f"and query {delivery.query} delivers from {start}: another driver is at work"
                )
        self._registry.put(delivery.query, record)

    async def _finish(self, query: str, record: DeliveryRecord) -> DeliveryRecord:
        """Append the batches that the log does not have yet, then mark the delivery as done."""
        try:
            cancelled = await self._appender.append(record)
            done = await self._note_done(query, record)
        except CordwoodError as error:
            self._quarantine(query, error)
            raise
        except OSError as error:
            self._quarantine(query, error)
            raise UnavailableError(f"the delivery of query {query}: {error}") from error
        self.stats.delivered += 1
        self.stats.cancelled_records += cancelled.total()
        await self._forget(record.job)
        return done

    async def _note_done(self, query: str, record: DeliveryRecord) -> DeliveryRecord:
        now_ms = self._clock.now_ms()
        cursors = {
            ReaderPartition(reader, topic, partition): Cursor(offset, commit_ms=now_ms)
            for reader, topic, partition, offset in record.cursors
        }
        done = replace(record, is_done=True, parts=(), cursors=())
        await self._in_meta(self._registry.put, query, done, cursors)
        self._promised.pop(query, None)
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
            async with self._turn(query):
                try:
                    record = await self._in_meta(self._registry.get, query)
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
        async with self._turn(query):
            records, broken = self._registry.recent()
            if query in broken or records.get(query, DeliveryRecord(batch=0)).is_done:
                await self._in_meta(self._registry.erase, query)
                self._promised.pop(query, None)
                self.quarantined.pop(query, None)
                return {}
            record = records[query]
            lost = await self._missing(record)
            await self._note_done(query, record)
            self.stats.discarded_records += sum(lost.values())
            logger.warning("delivery.discarded query=%s records=%s", query, lost)
            with contextlib.suppress(RequestError):
                await self._forget(record.job)
            return lost

    async def _missing(self, record: DeliveryRecord) -> dict[str, int]:
        try:
            found = await self._appender.pending(record)
        except CordwoodError:  # an offline partition does not know, so count all its records
            found = Counter()
            for part in record.parts:
                found[part[:2]] += part.records  # type: ignore[index]
        return {f"{topic}-{number}": count for (topic, number), count in found.items() if count}

    def describe(self, query: str | None = None) -> dict[str, dict[str, Any]]:
        """Describe the queries in memory: last batch, whether it is done, and why it is not."""
        records, broken = self._registry.recent()
        rows: dict[str, dict[str, Any]] = {
            name: {
                "batch": record.batch,
                "done": record.is_done,
                "topics": sorted(record.topics),
                "accepted_ms": record.accepted_ms,
                "quarantined": self.quarantined.get(name),
            }
            for name, record in records.items()
        }
        rows |= {name: {"quarantined": str(error)} for name, error in broken.items()}
        return rows if query is None else {name: row for name, row in rows.items() if name == query}

    @property
    def known_count(self) -> int:
        """Number of queries in memory."""
        return len(self._registry)

    async def last_batch(self, query: str) -> int | None:
        """Return a query's last batch, even if the query is no longer in memory."""
        found = await self._in_meta(self._registry.get, query)
        return None if found is None else int(found.batch)

    # --- the staging area -----------------------------------------------------------------

    async def upload(self, job: str, name: str, data: bytes) -> None:
        """Store one staged file from a job that cannot reach the data directory."""
        check_name(job, "job")
        check_name(name, "file")
        if job in self._promised.values():
            raise RequestError(f"job {job} was delivered already; stage under a new name")
        await self._in_background(self._write_file, job, name, data)

    def _write_file(self, job: str, name: str, data: bytes) -> None:
        with self._staging.new_job(job) as files:
            files.write(name, [data])

    async def discard(self, job: str) -> None:
        """Delete a job's files, unless a running or recorded delivery still needs them."""
        check_name(job, "job")
        if job not in self._needed():
            await self._forget(job)

    async def sweep(self) -> list[str]:
        """Delete files of dead jobs and forget idle queries; returns the swept jobs."""
        found = await self._in_background(self._staging.leftovers, self._clock.now_ms())
        swept = plan_sweep(found, self._needed(), SWEEP_IDLE_MS)
        for job in swept:
            if job in self._needed():  # a request for it has arrived in the meantime
                continue
            await self._forget(job)
            logger.info("staging.swept job=%s nobody came back for its files", job)
        await self.forget_idle()
        return swept

    async def forget_idle(self) -> list[str]:
        """Forget queries that have delivered nothing for a long time; returns their names."""
        records, _ = self._registry.recent()
        idle = plan_forget(records, self._clock.now_ms(), ONCE_MS, self._retention_ms)
        idle = [query for query in idle if query not in self._turns]
        if idle:
            await self._in_meta(self._forget_still_idle, idle)
            logger.info("delivery.forgotten queries=%d", len(idle))
        return idle

    def _forget_still_idle(self, queries: Iterable[str]) -> None:
        """Check again and forget; runs on the metadata thread, where every record is written."""
        records, _ = self._registry.recent()
        still = {query: records[query] for query in queries if query in records}
        self._registry.forget(plan_forget(still, self._clock.now_ms(), ONCE_MS, self._retention_ms))

    async def keep_swept(self) -> None:
        """Sweep and retry quarantined deliveries every ``SWEEP_S`` seconds, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (CordwoodError, OSError) as error:
                logger.warning("staging.unswept error=%s", error)
            await asyncio.sleep(SWEEP_S)
            await self.retry_quarantined()

    def _needed(self) -> set[str]:
        """Return the jobs whose files an accepted or running delivery needs."""
        return {*self._promised.values(), *self._under_way.values()}

    async def _forget(self, job: str) -> None:
        await self._in_background(self._staging.remove, job)

    # --- internals ------------------------------------------------------------------------

    def _topic_id(self, name: str) -> str | None:
        topic = self._topics.all().get(name)
        return None if topic is None else topic.id

    @contextlib.asynccontextmanager
    async def _turn(self, query: str) -> AsyncIterator[None]:
        """Run a query's requests one at a time; drops the lock after the last one."""
        turn = self._turns.setdefault(query, _QueryLock())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[query]

    async def _in_background(self, act: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background, act, *arguments)

    async def _in_meta(self, change: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._meta_thread, change, *arguments)


def _check_files(parts: Iterable[Part]) -> None:
    """Raise ``RequestError`` for an unsafe file name, or a file without its sha256."""
    for part in parts:
        check_sha256(part.sha256, check_name(part.file, "file"))


# A delivery may have 100,000 parts: functions that walk all of them run on a background thread.


def _targets_of(parts: Iterable[Part]) -> dict[str, str]:
    """Return the topics of the parts with the ids the query knows, empty where it knows none."""
    targets: dict[str, str] = {}
    for part in parts:
        targets[part.topic] = part.topic_id or targets.get(part.topic, "")
    return targets


def _parts_for(parts: Iterable[Part], topics: Container[str]) -> list[Part]:
    return [part for part in parts if part.topic in topics]
