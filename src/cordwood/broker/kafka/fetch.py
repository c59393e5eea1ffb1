"""Fetch: returns whole batches from an offset on, after waiting for enough bytes or a timeout.

Incremental fetch sessions are declined (session id 0): a full request costs one dictionary lookup
per partition. Batches in the page cache are read on the event loop, a limited amount at a time.
Everything else is read on a thread, so that neither disk reads nor a greedy client delay others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final, NamedTuple

from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.kafka.session import Session
from cordwood.broker.kafka.time_slices import TURN_ITEMS
from cordwood.broker.kafka.unsent_replies import UnsentReplies
from cordwood.broker.time_slices import TimeSlice
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.codes import Code
from cordwood.config import MIB
from cordwood.errors import CordwoodError, OffsetOutOfRange
from cordwood.log.write.partition import Partition
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.fetch import (
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

READ_COMMITTED: Final = 1
LOOP_BYTES: Final = MIB  # of one reply, read on the event loop; the client fetches the rest next
LOOK_ITEMS: Final = 16  # check the clock only after this many items, because it costs time too
WAIT_S_MAX: Final = 60.0
WATCHED_MAX: Final = 2_000  # a waiting request with more partitions is not woken by appends
UNWATCHED_WAIT_S: Final = 0.5


class _Result:
    """The result of one pass over the partitions of a request."""

    def __init__(self, request: FetchRequest, share_bytes: int) -> None:
        self.left_bytes = min(request.max_bytes, share_bytes)
        self.size_bytes = 0
        self.has_error = False
        self.topics: list[FetchedTopic] = []

    def add(self, parts: list[FetchedPartition], fetched: FetchedPartition) -> None:
        """Add one partition's result."""
        size = len(fetched.records or b"")
        self.left_bytes = max(0, self.left_bytes - size)
        self.size_bytes += size
        self.has_error |= fetched.error_code != Code.NONE
        parts.append(fetched)


class _Plan(NamedTuple):
    """A planned read of one partition: there is something to read."""

    partition: Partition
    number: int
    offset: int
    end: int
    bytes_max: int
    is_committed: bool
    replan: Callable[[], _Plan | FetchedPartition] | None = None  # once its files are open


class _Yield:
    """Yielded between reads to let the event loop serve others."""


_TURN: Final = _Yield()
Pause = _Plan | _Yield
Reads = Generator[Pause, FetchedPartition | None, None]  # threads' results are sent in


