"""The quorum of the controllers that store the cluster's metadata: describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import NO_ID, Int16, Int32, Int64, Since, Str, UInt16, Uuid


class QuorumPartition(NamedTuple):
    """A partition of the metadata log; there is one, 0."""

    partition: Int32


class QuorumTopic(NamedTuple):
    """The metadata log, which Kafka names ``__cluster_metadata``."""

    name: Str
    partitions: Sequence[QuorumPartition]


class DescribeQuorumRequest(NamedTuple):
    """Describe the voters and observers of the metadata log."""

    topics: Sequence[QuorumTopic]


class QuorumReplica(NamedTuple):
    """A node that stores the metadata, and how far it is."""

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Since(2)] = NO_ID
    log_end_offset: Int64 = -1
    last_fetch_ms: Annotated[Int64, Since(1)] = -1
    last_caught_up_ms: Annotated[Int64, Since(1)] = -1


class DescribedQuorumPartition(NamedTuple):
    """The quorum: its leader, and the nodes that vote for or only read the metadata."""

    partition: Int32
    error_code: Int16
    error_message: Annotated[Str | None, Since(2)] = None
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    current_voters: Sequence[QuorumReplica] = ()
    observers: Sequence[QuorumReplica] = ()


class DescribedQuorumTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[DescribedQuorumPartition]


class QuorumListener(NamedTuple):
    """Where a node of the quorum is reached."""

    name: Str
    host: Str
    port: UInt16


class QuorumNode(NamedTuple):
    """A node of the quorum."""

    node_id: Int32
    listeners: Sequence[QuorumListener]


class DescribeQuorumResponse(NamedTuple):
    """The result for every partition of the request, and the nodes of the quorum."""

    error_code: Int16 = 0
    error_message: Annotated[Str | None, Since(2)] = None
    topics: Sequence[DescribedQuorumTopic] = ()
    nodes: Annotated[Sequence[QuorumNode], Since(2)] = ()
