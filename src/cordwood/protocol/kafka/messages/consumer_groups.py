"""Consumer groups of KIP-848: the heartbeat that does everything, and describing groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.messages.metadata import OPERATIONS_UNASKED
from cordwood.protocol.kafka.primitives import Bool, Int8, Int16, Int32, Since, Str, Uuid

# --- ConsumerGroupHeartbeat -----------------------------------------------------------------


class TopicIdPartitions(NamedTuple):
    """The partitions of one topic that a member owns or gets."""

    topic_id: Uuid
    partitions: Sequence[Int32]


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """Join (epoch 0), go on, or leave (-1, or -2 for a static member that will return).

    Null, or -1 for the timeout, means that a value did not change since the last heartbeat.
    """

    group_id: Str
    member_id: Str
    member_epoch: Int32
    instance_id: Str | None = None
    rack_id: Str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Sequence[Str] | None = None
    subscribed_topic_regex: Annotated[Str | None, Since(1)] = None
    server_assignor: Str | None = None
    topic_partitions: Sequence[TopicIdPartitions] | None = None


class HeartbeatAssignment(NamedTuple):
    """The partitions that the member may use now."""

    topic_partitions: Sequence[TopicIdPartitions]


class ConsumerGroupHeartbeatResponse(NamedTuple):
    """The member's epoch, and its assignment if it changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Str | None = None
    member_id: Str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


# --- ConsumerGroupDescribe ------------------------------------------------------------------


class ConsumerGroupDescribeRequest(NamedTuple):
    """Describe these consumer groups and their members."""

    group_ids: Sequence[Str]
    include_authorized_operations: Bool = False


class DescribedTopicPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: Uuid
    topic_name: Str
    partitions: Sequence[Int32]


class DescribedAssignment(NamedTuple):
    """The partitions of a member."""

    topic_partitions: Sequence[DescribedTopicPartitions]


class DescribedConsumerMember(NamedTuple):
    """A member: its subscription, what it has and what it should have."""

    member_id: Str
    instance_id: Str | None
    rack_id: Str | None
    member_epoch: Int32
    client_id: Str
    client_host: Str
    subscribed_topic_names: Sequence[Str]
    subscribed_topic_regex: Str | None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[Int8, Since(1)] = -1  # 0: classic, 1: consumer


class DescribedConsumerGroup(NamedTuple):
    """A group: its state, its epochs, its assignor and its members."""

    error_code: Int16
    error_message: Str | None
    group_id: Str
    group_state: Str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: Str = ""
    members: Sequence[DescribedConsumerMember] = ()
    authorized_operations: Int32 = OPERATIONS_UNASKED


class ConsumerGroupDescribeResponse(NamedTuple):
    """The result for every group of the request."""

    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedConsumerGroup] = ()
