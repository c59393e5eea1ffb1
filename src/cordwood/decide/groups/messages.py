"""What a group is told, what it answers, and what it asks its caller to do: values only.

A ``token`` stands for a waiting request; the group keeps it and answers it exactly once. Fields
carry Kafka's meaning and are already free of version quirks, except ``version`` itself where the
protocol's rules depend on it. An empty ``member_id`` is a member that has none yet.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.offsets import PartitionOffset
from cordwood.model import TopicPartition

Token = Hashable

NO_GENERATION = -1
UNKNOWN_MEMBER = ""
CONSUMER = "consumer"  # the protocol type whose subscriptions we can read


class GroupState(StrEnum):
    """Where a group is in its life; the values are the names Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The limits a broker sets for all its groups."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    # How long the first rebalance of an empty group waits for more members. Kafka waits 3 s; a
    # tenth of a second gathers members started together without making a lone consumer wait.
    initial_rebalance_delay_ms: int = 100
    members_max: int = 2**31 - 1
    # A newcomer's parked join cannot heartbeat; this bounds how long a vanished one is waited for.
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_bytes_max: int = 4_096
    # An empty group that never committed anything is forgotten after this long.
    forget_empty_ms: int = 600_000

    @classmethod
    def from_config(cls, config: BrokerConfig) -> GroupSettings:
        """As the operator set them."""
        return cls(
            session_timeout_ms_min=config.group_min_session_timeout_ms,
            session_timeout_ms_max=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
            offset_metadata_bytes_max=config.offset_metadata_max_bytes,
        )


# --- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. ``new_member_id`` is the id to give if one is needed; the caller made it up."""

    token: Token
    version: int
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int  # version 0 has none: the session timeout
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # name, metadata; most wanted first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup; the leader's brings the assignments."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat: the member is alive and asks whether to rejoin."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    """One member that leaves, by its id or, with an empty id, by its instance."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup; before version 3 there is always one leaver."""

    token: Token
    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """OffsetCommit, of partitions that exist."""

    token: Token
    version: int
    offsets: tuple[PartitionOffset, ...]
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete: forget how far the group has come on these partitions."""

    token: Token
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """DeleteGroups, of this one."""

    token: Token


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to look at deadlines; early or spare ticks do no harm."""


Event = Join | Sync | Heartbeat | Leave | CommitOffsets | DeleteOffsets | DeleteGroup | Tick


# --- replies --------------------------------------------------------------------------------


class MemberMetadata(NamedTuple):
    """A member as the leader sees it, to assign partitions."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The answer to ``Join``; only the leader is told the members."""

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
    """The answer to ``Sync``: this member's part."""

    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to ``Heartbeat``."""

    code: Code = Code.NONE


class Left(NamedTuple):
    """How it went for one leaver."""

    member_id: str
    instance_id: str | None
    code: Code


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """The answer to ``Leave``; before version 3 the only member's code is the reply's."""

    code: Code = Code.NONE
    members: tuple[Left, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The answer to ``CommitOffsets``: one code for each partition it named, in its order."""

    codes: tuple[tuple[TopicPartition, Code], ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsReply:
    """The answer to ``DeleteOffsets``; with a code other than ``NONE`` nothing was looked at."""

    code: Code = Code.NONE
    codes: tuple[tuple[TopicPartition, Code], ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteReply:
    """The answer to ``DeleteGroup``."""

    code: Code = Code.NONE


Answer = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | LeaveReply
    | CommitReply
    | DeleteOffsetsReply
    | DeleteReply
)


# --- instructions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request behind the token."""

    token: Token
    answer: Answer


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send a ``Tick`` once this time has come; replaces what was set before."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class PersistGroup:
    """Remember durably that the group exists and what it is for, so that it can be listed."""

    protocol_type: str


@dataclass(frozen=True, slots=True)
class PersistOffsets:
    """Move the group's cursors durably, all or none."""

    offsets: tuple[PartitionOffset, ...]


@dataclass(frozen=True, slots=True)
class EraseOffsets:
    """Remove the group's cursors on these partitions durably; absent ones are no error."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class EraseGroup:
    """Remove all the group's cursors, and the memory that it existed, durably."""


@dataclass(frozen=True, slots=True)
class Forget:
    """The group is gone; cancel its timer."""


Instruction = Reply | SetTimer | PersistGroup | PersistOffsets | EraseOffsets | EraseGroup | Forget


# --- descriptions ---------------------------------------------------------------------------


class MemberDescription(NamedTuple):
    """A member as an operator sees it; metadata and assignment only while the group is stable."""

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
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    members: tuple[MemberDescription, ...] = ()
    empty_since_ms: int | None = None  # None while it has members