class KafkaFetch:
    """The handler of one API."""

    def __init__(
        self,
        topics: TopicService,
        notifier: AppendNotifier,
        clock: Clock,
        outgoing: UnsentReplies | None = None,
    ) -> None:
        """``outgoing`` knows how much of earlier replies is still unsent."""
        self._topics = topics
        self._outgoing = outgoing or UnsentReplies()
        self._notifier = notifier
        self._clock = clock

    def fetch(
        self, request: FetchRequest, _version: int, _session: Session
    ) -> Awaitable[FetchResponse]:
        """Read; if there is too little, wait for more and read again, until ``max_wait_ms``."""
        found = _Result(request, self._outgoing.share_bytes)
        reads = self._reads(request, found)
        pause = next(reads, None)
        if pause is not None or not self._is_enough(found, request):
            return self._finish(request, found, reads, pause)
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        answer.set_result(FetchResponse(topics=found.topics))
        return answer

    def _is_enough(self, found: _Result, request: FetchRequest) -> bool:
        return (
            found.size_bytes >= request.min_bytes
            or found.has_error
            or request.max_wait_ms <= 0
            or self._notifier.is_draining
        )

    async def _finish(
        self, request: FetchRequest, found: _Result, reads: Reads, pause: Pause | None
    ) -> FetchResponse:
        """Continue a fetch that has to wait."""
        wait_s = min(request.max_wait_ms / 1000, WAIT_S_MAX)
        deadline = self._clock.monotonic() + wait_s
        await _read_in_turns(reads, pause)
        if self._is_enough(found, request):
            return FetchResponse(topics=found.topics)
        if sum(len(topic.partitions) for topic in request.topics) > WATCHED_MAX:
            # Too many partitions to be woken by each of them: read again once, after a pause.
            await asyncio.sleep(min(wait_s, UNWATCHED_WAIT_S))
            return FetchResponse(topics=await self._read_all(request))
        wanted = [
            TopicPartition(topic.name, part.partition)
            for topic in request.topics
            for part in topic.partitions
        ]
        while True:
            published = self._notifier.expect(wanted)
            try:
                found = _Result(request, self._outgoing.share_bytes)
                reads = self._reads(request, found)
                await _read_in_turns(reads, next(reads, None))
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._is_enough(found, request):
                    return FetchResponse(topics=found.topics)
                await self._notifier.wait(published, left)
            finally:
                self._notifier.forget(published, wanted)

    async def _read_all(self, request: FetchRequest) -> list[FetchedTopic]:
        found = _Result(request, self._outgoing.share_bytes)
        reads = self._reads(request, found)
        await _read_in_turns(reads, next(reads, None))
        return found.topics

    # --- reading ----------------------------------------------------------------------------

    def _reads(self, request: FetchRequest, found: _Result) -> Reads:
        """Read what is in the page cache on the event loop; yield other reads to the caller."""
        left: int = TURN_ITEMS
        turn: TimeSlice | None = None  # most requests end before checking a clock pays off
        for topic in request.topics:
            parts: list[FetchedPartition] = []
            found.topics.append(FetchedTopic(topic.name, parts))
            left -= 1
            for part in topic.partitions:
                left -= 1
                if left % LOOK_ITEMS == 0:
                    turn = turn or TimeSlice()
                    if left <= 0 or turn.is_over():
                        yield _TURN
                        left, turn = TURN_ITEMS, None
                plan = self._plan(topic.name, part, request, found.left_bytes)
                if isinstance(plan, FetchedPartition):
                    found.add(parts, plan)
                elif request.min_bytes <= LOOP_BYTES and (here := _as_resident(plan, found)):
                    found.add(parts, _read_plan(here))
                    found.left_bytes = min(found.left_bytes, LOOP_BYTES - found.size_bytes)
                else:
                    fetched = yield plan
                    assert fetched is not None, "what was given out was read"
                    found.add(parts, fetched)

    def _plan(
        self, topic: str, part: FetchPartition, request: FetchRequest, left_bytes: int
    ) -> _Plan | FetchedPartition:
        """Plan the read, or return the reply if there is nothing to read."""
        try:
            partition = self._topics.get(topic).partition(part.partition)
        except CordwoodError as error:
            return FetchedPartition(part.partition, error.code, high_watermark=-1)
        if not partition.is_open:
            again = partial(self._plan, topic, part, request, left_bytes)
            return _Plan(partition, part.partition, 0, 0, 0, False, again)
        offset, high = part.fetch_offset, partition.high_watermark
        is_committed = request.isolation_level == READ_COMMITTED
        end = partition.last_stable_offset if is_committed else high
        if not partition.log_start_offset <= offset <= high:
            return _refused(partition, part.partition, OffsetOutOfRange.code)
        if offset >= end or left_bytes <= 0:
            return _fetched(partition, part.partition, b"", [] if is_committed else None)
        bytes_max = max(1, min(left_bytes, part.partition_max_bytes))
        return _Plan(partition, part.partition, offset, end, bytes_max, is_committed)


def _as_resident(plan: _Plan, found: _Result) -> _Plan | None:
    """Limit the plan to what the event loop may read; None if that would wait for the disk."""
    bytes_max = min(plan.bytes_max, LOOP_BYTES - found.size_bytes)
    if bytes_max <= 0:
        return None
    try:
        is_resident = plan.partition.is_resident(plan.offset, bytes_max)
    except CordwoodError:  # the read itself will report it
        return None
    return plan._replace(bytes_max=bytes_max) if is_resident else None


async def _read_in_turns(reads: Reads, pause: Pause | None) -> None:
    """Carry out the reads that ``reads`` yields, on a thread, until there are no more."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(StopIteration):
        while pause is not None:
            if isinstance(pause, _Yield):
                await asyncio.sleep(0)
                pause = reads.send(None)
            else:
                pause = reads.send(await loop.run_in_executor(None, _read_cold, pause))


def _read_cold(plan: _Plan) -> FetchedPartition:
    """Carry out a yielded read; opens the partition first if needed."""
    if plan.replan is None:
        return _read_plan(plan)
    try:
        plan.partition.load()
    except CordwoodError as error:
        return FetchedPartition(plan.number, error.code, high_watermark=-1)
    planned = plan.replan()
    return planned if isinstance(planned, FetchedPartition) else _read_cold(planned)


def _read_plan(plan: _Plan) -> FetchedPartition:
    """Carry out a read; safe on any thread."""
    partition = plan.partition
    try:
        read = partition.read(plan.offset, plan.bytes_max, end_offset=plan.end)
        aborted = None
        if plan.is_committed:
            aborted = [
                AbortedTransaction(entry.producer_id, entry.first_offset)
                for entry in partition.aborted(plan.offset, read.next_offset)
            ]
    except CordwoodError as error:
        return _refused(partition, plan.number, error.code)
    return FetchedPartition(
        plan.number,
        Code.NONE,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=aborted,
        records=read.data,
    )


def _fetched(
    partition: Partition,
    number: int,
    data: bytes | memoryview,
    aborted: list[AbortedTransaction] | None,
) -> FetchedPartition:
    return FetchedPartition(
        number,
        Code.NONE,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=aborted,
        records=data,
    )


def _refused(partition: Partition, number: int, code: int) -> FetchedPartition:
    return FetchedPartition(
        number,
        code,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
    )
