"""One group: ``handle(event, now_ms)`` returns the instructions to execute.

The rules of members are in ``membership`` for classic groups and in ``consumer`` for KIP-848
groups; a group changes from one to the other in ``migration``. This module handles offset commits,
deletion and the single timer that covers all deadlines of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cordwood.codes import Code
from cordwood.decide.groups.consumer.membership import ConsumerMembership
from cordwood.decide.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    EraseConsumerGroup,
    FixedTopics,
    Topics,
)
from cordwood.decide.groups.membership import Membership
from cordwood.decide.groups.messages import (
    CONSUMER,
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    EraseGroup,
    EraseOffsets,
    Event,
    GroupDescription,
    GroupSettings,
    GroupState,
    Heartbeat,
    Instruction,
    Join,
    Leave,
    PersistOffsets,
    Sync,
)
from cordwood.decide.groups.migration import downgraded, upgraded
from cordwood.decide.instructions import CodeReply, Forget, Reply, SetTimer, Tick
from cordwood.decide.offsets import PartitionOffset
from cordwood.model import TopicPartition


class StoredGroup(NamedTuple):
    """What was stored of a group before a restart."""

    protocol_type: str = ""
    has_offsets: bool = False
    consumer_record: Mapping[str, Any] | None = None  # None: a classic group
    consumer_members: Mapping[str, Mapping[str, Any]] = {}


class Group:
    """The state machine of one group; it starts as Empty, also after a restart."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        now_ms: int,
        topics: Topics | None = None,
        stored: StoredGroup | None = None,
    ) -> None:
        """Create an empty group, or restore what was stored before."""
        stored = stored or StoredGroup()
        self.group_id = group_id
        self._settings = settings
        self._topics = topics or FixedTopics()
        self._membership: Membership | ConsumerMembership
        if stored.consumer_record is None:
            self._membership = Membership(settings, stored.protocol_type, now_ms)
        else:
            self._membership = ConsumerMembership(settings, self._topics, now_ms)
            self._membership.restore(stored.consumer_record, stored.consumer_members, now_ms)
        self._has_offsets = stored.has_offsets
        self._armed_ms: int | None = None

    def configure(self, settings: GroupSettings) -> None:
        """Use other settings from the next event on."""
        self._settings = settings
        self._membership.configure(settings)

    @property
    def state(self) -> GroupState:
        """The current state."""
        return self._membership.state

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:
        """Process one event; execute the returned instructions in order."""
        match event:
            case Heartbeat():
                self._membership.heartbeat(event, now_ms)
                return self._membership.take_out() + self._arm_earlier()
            case ConsumerHeartbeat():
                return self._consumer_heartbeat(event, now_ms)
            case CommitOffsets():
                return self._commit(event, now_ms)
            case DeleteOffsets():
                return self._delete_offsets(event)
            case DeleteGroup():
                return self._delete_group(event)
            case Join():
                return self._join(event, now_ms)
            case Sync():
                self._membership.sync(event, now_ms)
                return self._membership.take_out() + self._arm()
            case Leave():
                self._membership.leave(event, now_ms)
                return self._take_out(now_ms) + self._arm()
            case Tick():
                return self._tick(now_ms)

    def describe(self) -> GroupDescription:
        """The group as DescribeGroups and ListGroups show it."""
        return self._membership.describe(self.group_id)

    # --- the two types ----------------------------------------------------------------------

    @property
    def consumer(self) -> ConsumerMembership | None:
        """The members of a KIP-848 group; ``None`` for a classic group."""
        return self._membership if isinstance(self._membership, ConsumerMembership) else None

    def describe_consumer(self) -> ConsumerGroupDescription | None:
        """The group as ConsumerGroupDescribe shows it; ``None`` for a classic group."""
        return None if self.consumer is None else self.consumer.describe_members()

    def mark_unsaved(self, stored: Iterable[str]) -> None:
        """Store all of the group with its next change: a write failed and left these members."""
        if self.consumer is not None:
            self.consumer.mark_unsaved(stored)

    def _consumer_heartbeat(self, beat: ConsumerHeartbeat, now_ms: int) -> list[Instruction]:
        out: list[Instruction] = []
        if isinstance(self._membership, Membership):
            joins = beat.epoch == JOIN_EPOCH and self.state is not GroupState.DEAD
            group = None
            if joins:
                group = upgraded(self._membership, self._settings, self._topics, now_ms)
            if group is None:
                return [Reply(beat.token, _refused(self.group_id, joins=joins))]
            out = self._membership.take_out()
            self._membership = group
        self._membership.consumer_heartbeat(beat, now_ms)
        stays = beat.epoch >= JOIN_EPOCH and not out
        out += self._membership.take_out() if stays else self._take_out(now_ms)
        return out + self._arm_earlier()

    def _join(self, join: Join, now_ms: int) -> list[Instruction]:
        out: list[Instruction] = []
        if self.consumer is not None and self.state is GroupState.EMPTY:
            generation = self.consumer.epoch
            self._membership = Membership(self._settings, CONSUMER, now_ms)
            self._membership.generation = generation
            out = [EraseConsumerGroup()]
        self._membership.join(join, now_ms)
        return out + self._take_out(now_ms) + self._arm()

    def _take_out(self, now_ms: int) -> list[Instruction]:
        """Return the members' instructions; a group with only classic members becomes classic."""
        group = self.consumer
        classic = None if group is None else downgraded(group, self._settings, now_ms)
        if group is None or classic is None:
            return self._membership.take_out()
        self._membership = classic
        return [EraseConsumerGroup(), *group.take_replies(), *classic.take_out()]

    # --- offsets ----------------------------------------------------------------------------

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int = 0,
    ) -> Code:
        """Whether offsets may be committed on behalf of this member; changes nothing."""
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if self.consumer is not None:
            return self.consumer.check_commit(
                member_id, generation, instance_id, transactional=transactional, version=version
            )
        assert isinstance(self._membership, Membership)
        return self._membership.check_commit(
            member_id, generation, instance_id, transactional=transactional
        )

    def check_fetch(self, member_id: str | None, epoch: int) -> Code:
        """Whether offsets may be fetched on behalf of this member; classic groups do not ask."""
        return Code.NONE if self.consumer is None else self.consumer.check_fetch(member_id, epoch)

    def _commit(self, commit: CommitOffsets, now_ms: int) -> list[Instruction]:
        code = self.check_commit(
            commit.member_id,
            commit.generation,
            commit.instance_id,
            transactional=False,
            version=commit.version,
        )
        if not code:
            self._membership.keep_alive(commit.member_id, now_ms)
        codes = [(each.partition, code or self._check_size(each)) for each in commit.offsets]
        kept = tuple(
            each for each, (_, refused) in zip(commit.offsets, codes, strict=True) if not refused
        )
        out: list[Instruction] = [Reply(commit.token, CommitReply(tuple(codes)))]
        if kept:
            self._has_offsets = True
            out.insert(0, PersistOffsets(kept))
        return out

    def _check_size(self, offset: PartitionOffset) -> Code:
        is_larger = offset.is_metadata_larger(self._settings.offset_metadata_bytes_max)
        return Code.OFFSET_METADATA_TOO_LARGE if is_larger else Code.NONE

    def _delete_offsets(self, deletion: DeleteOffsets) -> list[Instruction]:
        if self.state is GroupState.DEAD:
            return [Reply(deletion.token, DeleteOffsetsReply(Code.GROUP_ID_NOT_FOUND))]
        reads_ours = self._membership.protocol_type == CONSUMER
        if self.state is not GroupState.EMPTY and not reads_ours:
            return [Reply(deletion.token, DeleteOffsetsReply(Code.NON_EMPTY_GROUP))]
        codes = tuple((each, self._check_deletable(each)) for each in deletion.partitions)
        out: list[Instruction] = [Reply(deletion.token, DeleteOffsetsReply(codes=codes))]
        gone = tuple(partition for partition, code in codes if not code)
        if gone:
            out.insert(0, EraseOffsets(gone))
        return out

    def _check_deletable(self, partition: TopicPartition) -> Code:
        subscribed = self._membership.subscribed
        if self.state is GroupState.EMPTY:
            return Code.NONE
        if subscribed is None or partition.topic in subscribed:
            return Code.GROUP_SUBSCRIBED_TO_TOPIC
        return Code.NONE

    # --- deletion and timers ----------------------------------------------------------------

    def _delete_group(self, deletion: DeleteGroup) -> list[Instruction]:
        if self.state is GroupState.DEAD:
            return [Reply(deletion.token, CodeReply(Code.GROUP_ID_NOT_FOUND))]
        if self.state is not GroupState.EMPTY:
            return [Reply(deletion.token, CodeReply(Code.NON_EMPTY_GROUP))]
        self._membership.die()
        return [EraseGroup(), Reply(deletion.token, CodeReply()), Forget()]

    def _tick(self, now_ms: int) -> list[Instruction]:
        if self._armed_ms is not None and self._armed_ms <= now_ms:
            self._armed_ms = None
        self._membership.tick(now_ms)
        out = self._take_out(now_ms)
        forget_ms = self._forget_ms()
        if forget_ms is not None and forget_ms <= now_ms:
            self._membership.die()
            return [*out, EraseGroup(keeps_cursors=True), Forget()]
        return out + self._arm()

    def _forget_ms(self) -> int | None:
        """When the group may be forgotten unless a member joins or commits first."""
        if self.state is not GroupState.EMPTY or self._has_offsets:
            return None
        if isinstance(self._membership, Membership) and self._membership.roster.pending:
            return None
        return self._membership.empty_since_ms + self._settings.forget_empty_ms

    def _arm(self) -> list[Instruction]:
        """Request a tick at the earliest deadline, unless an earlier tick is already scheduled."""
        deadlines = list(self._membership.deadlines())
        forget_ms = self._forget_ms()
        if forget_ms is not None:
            deadlines.append(forget_ms)
        next_ms = min(deadlines, default=None)
        if next_ms is None or (self._armed_ms is not None and self._armed_ms <= next_ms):
            return []
        self._armed_ms = next_ms
        return [SetTimer(next_ms)]

    def _arm_earlier(self) -> list[Instruction]:
        """Request a tick if a heartbeat has set an earlier deadline; most only move one back."""
        deadline_ms = None if self.consumer is None else self.consumer.take_deadline()
        if deadline_ms is None or (self._armed_ms is not None and self._armed_ms <= deadline_ms):
            return []
        return self._arm()


def _refused(group_id: str, *, joins: bool) -> ConsumerHeartbeatReply:
    """The answer to a heartbeat for a classic group: a member joins again, a new one cannot."""
    if not joins:
        text = f"group {group_id} has no such member; join again with epoch 0"
        return ConsumerHeartbeatReply(code=Code.UNKNOWN_MEMBER_ID, text=text)
    text = (
        f"group {group_id} is a classic group with members and cannot become a consumer group; use "
        "group.protocol=classic, or see the setting group.consumer.migration.policy"
    )
    return ConsumerHeartbeatReply(code=Code.GROUP_ID_NOT_FOUND, text=text)
