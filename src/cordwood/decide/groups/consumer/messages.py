"""The events, replies and instructions of KIP-848 consumer groups; values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from cordwood.codes import Code
from cordwood.decide.instructions import Token

JOIN_EPOCH: Final = 0
STATIC_LEAVE_EPOCH: Final = -2  # the static member will come back


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id: a recreated topic is another topic."""

    topic_id: str
    partition: int


Assignment = frozenset[TopicIdPartition]
NOTHING: Final[Assignment] = frozenset()


class SubscribedTopic(NamedTuple):
    """An existing topic, as far as assignments depend on it."""

    topic_id: str
    name: str
    partitions: int


class Topics(Protocol):
    """The existing topics; what the caller knows about them may change between two events."""

    @property
    def version(self) -> int:
        """Another number after every change of a topic's existence or size."""

    def find(self, name: str) -> SubscribedTopic | None:
        """Return the topic with that name, if it exists."""


class FixedTopics(NamedTuple):
    """Topics that do not change."""

    topics: Mapping[str, SubscribedTopic] = MappingProxyType({})
    version: int = 0

    def find(self, name: str) -> SubscribedTopic | None:
        """Return the topic with that name, if it exists."""
        return self.topics.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat: join, go on, acknowledge an assignment, or leave.

    ``None``, or -1 for the timeout, means that a value did not change since the last heartbeat.
    ``matched`` has the topics that match the pattern of this request and those of the group's other
    members; matching topics is the caller's work.
    """

    token: Token
    version: int
    member_id: str
    new_member_id: str  # for a member that does not choose its own id
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    pattern: str | None = None  # empty: no pattern any longer
    assignor: str | None = None
    owned: Assignment | None = None
    matched: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether the request repeats everything, as after a timeout or a reconnection."""
        subscribes = self.topics is not None or self.pattern is not None
        says_all = self.rebalance_timeout_ms >= 0 and subscribes and self.owned is not None
        return self.epoch == JOIN_EPOCH or says_all


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatReply:
    """The reply to ``ConsumerHeartbeat``; the assignment is ``None`` if it did not change."""

    code: Code = Code.NONE
    text: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class PersistConsumerGroup:
    """Store the group's and these members' records durably, all or none; ``None`` deletes one."""

    record: Mapping[str, Any]
    members: Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class EraseConsumerGroup:
    """Delete all these records durably: the group is a classic one from now on."""


class ConsumerMemberDescription(NamedTuple):
    """A member as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: frozenset[str]
    pattern: str | None
    assigned: Assignment
    target: Assignment
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A group as ConsumerGroupDescribe shows it."""

    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
