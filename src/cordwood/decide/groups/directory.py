"""All groups of a broker: finds or creates the group of an event, and replies for unknown groups.

It only dispatches and lists; the rules are in ``Group``. It holds no offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from cordwood.codes import Code
from cordwood.decide.groups.consumer.membership import check_heartbeat
from cordwood.decide.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    FixedTopics,
    Topics,
)
from cordwood.decide.groups.group import Group, StoredGroup
from cordwood.decide.groups.messages import (
    UNKNOWN_MEMBER,
    Answer,
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    Event,
    GroupDescription,
    GroupRequest,
    GroupSettings,
    GroupState,
    Heartbeat,
    Instruction,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Left,
    Sync,
    SyncReply,
)
from cordwood.decide.instructions import CodeReply, Forget, Reply, Tick

_NOT_FOUND_VERSION = 9  # OffsetCommit version from which clients know GROUP_ID_NOT_FOUND


class GroupDirectory:
    """The groups by id; ``handle`` looks up the group and calls ``Group.handle``."""

    def __init__(self, settings: GroupSettings | None = None, topics: Topics | None = None) -> None:
        """Start without groups; call ``restore`` for each group stored before a restart."""
        self._settings = settings or GroupSettings()
        self._topics = topics or FixedTopics()
        self._groups: dict[str, Group] = {}
        self._own: dict[str, GroupSettings] = {}  # of groups that have their own

    def __contains__(self, group_id: str) -> bool:
        """Whether the group is known."""
        return group_id in self._groups

    def restore(self, group_id: str, stored: StoredGroup, now_ms: int) -> list[Instruction]:
        """Restore a group that has cursors, or was stored; a classic one is Empty."""
        assert group_id not in self._groups
        self._groups[group_id] = self._group(group_id, now_ms, stored)
        return self.handle(group_id, Tick(), now_ms)

    def _group(self, group_id: str, now_ms: int, stored: StoredGroup | None = None) -> Group:
        settings = self._own.get(group_id, self._settings)
        return Group(group_id, settings, now_ms=now_ms, topics=self._topics, stored=stored)

    def configure(self, group_id: str, own: GroupSettings | None) -> None:
        """Give one group its own settings, now or when it is created; None for the broker's."""
        if own is None:
            self._own.pop(group_id, None)
        else:
            self._own[group_id] = own
        if group_id in self._groups:
            self._groups[group_id].configure(own or self._settings)

    def handle(self, group_id: str, event: Event, now_ms: int) -> list[Instruction]:
        """Process one event for one group; execute the returned instructions in order."""
        if isinstance(event, Join | Sync | Heartbeat | Leave) and not group_id:
            return [Reply(event.token, refusal(event, Code.INVALID_GROUP_ID))]
        if isinstance(event, ConsumerHeartbeat) and (wrong := self._check(group_id, event)):
            return [Reply(event.token, wrong)]
        group = self._groups.get(group_id)
        if group is None and _makes_group(event):
            group = self._groups[group_id] = self._group(group_id, now_ms)
        if group is None:
            return _answer_for_absent(event)
        instructions = group.handle(event, now_ms)
        if Forget() in instructions:
            del self._groups[group_id]
        return instructions

    def _check(self, group_id: str, beat: ConsumerHeartbeat) -> ConsumerHeartbeatReply | None:
        """The reply to a request that is not valid, whatever the group."""
        if not group_id:
            return ConsumerHeartbeatReply(
                code=Code.INVALID_REQUEST, text="the group id cannot be empty"
            )
        wrong = check_heartbeat(beat, self._settings.consumer_assignors)
        return None if wrong is None else ConsumerHeartbeatReply(code=wrong.code, text=wrong.text)

    def check_txn_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> Code:
        """Whether a transaction may commit this group's offsets on behalf of the member."""
        group = self._groups.get(group_id)
        if group is None:
            return Code.NONE if generation < 0 else Code.ILLEGAL_GENERATION
        return group.check_commit(member_id, generation, instance_id, transactional=True)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> Code:
        """Whether offsets may be fetched on behalf of the member."""
        group = self._groups.get(group_id)
        return Code.NONE if group is None else group.check_fetch(member_id, epoch)

    def patterns(self, group_id: str) -> frozenset[str]:
        """The regular expressions that the members of a consumer group subscribe to."""
        group = self._groups.get(group_id)
        return group.consumer.patterns if group and group.consumer else frozenset()

    def mark_unsaved(self, group_id: str, stored: Iterable[str]) -> None:
        """Store all of a group with its next change: a write failed and left these members."""
        group = self._groups.get(group_id)
        if group is not None:
            group.mark_unsaved(stored)

    def describe_consumer(self, group_id: str) -> ConsumerGroupDescription | None:
        """One consumer group, or ``None``; a classic group is not one."""
        group = self._groups.get(group_id)
        return None if group is None else group.describe_consumer()

    def describe(self, group_id: str) -> GroupDescription | None:
        """One group, or ``None``; older Kafka clients see an absent group as Dead."""
        group = self._groups.get(group_id)
        return None if group is None else group.describe()

    def listing(self, states: Collection[str] = ()) -> list[GroupDescription]:
        """All groups by name, or those in the given states, which are not case sensitive."""
        return list(self.listed(states))

    def listed(self, states: Collection[str] = ()) -> Iterator[GroupDescription]:
        """Like ``listing``, but lazy; groups forgotten during the iteration are left out."""
        wanted = {state.lower() for state in states}
        for group_id in sorted(self._groups):
            group = self._groups.get(group_id)
            if group is not None and (not wanted or group.state.lower() in wanted):
                yield group.describe()

    def count(self) -> dict[GroupState, int]:
        """The number of groups in each state, for metrics."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._groups.values():
            counts[group.state] += 1
        return counts


def _makes_group(event: Event) -> bool:
    """Whether the event creates a group: a join, or a commit without generation."""
    if isinstance(event, ConsumerHeartbeat):
        return event.epoch == JOIN_EPOCH
    if isinstance(event, Join):
        return event.member_id == UNKNOWN_MEMBER
    return isinstance(event, CommitOffsets) and event.generation < 0


def _answer_for_absent(event: Event) -> list[Instruction]:
    match event:
        case Tick():
            return []  # a timer that outlived its group
        case CommitOffsets():
            old = event.version < _NOT_FOUND_VERSION
            code = Code.ILLEGAL_GENERATION if old else Code.GROUP_ID_NOT_FOUND
        case DeleteOffsets() | DeleteGroup():
            code = Code.GROUP_ID_NOT_FOUND
        case _:
            code = Code.UNKNOWN_MEMBER_ID
    return [Reply(event.token, refusal(event, code))]


def refusal(event: GroupRequest, code: Code) -> Answer:
    """The reply that rejects a whole request with ``code``."""
    match event:
        case Join():
            return JoinReply(code=code, member_id=event.member_id)
        case Sync():
            return SyncReply(code=code)
        case Heartbeat():
            return CodeReply(code)
        case ConsumerHeartbeat():
            return ConsumerHeartbeatReply(code=code)
        case Leave():
            if code is not Code.UNKNOWN_MEMBER_ID:  # UNKNOWN_MEMBER_ID is reported per leaver
                return LeaveReply(code)
            return LeaveReply(members=tuple(Left(*leaver, code) for leaver in event.leavers))
        case CommitOffsets():
            return CommitReply(tuple((each.partition, code) for each in event.offsets))
        case DeleteOffsets():
            return DeleteOffsetsReply(code)
        case DeleteGroup():
            return CodeReply(code)
