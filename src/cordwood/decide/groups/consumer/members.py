"""The members of one KIP-848 group, and which of them owns which partition.

It stores and looks up; it never replies and never changes an epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.codes import Code
from cordwood.decide.groups.consumer.messages import NOTHING, Assignment, TopicIdPartition
from cordwood.decide.groups.consumer.reconciliation import CurrentAssignment


class ClassicProtocol(NamedTuple):
    """What a member that speaks the classic protocol told in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name, metadata; in order of preference

    @property
    def name(self) -> str:
        """The protocol that its join was answered with."""
        return self.protocols[0][0]

    @property
    def metadata(self) -> bytes:
        """The subscription that counts."""
        return self.protocols[0][1]


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """One member: its subscription, its target, its current assignment and its deadlines."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    assignor: str | None = None
    classic: ClassicProtocol | None = None
    target: Assignment = NOTHING
    current: CurrentAssignment = field(default_factory=CurrentAssignment)
    session_deadline_ms: int = 0
    rebalance_deadline_ms: int | None = None  # to revoke what it was told to
    join_deadline_ms: int | None = None  # a classic member: to join again
    sync_deadline_ms: int | None = None  # a classic member: to sync after its join

    def deadlines(self) -> Iterator[int]:
        """When the member is removed unless it does what it has to."""
        yield self.session_deadline_ms
        for each in (self.rebalance_deadline_ms, self.join_deadline_ms, self.sync_deadline_ms):
            if each is not None:
                yield each


class ConsumerRoster:
    """Members by id and by instance id, and the owner of every partition."""

    def __init__(self) -> None:
        """Start without members."""
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}  # instance id → member id
        self._owners: dict[TopicIdPartition, str] = {}

    def __len__(self) -> int:
        """The number of members."""
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        """Iterate over a copy in join order."""
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        """Whether it is a member."""
        return member_id in self._members

    def get(self, member_id: str) -> ConsumerMember | None:
        """The member with that id."""
        return self._members.get(member_id)

    def instance(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with that instance id."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def add(self, member: ConsumerMember) -> None:
        """Add a member, with what it owns."""
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        self._name(member)
        self._own(member)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member; its partitions are free."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._release(member)

    def set_instance(self, member: ConsumerMember, instance_id: str | None) -> None:
        """Make the member static; an instance id never changes and is never taken away."""
        if instance_id is not None and member.instance_id is None:
            member.instance_id = instance_id
            self._name(member)

    def move(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Give the member another current assignment."""
        self._release(member)
        member.current = current
        self._own(member)

    def is_free(self, partition: TopicIdPartition, member: ConsumerMember) -> bool:
        """Whether no other member owns the partition."""
        return self._owners.get(partition, member.member_id) == member.member_id

    def check(self, member_id: str, instance_id: str | None) -> tuple[ConsumerMember | None, Code]:
        """The member that a request may act for, or why it may not."""
        member = self.get(member_id) if instance_id is None else self.instance(instance_id)
        if member is None:
            return None, Code.UNKNOWN_MEMBER_ID
        if member.member_id != member_id:
            return None, Code.FENCED_INSTANCE_ID
        return member, Code.NONE

    def preferred_assignor(self, default: str) -> str:
        """The assignor that most members ask for; the first one wins a tie."""
        votes = Counter(member.assignor for member in self if member.assignor)
        return max(votes, key=lambda name: votes[name]) if votes else default

    @property
    def is_all_classic(self) -> bool:
        """Whether there are members and none speaks the new protocol."""
        return bool(self._members) and all(member.classic for member in self._members.values())

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a classic member shares a protocol with all other classic members."""
        others = [member.classic for member in self._members.values() if member.classic]
        return protocol_type == "consumer" and any(
            all(name in dict(other.protocols) for other in others) for name, _ in protocols
        )

    def _name(self, member: ConsumerMember) -> None:
        if member.instance_id is not None:
            assert member.instance_id not in self._static
            self._static[member.instance_id] = member.member_id

    def _own(self, member: ConsumerMember) -> None:
        for partition in member.current.owned:
            assert partition not in self._owners, f"{partition} has two owners"
            self._owners[partition] = member.member_id

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.current.owned:
            del self._owners[partition]
