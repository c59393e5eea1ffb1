"""A line subscription: streams the records of one partition from an offset on.

It follows the log until ``end`` is called. If a subscriber closes its sending side, it gets the
records that exist at that moment and no more: the broker cannot tell whether it still reads or is
gone, and must not keep a dead connection waiting for records that may never come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cordwood.batch.kernels.loader import kernels_ready
from cordwood.batch.records import decode_committed
from cordwood.broker.append_notifier import AppendNotifier
from cordwood.config import KIB
from cordwood.log.write.partition import Partition
from cordwood.model import OFFSET_MAX, Record
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.records import encode_records

SLICE_BYTES = 256 * KIB  # how much of the log one subscription buffers at once
FRESH_RECORDS = 32  # up to this many new records are read on the event loop …
FRESH_BYTES = 16 * KIB  # … and about this many bytes of them
IDLE_POLL_S = 60.0  # a waiting subscription checks the log again at least this often


class PartitionSubscription:
    """An async iterable for one use; ``end`` makes the iteration stop."""

    def __init__(
        self, partition: Partition, offset: int, framing: Framing, notifier: AppendNotifier
    ) -> None:
        self._partition = partition
        self._offset = offset
        self._framing = framing
        self._notifier = notifier
        self._until = OFFSET_MAX
        self._wait: asyncio.Future[bool] | None = None

    def end(self) -> None:
        """Stop after the records that exist now; wakes a waiting iteration."""
        self._until = min(self._until, self._partition.last_stable_offset)
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield encoded records, one slice at a time."""
        partition = self._partition
        loop = asyncio.get_running_loop()
        is_fresh = False  # the next records were written while this subscriber waited
        while self._offset < self._until:
            self._wait = self._notifier.expect([partition.tp])
            try:
                if self._offset >= partition.last_stable_offset:
                    is_fresh = await self._notifier.wait(self._wait, IDLE_POLL_S)
                    continue
            finally:
                self._notifier.forget(self._wait, [partition.tp])
            if is_fresh and partition.last_stable_offset - self._offset <= FRESH_RECORDS:
                # A few records still in the page cache: two thread switches would cost more.
                lines, self._offset = _read_fresh(partition, self._offset, self._framing)
            else:
                # On a thread, disk reads and encoding do not delay other connections.
                lines, self._offset = await loop.run_in_executor(
                    None, _read_lines, partition, self._offset, self._framing
                )
            is_fresh = False
            if lines:
                yield lines


def read_committed(partition: Partition, offset: int, max_bytes: int) -> tuple[list[Record], int]:
    """Return the committed records of one slice, and the offset where the next slice begins."""
    read = partition.read(offset, max_bytes, end_offset=partition.last_stable_offset)
    void = partition.aborted(offset, read.next_offset)
    aborted = [(entry.producer_id, entry.first_offset) for entry in void]
    records = [r for r in decode_committed(read.data, aborted) if r.offset >= offset]
    return records, read.next_offset


def _read_fresh(partition: Partition, offset: int, framing: Framing) -> tuple[bytes, int]:
    """Read and encode a few records without the kernels."""
    records, next_offset = read_committed(partition, offset, FRESH_BYTES)
    return encode_records(records, framing), next_offset


def _read_lines(partition: Partition, offset: int, framing: Framing) -> tuple[bytes, int]:
    """Read and encode one slice, with the kernels once they are loaded."""
    if not kernels_ready():
        records, next_offset = read_committed(partition, offset, SLICE_BYTES)
        return encode_records(records, framing), next_offset
    from cordwood.batch.subscriber_lines import format_batches

    read = partition.read(offset, SLICE_BYTES, end_offset=partition.last_stable_offset)
    aborted = partition.aborted(offset, read.next_offset)
    is_framed = framing is Framing.FRAMES
    return format_batches(read.data, offset, aborted, is_framed=is_framed), read.next_offset
