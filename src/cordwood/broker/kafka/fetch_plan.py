"""A fetch in two phases: plan what to read of each partition, then read within the limits.

``plan_partition`` decides for one partition: an answer without a read, or a read. ``FetchRun``
carries a plan out in the order of the request, under limits that all partitions share. Batches in
the page cache are read on the event loop, a limited amount at a time. Everything else is read on a
thread, so that neither disk reads nor a greedy client delay others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from cordwood.broker.time_slices import TimeSlice
from cordwood.codes import Code
from cordwood.config import MIB
from cordwood.errors import CordwoodError, OffsetOutOfRange
from cordwood.log.write.partition import Partition
from cordwood.protocol.kafka.messages.fetch import (
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

LOOP_BYTES: Final = MIB  # of one reply, read on the event loop; the client fetches the rest next
LOOK_ITEMS: Final = 16  # check the clock only after this many items, because it costs time too


class PartitionRead(NamedTuple):
    """A planned read: there are records from ``offset`` on."""

    partition: Partition
    number: int
    offset: int
    end: int
    bytes_max: int
    is_committed: bool

    def is_resident(self, limit_bytes: int) -> bool:
        """Return whether the read would find everything in the page cache."""
        try:
            return self.partition.is_resident(self.offset, min(self.bytes_max, limit_bytes))
        except CordwoodError:  # the read itself will report it
            return False

    def read(self, limit_bytes: int) -> FetchedPartition:
        """Read at least one batch if the limit is positive; safe on any thread."""
        partition = self.partition
        if limit_bytes <= 0:
            return _nothing(partition, self.number, is_committed=self.is_committed)
        try:
            read = partition.read(
                self.offset, max(1, min(self.bytes_max, limit_bytes)), end_offset=self.end
            )
            aborted = None
            if self.is_committed:
                aborted = [
                    AbortedTransaction(entry.producer_id, entry.first_offset)
                    for entry in partition.aborted(self.offset, read.next_offset)
                ]
        except CordwoodError as error:
            return _refused(partition, self.number, error.code)
        return FetchedPartition(
            self.number,
            Code.NONE,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=aborted,
            records=read.data,
        )


class PartitionLoad(NamedTuple):
    """A partition whose files must be opened, on a thread, before its read can be planned."""

    partition: Partition
    part: FetchPartition
    is_committed: bool

    def is_resident(self, _limit_bytes: int) -> bool:
        """Return False: nothing of it is known yet."""
        return False

    def read(self, limit_bytes: int) -> FetchedPartition:
        """Open the partition, then plan and carry out the read."""
        try:
            self.partition.load()
        except CordwoodError as error:
            return FetchedPartition(self.part.partition, error.code, high_watermark=-1)
        planned = plan_partition(self.partition, self.part, is_committed=self.is_committed)
        return planned if isinstance(planned, FetchedPartition) else planned.read(limit_bytes)


Planned = PartitionRead | PartitionLoad | FetchedPartition


def plan_partition(partition: Partition, part: FetchPartition, *, is_committed: bool) -> Planned:
    """Plan the read, or return the reply if there is nothing to read."""
    if not partition.is_open:
        return PartitionLoad(partition, part, is_committed)
    offset, high = part.fetch_offset, partition.high_watermark
    end = partition.last_stable_offset if is_committed else high
    if not partition.log_start_offset <= offset <= high:
        return _refused(partition, part.partition, OffsetOutOfRange.code)
    if offset >= end:
        return _nothing(partition, part.partition, is_committed=is_committed)
    return PartitionRead(
        partition, part.partition, offset, end, part.partition_max_bytes, is_committed
    )


class FetchRun:
    """Carries out the plan of one request."""

    size_bytes = 0
    has_error = False
    _waiting: PartitionRead | PartitionLoad | None = None  # the step for a thread

    def __init__(self, request: FetchRequest, plan: Sequence[Planned], share_bytes: int) -> None:
        """``plan`` has one step for each partition of the request, in its order."""
        self._request = request
        self._steps = iter(plan)
        self._fetched: list[FetchedPartition] = []
        self._left_bytes = min(request.max_bytes, share_bytes)

    def advance(self) -> bool:
        """Read from the page cache; returns whether the plan is done.

        Stops before a read that needs a thread, and when others must have their turn.
        """
        turn: TimeSlice | None = None  # most plans end before checking a clock pays off
        for planned in self._steps:
            if isinstance(planned, FetchedPartition):
                self._add(planned)
            elif not self._read_here(planned):
                self._waiting = planned
                return False
            if len(self._fetched) % LOOK_ITEMS == 0:
                turn = turn or TimeSlice()
                if turn.is_over():
                    return False
        return True

    def _read_here(self, planned: PartitionRead | PartitionLoad) -> bool:
        """Read on the event loop; returns whether this was possible without waiting."""
        if self._left_bytes > 0:
            left_bytes = min(self._left_bytes, LOOP_BYTES - self.size_bytes)
            if left_bytes <= 0 or self._request.min_bytes > LOOP_BYTES:
                return False
            if not planned.is_resident(left_bytes):
                return False
            self._left_bytes = left_bytes
        elif isinstance(planned, PartitionLoad):
            return False
        self._add(planned.read(self._left_bytes))
        return True

    async def finish(self) -> FetchRun:
        """Carry out the rest of the plan, with reads on a thread where they wait for the disk."""
        loop = asyncio.get_running_loop()
        is_done = self._waiting is None and self.advance()
        while not is_done:
            if self._waiting is None:
                await asyncio.sleep(0)
            else:
                waiting, self._waiting = self._waiting, None
                self._add(await loop.run_in_executor(None, waiting.read, self._left_bytes))
            is_done = self.advance()
        return self

    def _add(self, fetched: FetchedPartition) -> None:
        size = len(fetched.records or b"")
        self._left_bytes -= size
        self.size_bytes += size
        if fetched.error_code:
            self.has_error = True
        self._fetched.append(fetched)

    def response(self) -> FetchResponse:
        """Return the reply of a plan that is done."""
        fetched = iter(self._fetched)
        return FetchResponse(
            topics=[
                FetchedTopic(
                    topic.name, topic.topic_id, list(islice(fetched, len(topic.partitions)))
                )
                for topic in self._request.topics
            ]
        )


def _nothing(partition: Partition, number: int, *, is_committed: bool) -> FetchedPartition:
    return FetchedPartition(
        number,
        Code.NONE,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=[] if is_committed else None,
        records=b"",
    )


def _refused(partition: Partition, number: int, code: int) -> FetchedPartition:
    return FetchedPartition(
        number,
        code,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
    )
