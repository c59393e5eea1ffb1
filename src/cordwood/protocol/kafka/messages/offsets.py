"""Looks up offsets of a partition, by time and by leader epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import Int8, Int16, Int32, Int64, Since, Str


class ListOffsetsPartition(NamedTuple):
    """The requested time; negative numbers have the meanings in ``broker.kafka.offsets``."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    timestamp_ms: Int64 = -1


class ListOffsetsTopic(NamedTuple):
    """The requested partitions of one topic."""

    name: Str
    partitions: Sequence[ListOffsetsPartition]


class ListOffsetsRequest(NamedTuple):
    """Find the first offset at or after a time, per partition."""

    replica_id: Int32
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: Sequence[ListOffsetsTopic] = ()
    timeout_ms: Annotated[Int32, Since(10)] = 0  # for lookups in a remote tier


class ListedPartitionOffset(NamedTuple):
    """The offset and the timestamp of its record; both are -1 if there is none."""

    partition: Int32
    error_code: Int16
    timestamp_ms: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListedTopicOffsets(NamedTuple):
    """The results for one topic."""

    name: Str
    partitions: Sequence[ListedPartitionOffset]


class ListOffsetsResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: Sequence[ListedTopicOffsets] = ()


class EpochPartition(NamedTuple):
    """The epoch whose end is requested."""

    partition: Int32
    current_leader_epoch: Int32
    leader_epoch: Int32


class EpochTopic(NamedTuple):
    """The requested partitions of one topic."""

    name: Str
    partitions: Sequence[EpochPartition]


class OffsetForLeaderEpochRequest(NamedTuple):
    """Ask where a leader epoch ends in our log."""

    replica_id: Annotated[Int32, Since(3)] = -2
    topics: Sequence[EpochTopic] = ()


class EpochPartitionEnd(NamedTuple):
    """The largest epoch not above the requested one, and the offset where it ends."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class EpochTopicEnd(NamedTuple):
    """The results for one topic."""

    name: Str
    partitions: Sequence[EpochPartitionEnd]


class OffsetForLeaderEpochResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[EpochTopicEnd] = ()
