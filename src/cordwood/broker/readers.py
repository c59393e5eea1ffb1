"""Reader service: how far each reader has read, and whether a record is processed or archived.

A cursor commit is confirmed only when it is durable. Commits that arrive while one is being written
share the next transaction, so a thousand readers cost a few fsyncs, not a thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from cordwood.clock import Clock
from cordwood.decide.retention import watermark
from cordwood.errors import OffsetOutOfRange, UnknownReader
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import TopicPartition
from cordwood.protocol.api.readers import ReaderRow

Commits = Mapping[ReaderPartition, Cursor]


class ReaderService:
    """Registered readers and every cursor, whichever protocol moves it."""

    def __init__(self, store: Store, clock: Clock, metadata: AsyncMetadata) -> None:
        self._store = store
        self._metadata = metadata
        self._cluster = metadata.cluster
        self._state = metadata.readers
        self._clock = clock
        self._pending: list[tuple[Commits, asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None

    # --- reader positions -----------------------------------------------------------------

    def position(self, tp: TopicPartition, reader: str) -> int:
        """Return the next offset the reader will read; 0 if it has not moved yet."""
        cursor = self._state.cursor(ReaderPartition(reader, *tp))
        return cursor.offset if cursor else 0

    def check_present(self, partition: Partition, offset: int) -> None:
        """Raise ``OffsetOutOfRange`` if no read can start here; names an archive bundle, if any."""
        start, end = partition.log_start_offset, partition.high_watermark
        if start <= offset <= end:
            return
        bundle = self._cluster.bundles(partition.tp).find(offset) if offset < start else None
        where = (
            f"; {offset + 1} is in archive bundle {bundle.name} under {bundle.place}: "
            f"`cordwood archive restore {partition.tp.topic}` brings it back"
            if bundle
            else ""
        )
        raise OffsetOutOfRange(
            f"{partition.tp.topic} has seq {start + 1} to {end}; {offset + 1} is outside of that "
            f"range{where}"
        )

    def status(self, partition: Partition, offset: int) -> str:
        """Return ``PENDING``, ``PROCESSED``, ``ARCHIVED <bundle>`` or ``UNKNOWN``."""
        if offset >= partition.high_watermark:
            return "UNKNOWN"
        positions = self._state.registered_positions(partition.tp)
        if offset >= partition.log_start_offset:
            passed = offset < watermark(positions, partition.log_start_offset)
            return "PROCESSED" if passed else "PENDING"
        bundle = self._cluster.bundles(partition.tp).find(offset)
        if bundle:
            return f"ARCHIVED {bundle.name}"
        return "PROCESSED" if positions and offset < min(positions.values()) else "UNKNOWN"

    def topics(self) -> list[str]:
        """Return the topics that have registered readers, sorted."""
        return sorted(name for name in list(self._cluster.topics) if self._state.registered(name))

    def rows(self, topic: str | None) -> Iterator[ReaderRow]:
        """Yield each registered reader by partition: its cursor, lag and the bytes it holds."""
        for name in [topic] if topic else self.topics():
            for partition in self._store.partitions(name):
                for reader, at in self._state.registered_positions(partition.tp).items():
                    yield _row(partition, reader, at)

    # --- moving readers -------------------------------------------------------------------

    async def register(self, topic: str, reader: str) -> None:
        """Register a reader, so that its cursor counts in the topic's watermark."""
        if reader not in self._state.registered(topic):
            await self._metadata.run(
                self._state.register_reader, topic, reader, self._clock.now_ms()
            )

    async def advance(self, tp: TopicPartition, reader: str, offset: int) -> None:
        """Move the cursor forward to ``offset``; never moves it back."""
        if reader not in self._state.registered(tp.topic):
            raise UnknownReader(
                f"no reader {reader} is registered on {tp.topic}; "
                f"send REGISTER {tp.topic} AS {reader}"
            )
        if offset > self.position(tp, reader):
            await self.reset(tp, reader, offset)

    async def reset(self, tp: TopicPartition, reader: str, offset: int) -> None:
        """Move a cursor anywhere up to the partition's end; raises ``OffsetOutOfRange``."""
        await self.reset_all(reader, {tp: offset})

    async def reset_all(self, reader: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move the reader's cursors on several partitions, all or none."""
        for tp, offset in offsets.items():
            check_cursor(self._store.topic(tp.topic).partition(tp.partition), offset)
        now_ms = self._clock.now_ms()
        await self.commit(
            {
                ReaderPartition(reader, *tp): Cursor(offset, commit_ms=now_ms)
                for tp, offset in offsets.items()
            }
        )

    async def remove(self, topic: str, reader: str) -> None:
        """Delete the reader's registration and cursors on this topic."""
        await self._metadata.run(self._state.unregister_reader, topic, reader)
        cursors = list(self._state.cursors())
        gone = [where for where in cursors if (where.reader, where.topic) == (reader, topic)]
        await self._metadata.run(self._state.delete_cursors, gone)

    async def commit(self, commits: Commits) -> None:
        """Make cursors durable, together with other pending commits."""
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
                await self._metadata.run(self._state.commit_cursors, merged)
            except Exception:  # noqa: BLE001 - bugs too, so that nobody waits for ever
                await self._flush_singly(waiting)
            else:
                for _, done in waiting:
                    _end(done, None)

    async def _flush_singly(self, waiting: list[tuple[Commits, asyncio.Future[None]]]) -> None:
        """Commit one by one after a failed group, so that only the bad commit is refused."""
        for commits, done in waiting:
            try:
                await self._metadata.run(self._state.commit_cursors, commits)
            except Exception as error:  # noqa: BLE001
                _end(done, error)
            else:
                _end(done, None)


def check_cursor(partition: Partition, offset: int) -> None:
    """Raise ``OffsetOutOfRange`` for a cursor past the partition's end: its reader would skip.

    Kafka's OffsetCommit is exempt, because Kafka does not check it; all other ways are checked.
    """
    end = partition.high_watermark
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(
            f"{partition.tp} ends at offset {end}, so a cursor cannot be at {offset}; give an "
            f"offset from 0 to {end}"
        )


def _row(partition: Partition, reader: str, position: int) -> ReaderRow:
    return ReaderRow(
        reader=reader,
        topic=partition.tp.topic,
        partition=partition.tp.partition,
        seq=position,
        lag=max(0, partition.high_watermark - max(position, partition.log_start_offset)),
        held_bytes=sum(
            segment.size_bytes for segment in partition.segments() if segment.end_offset > position
        ),
    )


def _end(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():  # the requester is gone
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(None)
