"""ListOffsets and OffsetForLeaderEpoch: find the offset of a time, or the end of a leader epoch."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from cordwood.broker.kafka.fetch import READ_COMMITTED
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.errors import CordwoodError
from cordwood.log.write.partition import Partition
from cordwood.protocol.kafka.messages.offsets import (
    EpochPartition,
    EpochPartitionEnd,
    EpochTopicEnd,
    ListedPartitionOffset,
    ListedTopicOffsets,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3


class KafkaOffsets:
    """The handlers of two APIs."""

    def __init__(self, topics: TopicService) -> None:
        self._topics = topics

    async def list_offsets(
        self, request: ListOffsetsRequest, _version: int, _session: Session
    ) -> ListOffsetsResponse:
        """Return the first offset at or after a time, per partition."""
        list_one = partial(self._list, request.isolation_level)
        topics = await RequestSlices().await_topics(request.topics, ListedTopicOffsets, list_one)
        return ListOffsetsResponse(topics=topics)

    async def _list(
        self, isolation_level: int, topic: str, part: ListOffsetsPartition
    ) -> ListedPartitionOffset:
        try:
            partition = await self._topics.open_partition(topic, part.partition)
            timestamp_ms, offset = await _find(partition, part.timestamp_ms, isolation_level)
        except CordwoodError as error:
            return ListedPartitionOffset(part.partition, error.code)
        return ListedPartitionOffset(
            part.partition, Code.NONE, timestamp_ms, offset, partition.leader_epoch
        )

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _version: int, _session: Session
    ) -> OffsetForLeaderEpochResponse:
        """Return where a leader epoch ended; a consumer checks its position with it."""
        topics = await RequestSlices().await_topics(request.topics, EpochTopicEnd, self._epoch_end)
        return OffsetForLeaderEpochResponse(topics=topics)

    async def _epoch_end(self, topic: str, part: EpochPartition) -> EpochPartitionEnd:
        try:
            partition = await self._topics.open_partition(topic, part.partition)
        except CordwoodError as error:
            return EpochPartitionEnd(error_code=error.code, partition=part.partition)
        end = partition.epoch_end(part.leader_epoch)
        if end is None:  # an unknown epoch: undefined, not an error
            return EpochPartitionEnd(Code.NONE, part.partition)
        return EpochPartitionEnd(Code.NONE, part.partition, end.epoch, end.end_offset)


async def _find(partition: Partition, timestamp_ms: int, isolation_level: int) -> tuple[int, int]:
    """Return (timestamp, offset); -1 for a value that does not exist."""
    if timestamp_ms == EARLIEST:
        return -1, partition.log_start_offset
    if timestamp_ms == LATEST:
        is_committed = isolation_level == READ_COMMITTED
        return -1, partition.last_stable_offset if is_committed else partition.high_watermark
    loop = asyncio.get_running_loop()
    if timestamp_ms == MAX_TIMESTAMP:
        match = await loop.run_in_executor(None, partition.find_max_time)
    else:
        match = await loop.run_in_executor(None, partition.find_time, timestamp_ms)
    return (match.timestamp_ms, match.offset) if match else (-1, -1)
