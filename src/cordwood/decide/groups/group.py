"""One classic consumer group: ``handle(event, now_ms)`` returns the instructions to execute.

Membership rules are in ``membership``. This module handles offset commits, deletion and the single
timer that covers all deadlines of the group.
"""

from __future__ import annotations

from cordwood.codes import Code
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
    MemberDescription,
    PersistOffsets,
    Sync,
)
from cordwood.decide.instructions import CodeReply, Forget, Reply, SetTimer, Tick
from cordwood.decide.offsets import PartitionOffset
from cordwood.model import TopicPartition


class Group:
    """The state machine of one group; it starts as Empty, also after a restart."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        now_ms: int,
        protocol_type: str = "",
        has_offsets: bool = False,
    ) -> None:
        """Create an empty group; the last two arguments restore what was stored before."""
        self.group_id = group_id
        self._settings = settings
        self._membership = Membership(settings, protocol_type, now_ms)
        self._has_offsets = has_offsets
        self._armed_ms: int | None = None

    @property
    def state(self) -> GroupState:
        """The current state."""
        return self._membership.state

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:
        """Process one event; execute the returned instructions in order."""
        match event:
            case Heartbeat():
                self._membership.heartbeat(event, now_ms)
                return self._membership.take_out()
            case CommitOffsets():
                return self._commit(event, now_ms)
            case DeleteOffsets():
                return self._delete_offsets(event)
            case DeleteGroup():
                return self._delete_group(event)
            case Join():
                self._membership.join(event, now_ms)
            case Sync():
                self._membership.sync(event, now_ms)
            case Leave():
                self._membership.leave(event, now_ms)
            case Tick():
                return self._tick(now_ms)
        return self._membership.take_out() + self._arm()

    def describe(self) -> GroupDescription:
        """The group as DescribeGroups shows it."""
        membership = self._membership
        stable = self.state is GroupState.STABLE
        protocol = (membership.protocol or "") if stable else ""
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=membership.roster.protocol_type,
            protocol=protocol,
            generation=membership.generation,
            empty_since_ms=(membership.empty_since_ms if self.state is GroupState.EMPTY else None),
            members=tuple(
                MemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(protocol) if stable else b"",
                    member.assignment if stable else b"",
                )
                for member in membership.roster
            ),
        )

    # --- offsets ----------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> Code:
        """Whether offsets may be committed on behalf of this member; changes nothing."""
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return Code.NONE  # a consumer without group membership, or an operator
        if generation >= 0 or member_id or instance_id is not None:
            code = self._membership.check(member_id, instance_id, generation)
            if code:
                return code
        elif not transactional:
            return Code.UNKNOWN_MEMBER_ID
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def _commit(self, commit: CommitOffsets, now_ms: int) -> list[Instruction]:
        code = self.check_commit(
            commit.member_id, commit.generation, commit.instance_id, transactional=False
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
        reads_ours = self._membership.roster.protocol_type == CONSUMER
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
        out = self._membership.take_out()
        forget_ms = self._forget_ms()
        if forget_ms is not None and forget_ms <= now_ms:
            self._membership.die()
            return [*out, EraseGroup(keeps_cursors=True), Forget()]
        return out + self._arm()

    def _forget_ms(self) -> int | None:
        """When the group may be forgotten unless a member joins or commits first."""
        if self.state is not GroupState.EMPTY or self._has_offsets:
            return None
        if self._membership.roster.pending:
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
