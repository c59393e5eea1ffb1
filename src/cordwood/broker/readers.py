"""The service for readers: who has read how far, and what became of a record.

A cursor commit is confirmed only when it is durable. Commits that arrive while one is being written
share the next transaction, so a thousand readers cost a few syncs, not a thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

from cordwood.clock import Clock
from cordwood.decide.retention import watermark
from cordwood.errors import OffsetOutOfRange, UnknownReader
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import TopicPartition

Commits = Mapping[ReaderPartition, Cursor]


class ReaderService:
    """Registered readers and every cursor, whichever protocol moves it."""

    def __init__(self, store: Store, clock: Clock, meta_thread: Executor) -> None:
        self._store = store
        self._catalog = store.catalog
        self._clock = clock
        self._meta_thread = meta_thread
        self._pending: list[tuple[Commits, asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None

    # --- where readers stand --------------------------------------------------------------

    def position(self, tp: TopicPartition, reader: str) -> int:
        """The next offset the reader will read; 0 when it has not moved yet."""
        cursor = self._catalog.cursor(ReaderPartition(reader, *tp))
        return cursor.offset if cursor else 0

    def check_present(self, partition: Partition, offset: int) -> None:
        """Raise ``OffsetOutOfRange`` where no read can start, saying where the records went."""
        start, end = partition.log_start_offset, partition.high_watermark
        if start <= offset <= end:
            return
        bundle = self._catalog.bundles(partition.tp).find(offset) if offset < start else None
        where = (
            f"; {offset + 1} is in archive bundle {bundle.name} under {bundle.place}: "
            f"`cordwood archive restore {partition.tp.topic}` brings it back"
            if bundle
            else ""
        )
        raise OffsetOutOfRange(
            f"{partition.tp.topic} holds seq {start + 1} to {end} and {offset + 1} is not among "
            f"them{where}"
        )

    def status(self, partition: Partition, offset: int) -> str:
        """``PENDING``, ``PROCESSED``, ``ARCHIVED <bundle>`` or ``UNKNOWN``."""
        if offset >= partition.high_watermark:
            return "UNKNOWN"
        positions = self._catalog.registered_positions(partition.tp)
        if offset >= partition.log_start_offset:
            passed = offset < watermark(positions, partition.log_start_offset)
            return "PROCESSED" if passed else "PENDING"
        bundle = self._catalog.bundles(partition.tp).find(offset)
        if bundle:
            return f"ARCHIVED {bundle.name}"
        return "PROCESSED" if positions and offset < min(positions.values()) else "UNKNOWN"

    def topics(self) -> list[str]:
        """The topics that have registered readers, in order."""
        return sorted(name for name in list(self._catalog.topics) if self._catalog.registered(name))

    def describe(self, topic: str | None) -> list[dict[str, Any]]:
        """Every registered reader on every partition: its cursor, lag and the bytes it holds."""
        return list(self.rows(topic))

    def rows(self, topic: str | None) -> Iterator[dict[str, Any]]:
        """The same one by one."""
        for name in [topic] if topic else self.topics():
            for partition in self._store.partitions(name):
                for reader, at in self._catalog.registered_positions(partition.tp).items():
                    yield self._describe(partition, reader, at)

    def _describe(self, partition: Partition, reader: str, position: int) -> dict[str, Any]:
        return {
            "reader": reader,
            "topic": partition.tp.topic,
            "partition": partition.tp.partition,
            "seq": position,
            "lag": max(0, partition.high_watermark - max(position, partition.log_start_offset)),
            "held_bytes": sum(
                segment.size_bytes
                for segment in partition.segments()
                if segment.end_offset > position
            ),
        }

    # --- what moves them ------------------------------------------------------------------

    async def register(self, topic: str, reader: str) -> None:
        """From now on the reader's cursor counts in the topic's watermark."""
        if reader not in self._catalog.registered(topic):
            await self._in_meta(self._catalog.register_reader, topic, reader, self._clock.now_ms())

    async def advance(self, tp: TopicPartition, reader: str, offset: int) -> None:
        """The reader has passed everything below ``offset``; it never moves back this way."""
        if reader not in self._catalog.registered(tp.topic):
            raise UnknownReader(
                f"no reader {reader} is registered on {tp.topic}; "
                f"send REGISTER {tp.topic} AS {reader}"
            )
        if offset > self.position(tp, reader):
            await self.reset(tp, reader, offset)

    async def reset(self, tp: TopicPartition, reader: str, offset: int) -> None:
        """Put a cursor anywhere up to the partition's end; raises ``OffsetOutOfRange``."""
        check_cursor(self._store.topic(tp.topic).partition(tp.partition), offset)
        cursor = Cursor(offset, commit_ms=self._clock.now_ms())
        await self.commit({ReaderPartition(reader, *tp): cursor})

    async def remove(self, topic: str, reader: str) -> None:
        """Forget the reader on this topic, registration and cursors."""
        await self._in_meta(self._catalog.unregister_reader, topic, reader)
        cursors = list(self._catalog.cursors())
        gone = [where for where in cursors if (where.reader, where.topic) == (reader, topic)]
        await self._in_meta(self._catalog.delete_cursors, gone)

    async def commit(self, commits: Commits) -> None:
        """Make cursors durable, together with whatever else is being committed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((commits, done))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.ensure_future(self._flush())
        await done

    async def _flush(self) -> None:
        while self._pending:
            waiting, self._pending = self._pending, []
            merged = {where: at for commits, _ in waiting for where, at in commits.items()}
            try:
                await self._in_meta(self._catalog.commit_cursors, merged)
            except Exception:  # noqa: BLE001 - our own mistakes too: nobody waits for ever
                await self._flush_singly(waiting)
            else:
                for _, done in waiting:
                    _end(done, None)

    async def _flush_singly(self, waiting: list[tuple[Commits, asyncio.Future[None]]]) -> None:
        """One of them cannot be: find out which, so that its neighbours are not refused."""
        for commits, done in waiting:
            try:
                await self._in_meta(self._catalog.commit_cursors, commits)
            except Exception as error:  # noqa: BLE001
                _end(done, error)
            else:
                _end(done, None)

    async def _in_meta(self, change: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._meta_thread, change, *arguments)


def check_cursor(partition: Partition, offset: int) -> None:
    """Raise ``OffsetOutOfRange`` for a cursor past the partition's end: its reader would skip.

    Kafka's own OffsetCommit is not held to this, as Kafka does not; every other way in is.
    """
    end = partition.high_watermark
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(
            f"{partition.tp} ends at offset {end}, so no cursor can stand at {offset}; "
            f"give an offset from 0 to {end}"
        )


def _end(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():  # whoever waited has gone
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(None)
