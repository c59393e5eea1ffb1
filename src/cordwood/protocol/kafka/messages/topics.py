"""Topic administration: create, delete, add partitions, delete records, describe directories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from cordwood.protocol.kafka.primitives import (
    NO_ID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullSince,
    Since,
    Str,
    Tag,
    Until,
    Uuid,
)

# --- CreateTopics ---------------------------------------------------------------------------


class ReplicaAssignment(NamedTuple):
    """The brokers that shall hold one partition."""

    partition: Int32
    broker_ids: Sequence[Int32]


class CreateTopicConfig(NamedTuple):
    """A setting of the new topic."""

    name: Str
    value: Str | None


class CreateTopic(NamedTuple):
    """A topic to create; -1 partitions or replicas takes the broker's default."""

    name: Str
    num_partitions: Int32
    replication_factor: Int16
    assignments: Sequence[ReplicaAssignment] = ()
    configs: Sequence[CreateTopicConfig] = ()


class CreateTopicsRequest(NamedTuple):
    """Create these topics, or only validate the request."""

    topics: Sequence[CreateTopic]
    timeout_ms: Int32 = 60_000
    validate_only: Bool = False


class CreatedTopicConfig(NamedTuple):
    """A setting in effect in the new topic."""

    name: Str
    value: Str | None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatedTopic(NamedTuple):
    """The result for one topic."""

    name: Str
    topic_id: Annotated[Uuid, Since(7)] = NO_ID
    error_code: Int16 = 0
    error_message: Str | None = None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0)] = 0
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[Sequence[CreatedTopicConfig] | None, Since(5)] = ()


class CreateTopicsResponse(NamedTuple):
    """The result for every topic of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[CreatedTopic] = ()


# --- DeleteTopics ---------------------------------------------------------------------------


class DeleteTopic(NamedTuple):
    """A topic to delete, by name, or by id if the name is null."""

    name: Str | None = None
    topic_id: Uuid = NO_ID


class DeleteTopicsRequest(NamedTuple):
    """Delete these topics; up to version 5 by name only."""

    topics: Annotated[Sequence[DeleteTopic], Since(6)] = ()
    topic_names: Annotated[Sequence[Str], Until(5)] = ()
    timeout_ms: Int32 = 0


class DeletedTopic(NamedTuple):
    """The result for one topic."""

    name: Annotated[Str | None, NullSince(6)]
    topic_id: Annotated[Uuid, Since(6)] = NO_ID
    error_code: Int16 = 0
    error_message: Annotated[Str | None, Since(5)] = None


class DeleteTopicsResponse(NamedTuple):
    """The result for every topic of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[DeletedTopic] = ()


# --- CreatePartitions -----------------------------------------------------------------------


class NewPartitionAssignment(NamedTuple):
    """The brokers that shall hold one new partition."""

    broker_ids: Sequence[Int32]


class GrowTopic(NamedTuple):
    """The total number of partitions a topic shall have."""

    name: Str
    partition_count: Int32
    assignments: Sequence[NewPartitionAssignment] | None = None


class CreatePartitionsRequest(NamedTuple):
    """Add partitions to these topics, or only validate the request."""

    topics: Sequence[GrowTopic]
    timeout_ms: Int32
    validate_only: Bool


class GrownTopic(NamedTuple):
    """The result for one topic."""

    name: Str
    error_code: Int16
    error_message: Str | None = None


class CreatePartitionsResponse(NamedTuple):
    """The result for every topic of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[GrownTopic] = ()


# --- DeleteRecords --------------------------------------------------------------------------


class DeleteRecordsPartition(NamedTuple):
    """Delete the records below the offset; -1 means up to the high watermark."""

    partition: Int32
    offset: Int64


class DeleteRecordsTopic(NamedTuple):
    """The partitions of one topic to trim."""

    name: Str
    partitions: Sequence[DeleteRecordsPartition]


class DeleteRecordsRequest(NamedTuple):
    """Move the log start of these partitions forward."""

    topics: Sequence[DeleteRecordsTopic]
    timeout_ms: Int32


class DeletedRecordsPartition(NamedTuple):
    """The new log start of one partition."""

    partition: Int32
    low_watermark: Int64
    error_code: Int16


class DeletedRecordsTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[DeletedRecordsPartition]


class DeleteRecordsResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[DeletedRecordsTopic] = ()


# --- DescribeLogDirs ------------------------------------------------------------------------


class DescribeLogDirsRequest(NamedTuple):
    """Ask for location and size of partitions; null topics means all."""

    topics: Sequence[TopicPartitions] | None


class LogDirPartition(NamedTuple):
    """One partition's size on disk."""

    partition: Int32
    size_bytes: Int64
    offset_lag: Int64 = 0
    is_future: Bool = False


class LogDirTopic(NamedTuple):
    """The partitions of one topic in a directory."""

    name: Str
    partitions: Sequence[LogDirPartition]


class LogDir(NamedTuple):
    """One data directory: its partitions, and size and free space of its disk."""

    error_code: Int16
    path: Str
    topics: Sequence[LogDirTopic]
    total_bytes: Annotated[Int64, Since(4)] = -1
    usable_bytes: Annotated[Int64, Since(4)] = -1
    is_cordoned: Annotated[Bool, Since(5)] = False


class DescribeLogDirsResponse(NamedTuple):
    """The data directories."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(3)] = 0
    results: Sequence[LogDir] = ()
