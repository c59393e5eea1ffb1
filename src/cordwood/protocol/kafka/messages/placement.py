"""Which broker and disk a partition is on, as an administrator would change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import Int8, Int16, Int32, Since, Str

# --- ElectLeaders ---------------------------------------------------------------------------


class ElectTopic(NamedTuple):
    """The partitions of one topic that are to elect."""

    name: Str
    partitions: Sequence[Int32]


class ElectLeadersRequest(NamedTuple):
    """Let these partitions elect a leader (0: the preferred one, 1: any); null means all."""

    election_type: Annotated[Int8, Since(1)] = 0
    topics: Sequence[ElectTopic] | None = None
    timeout_ms: Int32 = 60_000


class ElectedPartition(NamedTuple):
    """How one election went."""

    partition: Int32
    error_code: Int16
    error_message: Str | None = None


class ElectedTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ElectedPartition]


class ElectLeadersResponse(NamedTuple):
    """Every partition named; of all, only those that had something to elect."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(1)] = 0
    topics: Sequence[ElectedTopic] = ()


# --- AlterPartitionReassignments ------------------------------------------------------------


class ReassignPartition(NamedTuple):
    """The brokers that are to hold a partition; null ends a reassignment under way."""

    partition: Int32
    replicas: Sequence[Int32] | None = None


class ReassignTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ReassignPartition]


class AlterPartitionReassignmentsRequest(NamedTuple):
    """Move partitions to other brokers."""

    timeout_ms: Int32 = 60_000
    topics: Sequence[ReassignTopic] = ()


class ReassignedPartition(NamedTuple):
    """What became of the wish."""

    partition: Int32
    error_code: Int16
    error_message: Str | None = None


class ReassignedTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ReassignedPartition]


class AlterPartitionReassignmentsResponse(NamedTuple):
    """Every partition of the request."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Str | None = None
    topics: Sequence[ReassignedTopic] = ()


# --- ListPartitionReassignments -------------------------------------------------------------


class ReassigningTopic(NamedTuple):
    """The partitions asked about in one topic."""

    name: Str
    partitions: Sequence[Int32]


class ListPartitionReassignmentsRequest(NamedTuple):
    """Which partitions are on their way; null topics means all."""

    timeout_ms: Int32 = 60_000
    topics: Sequence[ReassigningTopic] | None = None


class PartitionOnItsWay(NamedTuple):
    """Who holds a partition now, who will, and who will no more."""

    partition: Int32
    replicas: Sequence[Int32]
    adding_replicas: Sequence[Int32]
    removing_replicas: Sequence[Int32]


class TopicOnItsWay(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[PartitionOnItsWay]


class ListPartitionReassignmentsResponse(NamedTuple):
    """Those that are on their way."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Str | None = None
    topics: Sequence[TopicOnItsWay] = ()


# --- AlterReplicaLogDirs --------------------------------------------------------------------


class MoveTopic(NamedTuple):
    """The partitions of one topic that are to move."""

    name: Str
    partitions: Sequence[Int32]


class MoveTo(NamedTuple):
    """What is to lie in one directory."""

    path: Str
    topics: Sequence[MoveTopic]


class AlterReplicaLogDirsRequest(NamedTuple):
    """Move partitions to other directories of this broker."""

    dirs: Sequence[MoveTo]


class MovedPartition(NamedTuple):
    """What became of the wish."""

    partition: Int32
    error_code: Int16


class MovedTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[MovedPartition]


class AlterReplicaLogDirsResponse(NamedTuple):
    """Every partition of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[MovedTopic] = ()
