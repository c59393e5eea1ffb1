"""A subscription: the records of a partition from an offset on, as one line subscriber reads them.

It follows the log until it is told to end. A subscriber that ends its side of the connection gets
what there is at that moment and no more: whether it still reads or is gone cannot be told, and one
that is gone must not be kept for records that may never come.
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

SLICE_BYTES = 256 * KIB  # how much of the log a subscriber has in memory at once
FRESH_RECORDS = 32  # so few new records are sent on by the loop itself …
FRESH_BYTES = 16 * KIB  # … and about so many bytes of them
IDLE_POLL_S = 60.0  # a subscriber's wait is renewed this often, come what may


class PartitionSubscription:
    """Iterate over it once; ``end`` lets the iteration come to its end."""

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
        """Give what there is now, then stop; who waits for more is woken."""
        self._until = min(self._until, self._partition.last_stable_offset)
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Encoded records, a slice at a time."""
        partition = self._partition
        loop = asyncio.get_running_loop()
        is_fresh = False  # what is there now was written while this subscriber waited
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
                # Elsewhere, neither a cold disk nor the encoding holds up other connections.
                lines, self._offset = await loop.run_in_executor(
                    None, _read_lines, partition, self._offset, self._framing
                )
            is_fresh = False
            if lines:
                yield lines


def read_committed(partition: Partition, offset: int, max_bytes: int) -> tuple[list[Record], int]:
    """The records of one slice that are for everybody, and where the next slice begins."""
    read = partition.read(offset, max_bytes, end_offset=partition.last_stable_offset)
    void = partition.aborted(offset, read.next_offset)
    aborted = [(entry.producer_id, entry.first_offset) for entry in void]
    records = [r for r in decode_committed(read.data, aborted) if r.offset >= offset]
    return records, read.next_offset


def _read_fresh(partition: Partition, offset: int, framing: Framing) -> tuple[bytes, int]:
    """A few records as a subscriber reads them, the plain way."""
    records, next_offset = read_committed(partition, offset, FRESH_BYTES)
    return encode_records(records, framing), next_offset


def _read_lines(partition: Partition, offset: int, framing: Framing) -> tuple[bytes, int]:
    """The same slice as a subscriber reads it: by the kernels once they are there."""
    if not kernels_ready():
        records, next_offset = read_committed(partition, offset, SLICE_BYTES)
        return encode_records(records, framing), next_offset
    from cordwood.batch.subscriber_lines import format_batches

    read = partition.read(offset, SLICE_BYTES, end_offset=partition.last_stable_offset)
    void = partition.aborted(offset, read.next_offset)
    aborted = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in void]
    is_framed = framing is Framing.FRAMES
    return format_batches(read.data, offset, aborted, is_framed=is_framed), read.next_offset
