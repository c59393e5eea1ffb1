"""The cluster, its topics, and the supported API versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

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

OPERATIONS_UNASKED: Final = -(2**31)
"""The authorized operations of whoever did not ask for them."""

# --- Metadata -------------------------------------------------------------------------------


class MetadataRequestTopic(NamedTuple):
    """A topic requested by name, or by id if the name is null."""

    topic_id: Annotated[Uuid, Since(10)] = NO_ID
    name: Annotated[Str | None, NullSince(10)] = None


class MetadataRequest(NamedTuple):
    """Request topics; null means all of them, and so does an empty list in version 0."""

    topics: Annotated[Sequence[MetadataRequestTopic] | None, NullSince(1)]
    allow_auto_topic_creation: Annotated[Bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, Since(8)] = False


class MetadataBroker(NamedTuple):
    """One broker and its address."""

    node_id: Int32
    host: Str
    port: Int32
    rack: Annotated[Str | None, Since(1)] = None


class MetadataPartition(NamedTuple):
    """The leader and the replicas of one partition."""

    error_code: Int16
    partition: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Since(7)] = -1
    replica_nodes: Sequence[Int32] = ()
    isr_nodes: Sequence[Int32] = ()
    offline_replicas: Annotated[Sequence[Int32], Since(5)] = ()


class MetadataTopic(NamedTuple):
    """One topic and its partitions."""

    error_code: Int16
    name: Annotated[Str | None, NullSince(12)]
    topic_id: Annotated[Uuid, Since(10)] = NO_ID
    is_internal: Annotated[Bool, Since(1)] = False
    partitions: Sequence[MetadataPartition] = ()
    authorized_operations: Annotated[Int32, Since(8)] = OPERATIONS_UNASKED


class MetadataResponse(NamedTuple):
    """The brokers, the controller and the requested topics."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    brokers: Sequence[MetadataBroker] = ()
    cluster_id: Annotated[Str | None, Since(2)] = None
    controller_id: Annotated[Int32, Since(1)] = -1
    topics: Sequence[MetadataTopic] = ()
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = OPERATIONS_UNASKED
    error_code: Annotated[Int16, Since(13)] = 0


# --- ApiVersions ----------------------------------------------------------------------------


class ApiVersionsRequest(NamedTuple):
    """Ask for the supported versions; tells the client software and the node it wants to reach."""

    client_software_name: Annotated[Str, Since(3)] = ""
    client_software_version: Annotated[Str, Since(3)] = ""
    cluster_id: Annotated[Str | None, Since(5)] = None
    node_id: Annotated[Int32, Since(5)] = -1


class ApiVersionRange(NamedTuple):
    """The versions of one API that we serve."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeature(NamedTuple):
    """A cluster feature and the levels this broker supports."""

    name: Str
    min_version: Int16
    max_version: Int16


class FinalizedFeature(NamedTuple):
    """A cluster feature and the levels in effect; we finalize none."""

    name: Str
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(NamedTuple):
    """Every API served; with error 35, also the reply to an unsupported ApiVersions version."""

    error_code: Int16
    api_keys: Sequence[ApiVersionRange]
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    supported_features: Annotated[Sequence[SupportedFeature], Since(3), Tag(0)] = ()
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeature], Since(3), Tag(2)] = ()
    zk_migration_ready: Annotated[Bool, Since(3), Tag(3)] = False


# --- DescribeCluster ------------------------------------------------------------------------


class DescribeClusterRequest(NamedTuple):
    """Describe the brokers (endpoint type 1) or the controllers (2)."""

    include_cluster_authorized_operations: Bool
    endpoint_type: Annotated[Int8, Since(1)] = 1
    include_fenced_brokers: Annotated[Bool, Since(2)] = False


class ClusterBroker(NamedTuple):
    """One broker and its address."""

    broker_id: Int32
    host: Str
    port: Int32
    rack: Str | None = None
    is_fenced: Annotated[Bool, Since(2)] = False


class DescribeClusterResponse(NamedTuple):
    """The cluster's id, controller and brokers."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Str | None = None
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: Str = ""
    controller_id: Int32 = -1
    brokers: Sequence[ClusterBroker] = ()
    cluster_authorized_operations: Int32 = OPERATIONS_UNASKED


# --- DescribeTopicPartitions ----------------------------------------------------------------


class DescribeTopicPartitionsTopic(NamedTuple):
    """A topic requested by name."""

    name: Str


class PartitionCursor(NamedTuple):
    """Where the next page of partitions begins."""

    topic_name: Str
    partition_index: Int32


class DescribeTopicPartitionsRequest(NamedTuple):
    """Request a page of partitions of these topics; no topics means all."""

    topics: Sequence[DescribeTopicPartitionsTopic]
    response_partition_limit: Int32 = 2000
    cursor: PartitionCursor | None = None


class DescribedPartition(NamedTuple):
    """The leader of one partition and the replicas eligible to lead it."""

    error_code: Int16
    partition: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: Sequence[Int32] = ()
    isr_nodes: Sequence[Int32] = ()
    eligible_leader_replicas: Sequence[Int32] | None = None
    last_known_elr: Sequence[Int32] | None = None
    offline_replicas: Sequence[Int32] = ()


class DescribedTopic(NamedTuple):
    """One topic and its partitions on this page."""

    error_code: Int16
    name: Str | None
    topic_id: Uuid
    is_internal: Bool = False
    partitions: Sequence[DescribedPartition] = ()
    authorized_operations: Int32 = OPERATIONS_UNASKED


class DescribeTopicPartitionsResponse(NamedTuple):
    """One page; the cursor is null on the last page."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[DescribedTopic] = ()
    next_cursor: PartitionCursor | None = None
