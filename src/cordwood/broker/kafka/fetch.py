"""Fetch: whole batches from an offset on, held back until there is enough or time is up.

Incremental sessions are declined (session id 0): a full request costs one dictionary look-up per
partition here. What lies at the end of the log is read on the loop, since it is in the page
cache; anything older is read on another thread, so that a cold disk holds up nobody else.
"""

from __future__ import annotations

import asyncio
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
HOT_RECORDS: Final = 50_000  # this near the end of the log, reading does not wait for a disk
WAIT_S_MAX: Final = 60.0


class _Found(NamedTuple):
    topics: list[FetchedTopic]
    size_bytes: int
    has_error: bool


class KafkaFetch:
    """The handler of one API."""

    def __init__(self, topics: TopicDesk, feed: Feed, clock: Clock) -> None:
        self._topics = topics
        self._feed = feed
        self._clock = clock

    async def fetch(self, request: FetchRequest, _version: int, _caller: Caller) -> FetchResponse:
        """Read; if it is too little, wait for more and read again, until ``max_wait_ms``."""
        wait_s = min(request.max_wait_ms / 1000, WAIT_S_MAX)
        deadline = self._clock.monotonic() + wait_s
        wanted = [
            TopicPartition(topic.name, part.partition)
            for topic in request.topics
            for part in topic.partitions
        ]
        while True:
            published = self._feed.expect(wanted)
            try:
                found = await self._read(request)
                left = deadline - self._clock.monotonic()
                if found.size_bytes >= request.min_bytes or found.has_error or left <= 0:
                    return FetchResponse(topics=found.topics)
                await self._feed.wait(published, left)
            finally:
                self._feed.forget(published, wanted)

    async def _read(self, request: FetchRequest) -> _Found:
        left = min(request.max_bytes, RESPONSE_BYTES_MAX)
        topics, total, has_error = [], 0, False
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                fetched = await self._read_one(topic.name, part, left, request.isolation_level)
                size = len(fetched.records or b"")
                left, total = max(0, left - size), total + size
                has_error |= fetched.error_code != Code.NONE
                parts.append(fetched)
            topics.append(FetchedTopic(topic.name, parts))
        return _Found(topics, total, has_error)

    async def _read_one(
        self, topic: str, part: FetchPartition, bytes_left: int, isolation_level: int
    ) -> FetchedPartition:
        try:
            partition = self._topics.get(topic).partition(part.partition)
            return await self._read_partition(partition, part, bytes_left, isolation_level)
        except OffsetOutOfRange as error:
            return FetchedPartition(
                part.partition,
                error.code,
                high_watermark=partition.high_watermark,
                log_start_offset=partition.log_start_offset,
            )
        except CordwoodError as error:
            return FetchedPartition(part.partition, error.code, high_watermark=-1)

    async def _read_partition(
        self, partition: Partition, part: FetchPartition, bytes_left: int, isolation_level: int
    ) -> FetchedPartition:
        stable = partition.last_stable_offset
        high = partition.high_watermark
        is_committed = isolation_level == READ_COMMITTED
        end = stable if is_committed else high
        offset = part.fetch_offset
        if not partition.log_start_offset <= offset <= high:
            raise OffsetOutOfRange(f"{partition.tp} has no offset {offset}")
        data: bytes = b""
        aborted: list[AbortedTransaction] | None = [] if is_committed else None
        if offset < end and bytes_left > 0:
            bytes_max = max(1, min(bytes_left, part.partition_max_bytes))
            if high - offset <= HOT_RECORDS:
                read = partition.read(offset, bytes_max, end_offset=end)
            else:
                loop = asyncio.get_running_loop()
                read = await loop.run_in_executor(
                    None, lambda: partition.read(offset, bytes_max, end_offset=end)
                )
            data = read.data
            if is_committed:
                aborted = [
                    AbortedTransaction(entry.producer_id, entry.first_offset)
                    for entry in partition.aborted(offset, read.next_offset)
                ]
        return FetchedPartition(
            part.partition,
            Code.NONE,
            high_watermark=high,
            last_stable_offset=stable,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=aborted,
            records=data,
        )
