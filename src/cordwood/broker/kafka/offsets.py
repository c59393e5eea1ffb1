"""ListOffsets and OffsetForLeaderEpoch: find the offset of a time, or the end of a leader epoch."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from cordwood.broker.cluster_view import NO_EPOCH
from cordwood.broker.kafka.fetch import READ_COMMITTED
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.errors import CordwoodError
from cordwood.log.write.partition import Partition
from cordwood.protocol.kafka.messages import offsets as m
from cordwood.protocol.kafka.schema import NEVER

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4  # the first offset on this broker's disk, also with a remote tier
LATEST_TIERED: Final = -5  # the last offset in the remote tier
EARLIEST_PENDING_UPLOAD: Final = -6  # the first offset not yet in the remote tier
_FIRST_VERSION: Final = {  # of each negative number
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class KafkaOffsets:
    """The handlers of two APIs."""

    def __init__(self, topics: TopicService) -> None:
        self._topics = topics

    async def list_offsets(
        self, request: m.ListOffsetsRequest, version: int, _session: Session
    ) -> m.ListOffsetsResponse:
        """Return the first offset at or after a time, per partition."""
        list_one = partial(self._list, version, request.isolation_level)
        topics = await RequestSlices().await_topics(request.topics, m.ListedTopicOffsets, list_one)
        return m.ListOffsetsResponse(topics=topics)

    async def _list(
        self, version: int, isolation_level: int, topic: str, part: m.ListOffsetsPartition
    ) -> m.ListedPartitionOffset:
        if part.timestamp_ms < 0 and version < _FIRST_VERSION.get(part.timestamp_ms, NEVER):
            return m.ListedPartitionOffset(part.partition, Code.UNSUPPORTED_VERSION)
        try:
            partition = await self._topics.open_partition(topic, part.partition)
            timestamp_ms, offset = await _find(partition, part.timestamp_ms, isolation_level)
        except CordwoodError as error:
            return m.ListedPartitionOffset(part.partition, error.code)
        epoch = partition.leader_epoch if offset >= 0 else NO_EPOCH
        return m.ListedPartitionOffset(part.partition, Code.NONE, timestamp_ms, offset, epoch)

    async def offset_for_leader_epoch(
        self, request: m.OffsetForLeaderEpochRequest, _version: int, _session: Session
    ) -> m.OffsetForLeaderEpochResponse:
        """Return where a leader epoch ended; a consumer checks its position with it."""
        topics = await RequestSlices().await_topics(
            request.topics, m.EpochTopicEnd, self._epoch_end
        )
        return m.OffsetForLeaderEpochResponse(topics=topics)

    async def _epoch_end(self, topic: str, part: m.EpochPartition) -> m.EpochPartitionEnd:
        try:
            partition = await self._topics.open_partition(topic, part.partition)
        except CordwoodError as error:
            return m.EpochPartitionEnd(error_code=error.code, partition=part.partition)
        end = partition.epoch_end(part.leader_epoch)
        if end is None:  # an unknown epoch: undefined, not an error
            return m.EpochPartitionEnd(Code.NONE, part.partition)
        return m.EpochPartitionEnd(Code.NONE, part.partition, end.epoch, end.end_offset)


async def _find(partition: Partition, timestamp_ms: int, isolation_level: int) -> tuple[int, int]:
    """Return (timestamp, offset); -1 for a value that does not exist: there is no remote tier."""
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.log_start_offset
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1
    if timestamp_ms == LATEST:
        is_committed = isolation_level == READ_COMMITTED
        return -1, partition.last_stable_offset if is_committed else partition.high_watermark
    loop = asyncio.get_running_loop()
    if timestamp_ms == MAX_TIMESTAMP:
        match = await loop.run_in_executor(None, partition.find_max_time)
    else:
        match = await loop.run_in_executor(None, partition.find_time, timestamp_ms)
    return (match.timestamp_ms, match.offset) if match else (-1, -1)
