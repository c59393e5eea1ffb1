"""The roster of one group: who is in it, who leads, and which protocol they can agree on.

Keeps the books and answers questions about them; never replies, never changes the group's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cordwood.codes import Code
from cordwood.decide.groups.messages import Join, MemberMetadata, Token


@dataclass(slots=True, kw_only=True)
class Member:
    """One member: what it said when it joined, and which of its requests wait for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    deadline_ms: int
    is_new: bool = True  # it has not been told of a generation yet
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None

    def metadata(self, protocol: str) -> bytes:
        """What it said under the protocol; only asked for one it named."""
        return dict(self.protocols)[protocol]

    @property
    def is_excused(self) -> bool:
        """Whether a parked request of its own keeps it from sending heartbeats."""
        waits = self.join_token is not None or self.sync_token is not None
        return waits and not self.is_new


class Roster:
    """Members, members-to-be (given an id but not back with it yet) and the leader."""

    def __init__(self, protocol_type: str) -> None:
        """Nobody is in it; the type is what an earlier life of the group was for, or empty."""
        self.protocol_type = protocol_type
        self.leader_id: str | None = None
        self.pending: dict[str, int] = {}  # id → when we stop waiting for it, ms
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id → member id

    def __len__(self) -> int:
        """How many members there are, without those to be."""
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Over a copy, in the order they joined, so that members may go meanwhile."""
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        """Whether it is a member, not merely one to be."""
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        """The member of that id."""
        return self._members[member_id]

    def instance_member(self, instance_id: str | None) -> str | None:
        """The member id a static instance has now."""
        return None if instance_id is None else self._static.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> Code:
        """Whether a request may speak for this member."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self._members else Code.UNKNOWN_MEMBER_ID

    def add(self, member: Member, protocol_type: str) -> None:
        """Take in a member; the first one leads and says what the group is for."""
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
        """Let a member go; if it led, the one longest in the group leads."""
        member = self._members.pop(member_id)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)
        return member

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member a new id, in its old place; who led still leads."""
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
        """Pass the lead on if the leader did not rejoin; false where nobody did."""
        joined = [member for member in self if member.join_token is not None]
        if joined and all(member.member_id != self.leader_id for member in joined):
            self.leader_id = joined[0].member_id
        return bool(joined)

    @property
    def has_all_joined(self) -> bool:
        """Whether nobody is left to wait for."""
        return not self.pending and all(member.join_token is not None for member in self)

    @property
    def awaiting_join(self) -> int:
        """How many members have a join parked."""
        return sum(member.join_token is not None for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """As long as the slowest member needs."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports(self, join: Join) -> bool:
        """Whether the joining one can agree with those here on a protocol."""
        if not self._members:
            return bool(join.protocol_type and join.protocols)
        common = self._common_protocols()
        return join.protocol_type == self.protocol_type and any(
            name in common for name, _ in join.protocols
        )

    def select_protocol(self) -> str:
        """Each votes for the first of its protocols that all share; the earliest wins a tie."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self
        )
        return max(votes, key=lambda name: votes[name])

    def metadata(self, protocol: str) -> tuple[MemberMetadata, ...]:
        """What the leader is told of all."""
        return tuple(
            MemberMetadata(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self
        )

    def _common_protocols(self) -> set[str]:
        return _shared({name for name, _ in member.protocols} for member in self)


def _shared(sets: Iterable[set[str]]) -> set[str]:
    first, *others = sets
    return first.intersection(*others)
