"""The gate: what Spark proposes becomes part of the log here, whole and once.

Two kinds of proposals lie under ``staging/<job>/``. A *swap* replaces sealed segments by rewritten
ones; ``log.swap`` knows how. A *delivery* appends batches to partitions, for the sink and for the
router:

1. The query's tasks have staged files of record batches, and its driver names them in a request.
2. The gate syncs the files, numbers every batch (a producer id of the query's own, sequences that
   run on) and writes that down, together with where the cursors of what the query has read shall
   stand. From here on the delivery happens, whatever crashes.
3. It appends them. What the log already has by its number is passed over.
4. It notes that all is done and moves the cursors, in one durable step, and forgets the files.

A request that comes again after step 2 is step 3 again; after step 4 it is nothing. A restart
finishes what was written down. So each batch of a query is in the log once, for every kind of
reader, whether the broker, the driver or an executor died.

A cursor may say where it must have stood. Then a second driver of the same job, a zombie perhaps,
is refused with ``StaleDelivery`` instead of delivering the same records again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from cordwood.batch.header import parse_headers
from cordwood.broker import staged
from cordwood.broker.produce import ProduceDesk
from cordwood.broker.topics import TopicDesk
from cordwood.clock import Clock
from cordwood.config import MIB
from cordwood.errors import RequestError, StaleDelivery
from cordwood.log.manifest import STAGING_NAME, is_job_name
from cordwood.log.partition import Partition
from cordwood.log.store import Store
from cordwood.meta.keys import Cursor, ReaderPartition

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

STAGED_BATCH_BYTES_MAX: Final = 64 * MIB
APPEND_BYTES: Final = 8 * MIB  # small parts of a partition are appended together up to this
APPENDS_MAX: Final = 8  # partitions that are appended to at once, each holding so much
SWEEP_S: Final = 3600.0
SWEEP_IDLE_MS: Final = 24 * 3600 * 1000  # a job in whose files nothing moved this long is dead
EPOCH: Final = 0  # a query's numbers never start again


class Part(NamedTuple):
    """One staged file of whole batches for one partition."""

    topic: str
    partition: int
    file: str
    sequence: int = 0  # of its first record, counted without end
    records: int = 0
    size_bytes: int = 0


class Delivery(NamedTuple):
    """What a driver asks to be appended; parts of a partition in the order they shall stand."""

    query: str
    batch: int
    job: str
    parts: Sequence[Part]
    cursors: Mapping[ReaderPartition, int]
    starts: Mapping[ReaderPartition, int] = MappingProxyType({})  # where cursors must stand now


class Gate:
    """Where staged work is let in."""

    def __init__(
        self,
        *,
        store: Store,
        topics: TopicDesk,
        produce: ProduceDesk,
        clock: Clock,
        meta_thread: Executor,
        verifying: Executor,
        background: Executor,
        is_synced: bool = True,
    ) -> None:
        self._store = store
        self._catalog = store.catalog
        self._topics = topics
        self._produce = produce
        self._clock = clock
        self._meta_thread = meta_thread
        self._verifying = verifying  # swaps: minutes of reading, which no delivery shall wait for
        self._background = background
        self._is_synced = is_synced  # staged files, before a delivery relies on them
        self._busy: dict[str, asyncio.Lock] = {}
        self._under_way: dict[asyncio.Task[bool], str] = {}  # deliveries, and their jobs
        self._lanes = asyncio.Semaphore(APPENDS_MAX)

    async def stop(self) -> None:
        """Let go of what is under way; the next start finishes it."""
        for task in list(self._under_way):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # --- swaps ----------------------------------------------------------------------------

    async def swap(self, job: str) -> None:
        """Read a finished job through, then swap it in between two commits."""
        loop = asyncio.get_running_loop()
        verified = await loop.run_in_executor(self._verifying, self._store.verify_job, job)
        await self._topics.on_writer(lambda: self._store.apply_job(verified))
        logger.info("swap.applied job=%s partition=%s", job, verified.manifest.topic_partition)

    # --- deliveries -----------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> bool:
        """Append a query's batch; False when it was delivered before.

        Goes on when the caller is gone: an append that waits for the disk cannot be called back,
        and whoever asks again must find it done, not half done.
        """
        task = asyncio.ensure_future(self._deliver(delivery))
        self._under_way[task] = delivery.job
        task.add_done_callback(self._under_way.pop)
        return await asyncio.shield(task)

    async def _deliver(self, delivery: Delivery) -> bool:
        async with self._busy.setdefault(delivery.query, asyncio.Lock()):
            last = self._catalog.sinks.get(delivery.query)
            if last is not None and last["batch"] > delivery.batch:
                raise StaleDelivery(
                    f"query {delivery.query} delivered batch {last['batch']} and now comes with "
                    f"{delivery.batch}: its checkpoint is older than what it delivered"
                )
            if last is not None and last["batch"] == delivery.batch:
                await self._finish(delivery.query, last)
                await self._forget(delivery.job)
                return False
            if last is not None:
                await self._finish(delivery.query, last)
            record = await self._accept(delivery, last)
            await self._finish(delivery.query, record)
            return True

    async def recover(self) -> None:
        """Finish what was written down before a restart."""
        for query, record in list(self._catalog.sinks.items()):
            await self._finish(query, record)

    async def _accept(self, delivery: Delivery, last: Any) -> Any:
        """Number the parts and write the delivery down; it happens from here on."""
        for name in {part.topic for part in delivery.parts}:
            await self._topics.ensure(name, explicit=True)
        numbers = dict(last["next"]) if last else {}
        staging = self.staging(delivery.job)
        parts = await self._in_background(self._number, staging, delivery.parts, numbers)
        producer_id = last["producer_id"] if last else None
        if producer_id is None:
            producer_id = await self._in_meta(self._catalog.new_producer_id)
        record = {
            "batch": delivery.batch,
            "job": delivery.job,
            "producer_id": producer_id,
            "done": False,
            "next": numbers,
            "parts": [list(part) for part in parts],
            "cursors": [[*where, offset] for where, offset in delivery.cursors.items()],
        }
        await self._in_meta(self._write_down, delivery, record)
        return record

    def _write_down(self, delivery: Delivery, record: Any) -> None:
        """On the metadata thread, where every cursor moves: so none moves between look and step."""
        for where, start in delivery.starts.items():
            cursor = self._catalog.cursor(where)
            stands = cursor.offset if cursor else 0
            if stands != start:
                raise StaleDelivery(
                    f"reader {where.reader} of {where.topic}-{where.partition} stands at {stands}, "
                    f"and query {delivery.query} delivers from {start}: another driver is at work"
                )
        self._catalog.put_sink(delivery.query, record)

    def _number(self, staging: Path, parts: Sequence[Part], numbers: dict[str, int]) -> list[Part]:
        """On a background thread: check every staged byte and count on from ``numbers``."""
        numbered = []
        room = staged.Room()
        for part in parts:
            partition = self._partition(part)
            if self._is_synced:
                staged.sync(staging / part.file)
            data = room.read([staging / part.file])
            headers = self._produce.check(partition, data, STAGED_BATCH_BYTES_MAX)
            records = sum(header.last_offset_delta + 1 for header in headers)
            where = str(partition.tp)
            sequence = numbers.get(where, 0)
            numbers[where] = sequence + records
            numbered.append(part._replace(sequence=sequence, records=records, size_bytes=len(data)))
        if parts and self._is_synced:
            for directory in (staging, staging.parent):
                staged.sync(directory, os.O_DIRECTORY)
        return numbered

    async def _finish(self, query: str, record: Any) -> None:
        """Append what the log does not have yet, then note that all is there."""
        if record["done"]:
            return
        staging = self.staging(record["job"])
        chains: dict[tuple[str, int], list[Part]] = {}
        for part in (Part(*fields) for fields in record["parts"]):
            chains.setdefault((part.topic, part.partition), []).append(part)
        await _all_of(
            self._append_chain(staging, chain, record["producer_id"]) for chain in chains.values()
        )
        now_ms = self._clock.now_ms()
        cursors = {
            ReaderPartition(reader, topic, partition): Cursor(offset, commit_ms=now_ms)
            for reader, topic, partition, offset in record["cursors"]
        }
        done = {**record, "done": True, "parts": [], "cursors": []}
        await self._in_meta(self._catalog.put_sink, query, done, cursors)
        await self._forget(record["job"])

    async def _append_chain(self, staging: Path, chain: Sequence[Part], producer_id: int) -> None:
        """The parts of one partition, in order; what fails keeps what follows it out."""
        async with self._lanes:
            room = staged.Room()
            for run in plan_appends(chain, APPEND_BYTES):
                await self._append(staging, run, producer_id, room)

    async def _append(
        self, staging: Path, run: Sequence[Part], producer_id: int, room: staged.Room
    ) -> None:
        partition = self._partition(run[0])

        def prepared() -> memoryview:
            data = room.read([staging / part.file for part in run])
            staged.stamp(data, producer_id, EPOCH, run[0].sequence)
            return data

        data = await self._in_background(prepared)
        have = partition.producers.last_sequence(producer_id, EPOCH)
        rest = staged.without_stored(data, have)
        if rest:
            await self._produce.submit(partition, rest, parse_headers(rest), strict=False)

    def _partition(self, part: Part) -> Partition:
        return self._topics.get(part.topic).partition(part.partition)

    # --- the staging area -----------------------------------------------------------------

    def staging(self, job: str) -> Path:
        """Where a job stages its files."""
        if not is_job_name(job):
            raise RequestError(f"{job!r} is no job name; use letters, digits, . _ and -")
        return self._store.data / STAGING_NAME / job

    async def upload(self, job: str, name: str, data: bytes) -> None:
        """Take one staged file from a job that cannot reach the data directory."""
        if not is_job_name(name):
            raise RequestError(f"{name!r} is no file name; use letters, digits, . _ and -")
        await self._in_background(staged.write, self.staging(job) / name, data)

    async def discard(self, job: str) -> None:
        """Forget a job's files, unless a delivery that was written down still needs them."""
        if job not in self._needed():
            await self._forget(job)

    async def sweep(self) -> list[str]:
        """Forget what jobs that died have left, long after; their names."""
        room = self._store.data / STAGING_NAME
        found = await self._in_background(staged.find_leftovers, room, self._clock.now_ms())
        swept = staged.plan_sweep(found, self._needed(), SWEEP_IDLE_MS)
        for job in swept:
            if job in self._needed():  # it has come back just now
                continue
            await self._in_background(staged.forget, room / job)
            logger.info("staging.swept job=%s nobody came back for its files", job)
        return swept

    async def keep_swept(self) -> None:
        """Sweep now and then, until cancelled."""
        while True:
            try:
                await self.sweep()
            except OSError as error:
                logger.warning("staging.unswept error=%s", error)
            await asyncio.sleep(SWEEP_S)

    def _needed(self) -> set[str]:
        """Jobs whose files a delivery has been promised, or is looking at."""
        promised = {record["job"] for record in self._catalog.sinks.values() if not record["done"]}
        return promised | set(self._under_way.values())

    async def _forget(self, job: str) -> None:
        await self._in_background(staged.forget, self.staging(job))

    async def _in_background(self, act: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background, act, *arguments)

    async def _in_meta(self, change: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._meta_thread, change, *arguments)


def plan_appends(chain: Sequence[Part], bytes_max: int) -> Iterator[list[Part]]:
    """A partition's parts in runs of about so many bytes, one part at least."""
    run: list[Part] = []
    for part in chain:
        if run and sum(each.size_bytes for each in run) + part.size_bytes > bytes_max:
            yield run
            run = []
        run.append(part)
    if run:
        yield run


async def _all_of(acts: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Side by side; what fails is raised when none is under way any more."""
    for outcome in await asyncio.gather(*acts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
