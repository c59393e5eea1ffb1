"""Fetch: whole batches from an offset on, held back until there is enough or time is up.

Incremental sessions are declined (session id 0): a full request costs one dictionary look-up per
partition here. What is in the page cache is read on the loop, a little at a time; anything else on
another thread, so that neither a cold disk nor a greedy client holds up anybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Generator
from typing import Final, NamedTuple

from cordwood.broker.feed import Feed
from cordwood.broker.kafka.caller import Caller
from cordwood.broker.topics import TopicDesk
from cordwood.clock import Clock
from cordwood.config import MIB
from cordwood.decide.codes import Code
from cordwood.errors import CordwoodError, OffsetOutOfRange
from cordwood.log.partition import Partition
from cordwood.model import TopicPartition
from cordwood.wire.kafka.messages.fetch import (
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

READ_COMMITTED: Final = 1
RESPONSE_BYTES_MAX: Final = 64 * MIB  # whatever the client would take
LOOP_BYTES: Final = MIB  # of one reply read on the loop; the client asks again for the rest
WAIT_S_MAX: Final = 60.0


class _Found:
    """What one look at the partitions of a request gave."""

    def __init__(self, request: FetchRequest) -> None:
        self.left_bytes = min(request.max_bytes, RESPONSE_BYTES_MAX)
        self.size_bytes = 0
        self.has_error = False
        self.topics: list[FetchedTopic] = []

    def add(self, parts: list[FetchedPartition], fetched: FetchedPartition) -> None:
        """Count one partition in."""
        size = len(fetched.records or b"")
        self.left_bytes = max(0, self.left_bytes - size)
        self.size_bytes += size
        self.has_error |= fetched.error_code != Code.NONE
        parts.append(fetched)


class _Plan(NamedTuple):
    """One partition's part of a request, looked up: there is something to read."""

    partition: Partition
    number: int
    offset: int
    end: int
    bytes_max: int
    is_committed: bool


Reads = Generator[_Plan, FetchedPartition, None]  # gives what must be read elsewhere, takes it back


class KafkaFetch:
    """The handler of one API."""

    def __init__(self, topics: TopicDesk, feed: Feed, clock: Clock) -> None:
        self._topics = topics
        self._feed = feed
        self._clock = clock

    def fetch(
        self, request: FetchRequest, _version: int, _caller: Caller
    ) -> Awaitable[FetchResponse]:
        """Read; if it is too little, wait for more and read again, until ``max_wait_ms``."""
        found = _Found(request)
        reads = self._reads(request, found)
        cold = next(reads, None)
        if cold is not None or not self._is_enough(found, request):
            return self._finish(request, found, reads, cold)
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        answer.set_result(FetchResponse(topics=found.topics))
        return answer

    def _is_enough(self, found: _Found, request: FetchRequest) -> bool:
        return (
            found.size_bytes >= request.min_bytes
            or found.has_error
            or request.max_wait_ms <= 0
            or self._feed.is_draining
        )

    async def _finish(
        self, request: FetchRequest, found: _Found, reads: Reads, cold: _Plan | None
    ) -> FetchResponse:
        """Go on where ``fetch`` would have had to wait."""
        deadline = self._clock.monotonic() + min(request.max_wait_ms / 1000, WAIT_S_MAX)
        await _read_elsewhere(reads, cold)
        if self._is_enough(found, request):
            return FetchResponse(topics=found.topics)
        wanted = [
            TopicPartition(topic.name, part.partition)
            for topic in request.topics
            for part in topic.partitions
        ]
        while True:
            published = self._feed.expect(wanted)
            try:
                found = _Found(request)
                reads = self._reads(request, found)
                await _read_elsewhere(reads, next(reads, None))
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._is_enough(found, request):
                    return FetchResponse(topics=found.topics)
                await self._feed.wait(published, left)
            finally:
                self._feed.forget(published, wanted)

    # --- reading ----------------------------------------------------------------------------

    def _reads(self, request: FetchRequest, found: _Found) -> Reads:
        """Read on the loop what is in the page cache; give out what is not, in between."""
        for topic in request.topics:
            parts: list[FetchedPartition] = []
            found.topics.append(FetchedTopic(topic.name, parts))
            for part in topic.partitions:
                plan = self._plan(topic.name, part, request, found.left_bytes)
                if isinstance(plan, FetchedPartition):
                    found.add(parts, plan)
                elif request.min_bytes <= LOOP_BYTES and (here := _as_resident(plan, found)):
                    found.add(parts, _read_plan(here))
                    found.left_bytes = min(found.left_bytes, LOOP_BYTES - found.size_bytes)
                else:
                    found.add(parts, (yield plan))

    def _plan(
        self, topic: str, part: FetchPartition, request: FetchRequest, left_bytes: int
    ) -> _Plan | FetchedPartition:
        """What is to be read, or the answer where nothing is."""
        try:
            partition = self._topics.get(topic).partition(part.partition)
        except CordwoodError as error:
            return FetchedPartition(part.partition, error.code, high_watermark=-1)
        offset, high = part.fetch_offset, partition.high_watermark
        is_committed = request.isolation_level == READ_COMMITTED
        end = partition.last_stable_offset if is_committed else high
        if not partition.log_start_offset <= offset <= high:
            return _refused(partition, part.partition, OffsetOutOfRange.code)
        if offset >= end or left_bytes <= 0:
            return _fetched(partition, part.partition, b"", [] if is_committed else None)
        bytes_max = max(1, min(left_bytes, part.partition_max_bytes))
        return _Plan(partition, part.partition, offset, end, bytes_max, is_committed)


def _as_resident(plan: _Plan, found: _Found) -> _Plan | None:
    """What of it may be read on the loop, if that waits for no disk."""
    bytes_max = min(plan.bytes_max, LOOP_BYTES - found.size_bytes)
    if bytes_max <= 0:
        return None
    try:
        is_resident = plan.partition.is_resident(plan.offset, bytes_max)
    except CordwoodError:  # the read will say it
        return None
    return plan._replace(bytes_max=bytes_max) if is_resident else None


async def _read_elsewhere(reads: Reads, cold: _Plan | None) -> None:
    """Do the reads that are given out, on another thread, until there are no more."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(StopIteration):
        while cold is not None:
            cold = reads.send(await loop.run_in_executor(None, _read_plan, cold))


def _read_plan(plan: _Plan) -> FetchedPartition:
    """Carry it out; any thread."""
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
    return _fetched(partition, plan.number, read.data, aborted)


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
