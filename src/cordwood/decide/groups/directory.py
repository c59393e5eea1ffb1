"""All groups of a broker: finds or makes the group an event is for, and answers for absent ones.

Routes and lists; the rules of a group are the group's. Holds no offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cordwood.codes import Code
from cordwood.decide.groups.group import Group
from cordwood.decide.groups.messages import (
    UNKNOWN_MEMBER,
    Answer,
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    DeleteReply,
    Event,
    Forget,
    GroupDescription,
    GroupSettings,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Instruction,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Left,
    Reply,
    Sync,
    SyncReply,
    Tick,
)

_NOT_FOUND_VERSION = 9  # from this OffsetCommit on, clients know GROUP_ID_NOT_FOUND


class GroupDirectory:
    """The groups by id; ``handle`` is ``Group.handle`` with the group looked up first."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        """No group is known yet; ``restore`` those remembered from an earlier life."""
        self._settings = settings or GroupSettings()
        self._groups: dict[str, Group] = {}

    def __contains__(self, group_id: str) -> bool:
        """Whether the group is known."""
        return group_id in self._groups

    def restore(
        self, group_id: str, *, protocol_type: str, has_offsets: bool, now_ms: int
    ) -> list[Instruction]:
        """Bring back a group, Empty: it had cursors, or was said to exist by ``PersistGroup``."""
        assert group_id not in self._groups
        self._groups[group_id] = Group(
            group_id,
            self._settings,
            now_ms=now_ms,
            protocol_type=protocol_type,
            has_offsets=has_offsets,
        )
        return self.handle(group_id, Tick(), now_ms)

    def handle(self, group_id: str, event: Event, now_ms: int) -> list[Instruction]:
        """Take one event for one group; the instructions are to be carried out in their order."""
        if isinstance(event, Join | Sync | Heartbeat | Leave) and not group_id:
            return [Reply(event.token, refusal(event, Code.INVALID_GROUP_ID))]
        group = self._groups.get(group_id)
        if group is None and _makes_group(event):
            group = self._groups[group_id] = Group(group_id, self._settings, now_ms=now_ms)
        if group is None:
            return _answer_for_absent(event)
        instructions = group.handle(event, now_ms)
        if Forget() in instructions:
            del self._groups[group_id]
        return instructions

    def check_txn_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> Code:
        """Whether a transaction may commit this group's offsets in the member's name."""
        group = self._groups.get(group_id)
        if group is None:
            return Code.NONE if generation < 0 else Code.ILLEGAL_GENERATION
        return group.check_commit(member_id, generation, instance_id, transactional=True)

    def describe(self, group_id: str) -> GroupDescription | None:
        """One group, or ``None``: to Kafka's older clients an absent group is a Dead one."""
        group = self._groups.get(group_id)
        return None if group is None else group.describe()

    def listing(self, states: Collection[str] = ()) -> list[GroupDescription]:
        """All groups by name, or those in the states named; case does not matter in a state."""
        return list(self.listed(states))

    def listed(self, states: Collection[str] = ()) -> Iterator[GroupDescription]:
        """The same one by one; those that are forgotten meanwhile are left out."""
        wanted = {state.lower() for state in states}
        for group_id in sorted(self._groups):
            group = self._groups.get(group_id)
            if group is not None and (not wanted or group.state.lower() in wanted):
                yield group.describe()

    def count(self) -> dict[GroupState, int]:
        """How many groups are in each state, for metrics."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._groups.values():
            counts[group.state] += 1
        return counts


def _makes_group(event: Event) -> bool:
    """A first join without an id, or a commit by a reader that needs no group, makes one."""
    if isinstance(event, Join):
        return event.member_id == UNKNOWN_MEMBER
    return isinstance(event, CommitOffsets) and event.generation < 0


def _answer_for_absent(event: Event) -> list[Instruction]:
    match event:
        case Tick():
            return []  # its timer outlived it
        case CommitOffsets():
            old = event.version < _NOT_FOUND_VERSION
            code = Code.ILLEGAL_GENERATION if old else Code.GROUP_ID_NOT_FOUND
        case DeleteOffsets() | DeleteGroup():
            code = Code.GROUP_ID_NOT_FOUND
        case _:
            code = Code.UNKNOWN_MEMBER_ID
    return [Reply(event.token, refusal(event, code))]


def refusal(
    event: Join | Sync | Heartbeat | Leave | CommitOffsets | DeleteOffsets | DeleteGroup, code: Code
) -> Answer:
    """The answer that says no to all of a request, for whatever reason the code gives."""
    match event:
        case Join():
            return JoinReply(code=code, member_id=event.member_id)
        case Sync():
            return SyncReply(code=code)
        case Heartbeat():
            return HeartbeatReply(code)
        case Leave():
            if code is not Code.UNKNOWN_MEMBER_ID:  # that one is said of each leaver
                return LeaveReply(code)
            return LeaveReply(members=tuple(Left(*leaver, code) for leaver in event.leavers))
        case CommitOffsets():
            return CommitReply(tuple((each.partition, code) for each in event.offsets))
        case DeleteOffsets():
            return DeleteOffsetsReply(code)
        case DeleteGroup():
            return DeleteReply(code)
