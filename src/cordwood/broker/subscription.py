"""A line subscription: streams the records of a topic's partitions, each from an offset on.

It follows the log until ``end`` is called. If a subscriber closes its sending side, it gets the
records that exist at that moment and no more: the broker cannot tell whether it still reads or is
gone, and must not keep a dead connection waiting for records that may never come.

Several partitions take turns: each turn reads one slice of the next partition that has records. So
a busy partition delays the others by at most one slice, and a subscription never holds more than
one slice in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from cordwood.batch.kernels.loader import kernels_ready
from cordwood.batch.records import decode_committed
from cordwood.broker.append_notifier import AppendNotifier
from cordwood.config import KIB
from cordwood.errors import InvalidPartitions
from cordwood.log.lifecycle.live_topics import LiveTopic
from cordwood.log.write.partition import Partition
from cordwood.model import OFFSET_MAX, Record
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.records import encode_records

SLICE_BYTES = 256 * KIB  # how much of the log one subscription buffers at once
FRESH_RECORDS = 32  # up to this many new records are read on the event loop …
FRESH_BYTES = 16 * KIB  # … and about this many bytes of them
IDLE_POLL_S = 60.0  # a waiting subscription checks the log again at least this often


@dataclass(slots=True)
class PartitionStream:
    """One partition of a subscription and its next offset; a label is written before each seq."""

    partition: Partition
    offset: int
    label: int | None = None
    until: int = OFFSET_MAX

    @property
    def has_records(self) -> bool:
        """Whether there are records to send now."""
        return self.offset < min(self.until, self.partition.last_stable_offset)


class TopicSubscription:
    """An async iterable for one use; ``end`` makes the iteration stop."""

    def __init__(
        self, streams: Sequence[PartitionStream], framing: Framing, notifier: AppendNotifier,
        *, whole: LiveTopic | None = None,
    ) -> None:  # fmt: skip
        """With ``whole``, the iteration fails when that topic gets more partitions than these."""
        self._streams = streams
        self._partitions = [stream.partition.tp for stream in streams]
        self._framing = framing
        self._notifier = notifier
        self._whole = whole
        self._turn = 0
        self._fresh_left = 0  # reads of records that were written while this subscriber waited
        self._wait: asyncio.Future[bool] | None = None

    def end(self) -> None:
        """Stop after the records that exist now; wakes a waiting iteration."""
        for stream in self._streams:
            stream.until = min(stream.until, stream.partition.last_stable_offset)
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield encoded records, one slice at a time."""
        while any(stream.offset < stream.until for stream in self._streams):
            self._check_partition_count()
            stream = self._next_stream()
            if stream is None:
                await self._wait_for_records()
                continue
            lines = await self._read(stream)
            if lines:
                yield lines

    async def _wait_for_records(self) -> None:
        self._wait = self._notifier.expect(self._partitions)
        try:
            if not any(stream.has_records for stream in self._streams):
                is_woken = await self._notifier.wait(self._wait, IDLE_POLL_S)
                self._fresh_left = len(self._streams) if is_woken else 0
        finally:
            self._notifier.forget(self._wait, self._partitions)

    def _check_partition_count(self) -> None:
        if self._whole is not None and self._whole.partition_count != len(self._streams):
            raise InvalidPartitions(
                f"{self._whole.name} now has {self._whole.partition_count} partitions, and this "
                f"subscription reads {len(self._streams)}; subscribe again to read them all"
            )

    def _next_stream(self) -> PartitionStream | None:
        """Return the next partition with records, in turn."""
        count = len(self._streams)
        for step in range(count):
            number = (self._turn + step) % count
            if self._streams[number].has_records:
                self._turn = number + 1
                return self._streams[number]
        return None

    async def _read(self, stream: PartitionStream) -> bytes:
        is_fresh, self._fresh_left = self._fresh_left > 0, max(0, self._fresh_left - 1)
        pending = stream.partition.last_stable_offset - stream.offset
        if is_fresh and pending <= FRESH_RECORDS:
            # A few records still in the page cache: two thread switches would cost more.
            lines, stream.offset = _read_fresh(stream, self._framing)
        else:
            # On a thread, disk reads and encoding do not delay other connections.
            lines, stream.offset = await asyncio.get_running_loop().run_in_executor(
                None, _read_lines, stream, self._framing
            )
        return lines


def read_committed(partition: Partition, offset: int, max_bytes: int) -> tuple[list[Record], int]:
    """Return the committed records of one slice, and the offset where the next slice begins."""
    read = partition.read(offset, max_bytes, end_offset=partition.last_stable_offset)
    void = partition.aborted(offset, read.next_offset)
    aborted = [(entry.producer_id, entry.first_offset) for entry in void]
    records = [r for r in decode_committed(read.data, aborted) if r.offset >= offset]
    return records, read.next_offset


def _read_fresh(stream: PartitionStream, framing: Framing) -> tuple[bytes, int]:
    """Read and encode a few records without the kernels."""
    records, next_offset = read_committed(stream.partition, stream.offset, FRESH_BYTES)
    return encode_records(records, framing, stream.label), next_offset


def _read_lines(stream: PartitionStream, framing: Framing) -> tuple[bytes, int]:
    """Read and encode one slice, with the kernels once they are loaded."""
    partition, offset = stream.partition, stream.offset
    if not kernels_ready():
        records, next_offset = read_committed(partition, offset, SLICE_BYTES)
        return encode_records(records, framing, stream.label), next_offset
    from cordwood.batch.subscriber_lines import format_batches

    read = partition.read(offset, SLICE_BYTES, end_offset=partition.last_stable_offset)
    aborted = partition.aborted(offset, read.next_offset)
    is_framed = framing is Framing.FRAMES
    lines = format_batches(read.data, offset, aborted, is_framed=is_framed, partition=stream.label)
    return lines, read.next_offset
