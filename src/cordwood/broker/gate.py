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
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cordwood.batch.header import SEQUENCE_MODULUS, parse_headers, stamp_producer
from cordwood.broker.produce import ProduceDesk
from cordwood.broker.topics import TopicDesk
from cordwood.clock import Clock
from cordwood.config import MIB
from cordwood.errors import RequestError, StaleDelivery, UnknownJob
from cordwood.log.manifest import is_job_name
from cordwood.log.partition import Partition
from cordwood.log.store import Store
from cordwood.meta.keys import Cursor, ReaderPartition

logger = logging.getLogger("cordwood.broker")

STAGED_BATCH_BYTES_MAX: Final = 64 * MIB
EPOCH: Final = 0  # a query's numbers never start again


class Part(NamedTuple):
    """One staged file of whole batches for one partition."""

    topic: str
    partition: int
    file: str
    sequence: int = 0  # of its first record, counted without end
    records: int = 0


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
        background: Executor,
        is_synced: bool = True,
    ) -> None:
        self._store = store
        self._catalog = store.catalog
        self._topics = topics
        self._produce = produce
        self._clock = clock
        self._meta_thread = meta_thread
        self._background = background
        self._is_synced = is_synced  # staged files, before a delivery relies on them
        self._busy: dict[str, asyncio.Lock] = {}

    # --- swaps ----------------------------------------------------------------------------

    async def swap(self, job: str) -> None:
        """Read a finished job through, then swap it in between two commits."""
        loop = asyncio.get_running_loop()
        verified = await loop.run_in_executor(self._background, self._store.verify_job, job)
        await self._topics.on_writer(lambda: self._store.apply_job(verified))
        logger.info("swap.applied job=%s partition=%s", job, verified.manifest.topic_partition)

    # --- deliveries -----------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> bool:
        """Append a query's batch; False when it was delivered before."""
        async with self._busy.setdefault(delivery.query, asyncio.Lock()):
            last = self._catalog.sinks.get(delivery.query)
            if last is not None and last["batch"] > delivery.batch:
                raise StaleDelivery(
                    f"query {delivery.query} delivered batch {last['batch']} and now comes with "
                    f"{delivery.batch}: its checkpoint is older than what it delivered"
                )
            if last is not None and last["batch"] == delivery.batch:
                await self._finish(delivery.query, last)
                self._forget(delivery.job)
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
        loop = asyncio.get_running_loop()
        numbers = dict(last["next"]) if last else {}
        staging = self.staging(delivery.job)
        parts = await loop.run_in_executor(
            self._background, self._number, staging, delivery.parts, numbers
        )
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
        for part in parts:
            partition = self._partition(part)
            data = _read(staging / part.file, sync=self._is_synced)
            headers = self._produce.check(partition, data, STAGED_BATCH_BYTES_MAX)
            records = sum(header.last_offset_delta + 1 for header in headers)
            where = str(partition.tp)
            sequence = numbers.get(where, 0)
            numbers[where] = sequence + records
            numbered.append(part._replace(sequence=sequence, records=records))
        if parts and self._is_synced:
            for directory in (staging, staging.parent):
                _sync(directory, os.O_DIRECTORY)
        return numbered

    async def _finish(self, query: str, record: Any) -> None:
        """Append what the log does not have yet, then note that all is there."""
        if record["done"]:
            return
        staging = self.staging(record["job"])
        for fields in record["parts"]:
            await self._append(staging, Part(*fields), record["producer_id"])
        now_ms = self._clock.now_ms()
        cursors = {
            ReaderPartition(reader, topic, partition): Cursor(offset, commit_ms=now_ms)
            for reader, topic, partition, offset in record["cursors"]
        }
        done = {**record, "done": True, "parts": [], "cursors": []}
        await self._in_meta(self._catalog.put_sink, query, done, cursors)
        self._forget(record["job"])

    async def _append(self, staging: Path, part: Part, producer_id: int) -> None:
        partition = self._partition(part)
        loop = asyncio.get_running_loop()
        data = await loop.run_in_executor(self._background, _read, staging / part.file)
        await loop.run_in_executor(self._background, _stamp, data, producer_id, part.sequence)
        have = partition.producers.last_sequence(producer_id, EPOCH)
        rest = _without_stored(data, have)
        if rest:
            await self._produce.submit(partition, rest, parse_headers(rest), strict=False)

    def _partition(self, part: Part) -> Partition:
        return self._topics.get(part.topic).partition(part.partition)

    # --- the staging area -----------------------------------------------------------------

    def staging(self, job: str) -> Path:
        """Where a job stages its files."""
        if not is_job_name(job):
            raise RequestError(f"{job!r} is no job name; use letters, digits, . _ and -")
        return self._store.data / "staging" / job

    async def upload(self, job: str, name: str, data: bytes) -> None:
        """Take one staged file from a job that cannot reach the data directory."""
        if not is_job_name(name):
            raise RequestError(f"{name!r} is no file name; use letters, digits, . _ and -")
        loop = asyncio.get_running_loop()
        target = self.staging(job) / name
        await loop.run_in_executor(self._background, _write, target, data)

    async def discard(self, job: str) -> None:
        """Forget a job's files, unless a delivery that was written down still needs them."""
        needed = {record["job"] for record in self._catalog.sinks.values() if not record["done"]}
        staging = self.staging(job)
        if job not in needed:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._background, shutil.rmtree, staging, True)

    def _forget(self, job: str) -> None:
        shutil.rmtree(self.staging(job), ignore_errors=True)

    async def _in_meta(self, change: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._meta_thread, change, *arguments)


def _read(path: Path, *, sync: bool = False) -> bytearray:
    try:
        if sync:
            _sync(path)
        return bytearray(path.read_bytes())
    except FileNotFoundError:
        raise UnknownJob(f"{path} was not staged; run the job again") from None


def _sync(path: Path, flags: int = 0) -> None:
    """Who staged it may sit on another machine; what is here is made durable here."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _stamp(data: bytearray, producer_id: int, sequence: int) -> None:
    position = 0
    for header in parse_headers(data):
        stamp_producer(
            data,
            position,
            producer_id=producer_id,
            producer_epoch=EPOCH,
            base_sequence=sequence % SEQUENCE_MODULUS,
        )
        position += header.size_bytes
        sequence += header.last_offset_delta + 1


def _without_stored(data: bytearray, have: int | None) -> bytearray:
    """The batches after the one whose last sequence the log has; all when it has none of them."""
    if have is None:
        return data
    position = 0
    for header in parse_headers(data):
        ahead = (header.last_sequence - have) % SEQUENCE_MODULUS
        if 0 < ahead < SEQUENCE_MODULUS // 2:
            break
        position += header.size_bytes
    return data[position:]
