"""Administrative changes of the broker and the disk that hold a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.messages.partitions import (
    ExplainedTopicResults,
    TopicPartitions,
    TopicResults,
)
from cordwood.protocol.kafka.primitives import Bool, Int8, Int16, Int32, Since, Str

# --- ElectLeaders ---------------------------------------------------------------------------


class ElectLeadersRequest(NamedTuple):
    """Elect leaders for these partitions (0: the preferred one, 1: any); null means all."""

    election_type: Annotated[Int8, Since(1)] = 0
    topics: Sequence[TopicPartitions] | None = None
    timeout_ms: Int32 = 60_000


class ElectLeadersResponse(NamedTuple):
    """Every named partition; for a null request, only those that needed an election."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(1)] = 0
    topics: Sequence[ExplainedTopicResults] = ()


# --- AlterPartitionReassignments ------------------------------------------------------------


class ReassignPartition(NamedTuple):
    """The brokers that shall hold a partition; null cancels a running reassignment."""

    partition: Int32
    replicas: Sequence[Int32] | None = None


class ReassignTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ReassignPartition]


class AlterPartitionReassignmentsRequest(NamedTuple):
    """Move partitions to other brokers."""

    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    topics: Sequence[ReassignTopic] = ()


class AlterPartitionReassignmentsResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    error_code: Int16 = 0
    error_message: Str | None = None
    topics: Sequence[ExplainedTopicResults] = ()


# --- ListPartitionReassignments -------------------------------------------------------------


class ListPartitionReassignmentsRequest(NamedTuple):
    """List the partitions being reassigned; null topics means all."""

    timeout_ms: Int32 = 60_000
    topics: Sequence[TopicPartitions] | None = None


class PartitionReassignment(NamedTuple):
    """The current replicas of a partition, those being added and those being removed."""

    partition: Int32
    replicas: Sequence[Int32]
    adding_replicas: Sequence[Int32]
    removing_replicas: Sequence[Int32]


class TopicReassignments(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[PartitionReassignment]


class ListPartitionReassignmentsResponse(NamedTuple):
    """The partitions being reassigned."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Str | None = None
    topics: Sequence[TopicReassignments] = ()


# --- AlterReplicaLogDirs --------------------------------------------------------------------


class MoveTo(NamedTuple):
    """The partitions to move to one directory."""

    path: Str
    topics: Sequence[TopicPartitions]


class AlterReplicaLogDirsRequest(NamedTuple):
    """Move partitions to other directories of this broker."""

    dirs: Sequence[MoveTo]


class AlterReplicaLogDirsResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[TopicResults] = ()
