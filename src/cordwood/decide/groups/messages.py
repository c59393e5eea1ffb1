"""The events, replies and instructions of a group; values only.

A ``token`` identifies a waiting request; the group keeps it and answers it exactly once. Fields
have Kafka's meaning and do not depend on the protocol version, except ``version`` itself where a
rule depends on it. An empty ``member_id`` means that the member has no id yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.groups.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    EraseConsumerGroup,
    PersistConsumerGroup,
)
from cordwood.decide.instructions import CodeReply, Forget, Reply, SetTimer, Tick, Token
from cordwood.decide.offsets import PartitionOffset
from cordwood.model import TopicPartition

NO_GENERATION = -1
UNKNOWN_MEMBER = ""
CONSUMER = "consumer"  # the protocol type whose subscriptions can be parsed


class GroupState(StrEnum):
    """The state of a group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"  # this and the next: only consumer groups
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(StrEnum):
    """The protocol that a group's members speak; the values are the names in ListGroups 5."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class MigrationPolicy(StrEnum):
    """Which groups with members may change their type while they work."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"  # only from classic to consumer
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The limits a broker sets for all its groups."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    # How long the first rebalance of an empty group waits for more members. Kafka waits 3 s; 100 ms
    # is enough for members started together and does not delay a single consumer.
    initial_rebalance_delay_ms: int = 100
    members_max: int = 2**31 - 1
    # A new member with a parked join cannot send heartbeats; this limits the wait for one that
    # vanished.
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_bytes_max: int = 4_096
    # An empty group without any commit is forgotten after this time.
    forget_empty_ms: int = 600_000
    # The members of a consumer group are told these, they do not choose them.
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_members_max: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    @classmethod
    def from_config(cls, config: BrokerConfig) -> GroupSettings:
        """The limits from the broker's settings."""
        return cls(
            session_timeout_ms_min=config.group_min_session_timeout_ms,
            session_timeout_ms_max=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
            offset_metadata_bytes_max=config.offset_metadata_max_bytes,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_members_max=config.group_consumer_max_size,
            consumer_assignors=tuple(config.group_consumer_assignors.split(",")),
            migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        )


# --- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup; ``new_member_id`` comes from the caller and is used if the member needs an id."""

    token: Token
    version: int
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int  # version 0 has none and uses the session timeout
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # name, metadata; in order of preference


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup; the leader's request carries the assignments."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat: the member is alive and asks whether it must rejoin."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    """One member that leaves, by member id or, if that is empty, by instance id."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup; before version 3 it has exactly one leaver."""

    token: Token
    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """OffsetCommit for existing partitions."""

    token: Token
    version: int
    offsets: tuple[PartitionOffset, ...]
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete: delete the group's committed offsets on these partitions."""

    token: Token
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """DeleteGroups, for this group."""

    token: Token


GroupRequest = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | ConsumerHeartbeat
    | CommitOffsets
    | DeleteOffsets
    | DeleteGroup
)
Event = GroupRequest | Tick


# --- replies --------------------------------------------------------------------------------


class MemberMetadata(NamedTuple):
    """A member's metadata, which the leader needs to assign partitions."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The reply to ``Join``; only the leader gets the members."""

    code: Code = Code.NONE
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    members: tuple[MemberMetadata, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """The reply to ``Sync``: this member's assignment."""

    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Left(NamedTuple):
    """The result for one leaver."""

    member_id: str
    instance_id: str | None
    code: Code


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """The reply to ``Leave``; before version 3 the reply's code is that of its only member."""

    code: Code = Code.NONE
    members: tuple[Left, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The reply to ``CommitOffsets``: one code per partition, in the order of the request."""

    codes: tuple[tuple[TopicPartition, Code], ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsReply:
    """The reply to ``DeleteOffsets``; a ``code`` other than ``NONE`` rejects the whole request."""

    code: Code = Code.NONE
    codes: tuple[tuple[TopicPartition, Code], ...] = ()


Answer = (
    JoinReply
    | SyncReply
    | CodeReply
    | LeaveReply
    | ConsumerHeartbeatReply
    | CommitReply
    | DeleteOffsetsReply
)


# --- instructions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PersistGroup:
    """Store durably that the group exists and its protocol type, so that it can be listed."""

    protocol_type: str


@dataclass(frozen=True, slots=True)
class PersistOffsets:
    """Move the group's cursors durably, all or none."""

    offsets: tuple[PartitionOffset, ...]


@dataclass(frozen=True, slots=True)
class EraseOffsets:
    """Delete the group's cursors on these partitions durably; missing ones are no error."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class EraseGroup:
    """Delete the group's stored existence durably, and its cursors unless it never had any.

    A group that is forgotten without a DeleteGroup request has committed nothing. Any cursors of
    its name belong to a line reader and stay.
    """

    keeps_cursors: bool = False


Instruction = (
    Reply
    | SetTimer
    | PersistGroup
    | PersistConsumerGroup
    | EraseConsumerGroup
    | PersistOffsets
    | EraseOffsets
    | EraseGroup
    | Forget
)


# --- descriptions ---------------------------------------------------------------------------


class MemberDescription(NamedTuple):
    """A member as DescribeGroups shows it; metadata and assignment only in state Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as DescribeGroups and ListGroups show it."""

    group_id: str
    state: GroupState
    group_type: GroupType = GroupType.CLASSIC
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    members: tuple[MemberDescription, ...] = ()
    empty_since_ms: int | None = None  # None while it has members
