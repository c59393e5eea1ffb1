"""The members of one group: the roster, the leader, and the protocol they agree on.

It stores members and answers queries; it never replies and never changes the group's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cordwood.codes import Code
from cordwood.decide.groups.messages import Join, MemberMetadata
from cordwood.decide.instructions import Token


@dataclass(slots=True, kw_only=True)
class Member:
    """One member: its data from JoinGroup, and the tokens of its parked requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    deadline_ms: int
    is_new: bool = True  # not part of a generation yet
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for a protocol, which it must support."""
        return dict(self.protocols)[protocol]

    @property
    def is_excused(self) -> bool:
        """Whether a parked request of the member prevents it from sending heartbeats."""
        waits = self.join_token is not None or self.sync_token is not None
        return waits and not self.is_new


class Roster:
    """Members, pending members (given an id, but not rejoined with it yet) and the leader."""

    def __init__(self, protocol_type: str) -> None:
        """Create an empty roster; the protocol type was stored before a restart, or is empty."""
        self.protocol_type = protocol_type
        self.leader_id: str | None = None
        self.pending: dict[str, int] = {}  # id → deadline to rejoin, ms
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id → member id

    def __len__(self) -> int:
        """The number of members, without pending ones."""
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over a copy in join order, so members may be removed meanwhile."""
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        """Whether it is a member, not only a pending one."""
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        """The member with that id."""
        return self._members[member_id]

    def instance_member(self, instance_id: str | None) -> str | None:
        """The current member id of a static instance."""
        return None if instance_id is None else self._static.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> Code:
        """Whether a request with these ids may act for the member."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self._members else Code.UNKNOWN_MEMBER_ID

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one becomes the leader and sets the protocol type."""
        assert member.member_id not in self._members
        assert member.instance_id not in self._static
        if not self._members:
            self.protocol_type = protocol_type
            self.leader_id = member.member_id
        assert protocol_type == self.protocol_type, "checked by supports()"
        self.pending.pop(member.member_id, None)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a member; if it was the leader, the longest-standing member becomes the leader."""
        member = self._members.pop(member_id)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)
        return member

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member a new id at the same position; a leader stays the leader."""
        assert member.instance_id is not None
        if self.leader_id == member.member_id:
            self.leader_id = new_id
        self._static[member.instance_id] = new_id
        old_id, member.member_id = member.member_id, new_id
        self._members = {
            new_id if member_id == old_id else member_id: kept
            for member_id, kept in self._members.items()
        }

    def elect_joined_leader(self) -> bool:
        """Elect a new leader if the current one did not rejoin; False if no member did."""
        joined = [member for member in self if member.join_token is not None]
        if joined and all(member.member_id != self.leader_id for member in joined):
            self.leader_id = joined[0].member_id
        return bool(joined)

    @property
    def has_all_joined(self) -> bool:
        """Whether every member has rejoined and no pending member is left."""
        return not self.pending and all(member.join_token is not None for member in self)

    @property
    def awaiting_join(self) -> int:
        """The number of members with a parked join."""
        return sum(member.join_token is not None for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members, ms."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports(self, join: Join) -> bool:
        """Whether the joining member shares the type and a protocol with all current members."""
        if not self._members:
            return bool(join.protocol_type and join.protocols)
        common = self._common_protocols()
        return join.protocol_type == self.protocol_type and any(
            name in common for name, _ in join.protocols
        )

    def select_protocol(self) -> str:
        """Each member votes for its first protocol that all share; on a tie the first vote wins."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self
        )
        return max(votes, key=lambda name: votes[name])

    def metadata(self, protocol: str) -> tuple[MemberMetadata, ...]:
        """The metadata of all members, for the leader's assignment."""
        return tuple(
            MemberMetadata(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self
        )

    def _common_protocols(self) -> set[str]:
        return _shared({name for name, _ in member.protocols} for member in self)


def _shared(sets: Iterable[set[str]]) -> set[str]:
    first, *others = sets
    return first.intersection(*others)
