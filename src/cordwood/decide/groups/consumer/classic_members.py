"""The classic requests of members of a KIP-848 group that have not migrated yet.

To such a member the broker is the leader: its join is answered at once with its own epoch as the
generation, its sync with what it may use now, and its heartbeats tell it to join again whenever
there is something to give up or to get.
"""

from __future__ import annotations

from dataclasses import replace

from cordwood.codes import Code
from cordwood.decide.groups.consumer.epochs import ConsumerEpochs
from cordwood.decide.groups.consumer.members import ClassicProtocol, ConsumerMember
from cordwood.decide.groups.consumer.messages import Assignment, TopicIdPartition
from cordwood.decide.groups.consumer.reconciliation import CurrentAssignment, MemberState
from cordwood.decide.groups.messages import (
    CONSUMER,
    UNKNOWN_MEMBER,
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Left,
    Sync,
    SyncReply,
)
from cordwood.decide.groups.subscription import (
    ConsumerSubscription,
    encode_assignment,
    parse_whole_subscription,
)
from cordwood.decide.instructions import CodeReply
from cordwood.model import TopicPartition

_KNOWN_ID_VERSION = 4  # JoinGroup version from which a dynamic member must rejoin with its id
_MEMBER_EPOCH_VERSION = 9  # OffsetCommit version from which members send their epoch


class ClassicMembers(ConsumerEpochs):
    """Answers the classic members' requests."""

    protocol_type = CONSUMER

    def join(self, join: Join, now_ms: int) -> None:
        """Process a JoinGroup: add or update the member and answer at once."""
        code, member_id = self._check_join(join), join.member_id or join.new_member_id
        if code:
            told = member_id if code is Code.MEMBER_ID_REQUIRED else join.member_id
            self._reply(join.token, JoinReply(code=code, member_id=told))
            return
        subscription = parse_whole_subscription(join.protocols[0][1])
        assert subscription is not None, "checked"
        member = self._find_or_add(join, member_id)
        changed = self._take_over(member, join, subscription)
        if changed:
            self._match({})
            self._subscribed = None
        self._refresh_epoch(is_changed=changed)
        self._assign()
        self._reconcile(member, self._by_id(subscription.owned), now_ms)
        self._begin_session(member, now_ms)
        member.join_deadline_ms = None
        member.sync_deadline_ms = self._deadline(now_ms, member.rebalance_timeout_ms)
        self._reply(join.token, _joined(member))

    def _check_join(self, join: Join) -> Code:
        settings = self._settings
        low_ms, high_ms = settings.session_timeout_ms_min, settings.session_timeout_ms_max
        is_static = self.roster.instance(join.instance_id) is not None
        if not low_ms <= join.session_timeout_ms <= high_ms:
            return Code.INVALID_SESSION_TIMEOUT
        is_known = is_static or join.member_id in self.roster
        if not is_known and len(self.roster) >= settings.consumer_members_max:
            return Code.GROUP_MAX_SIZE_REACHED
        is_ours = self.roster.supports(join.protocol_type, join.protocols)
        if not is_ours or parse_whole_subscription(join.protocols[0][1]) is None:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if join.member_id == UNKNOWN_MEMBER:
            needs_id = join.instance_id is None and join.version >= _KNOWN_ID_VERSION
            return Code.MEMBER_ID_REQUIRED if needs_id else Code.NONE
        if join.instance_id is not None:
            return self.roster.check(join.member_id, join.instance_id)[1]
        return Code.NONE

    def _find_or_add(self, join: Join, member_id: str) -> ConsumerMember:
        member = self.roster.instance(join.instance_id) or self.roster.get(member_id)
        if member is None:
            member = ConsumerMember(member_id=member_id, instance_id=join.instance_id)
            self._add(member)
        elif member.member_id != member_id:
            member = self._replace_static(member, member_id)
        return member

    def _replace_static(self, member: ConsumerMember, member_id: str) -> ConsumerMember:
        """Let a static member that returned take the place of its former self."""
        current = member.current
        returned = replace(
            member,
            member_id=member_id,
            current=CurrentAssignment(0, 0, current.state, current.assigned, current.revoking),
            rebalance_deadline_ms=None,
            join_deadline_ms=None,
            sync_deadline_ms=None,
        )
        self.roster.remove(member)
        self._unsaved.add(member.member_id)
        self._add(returned)
        return returned

    def _take_over(
        self, member: ConsumerMember, join: Join, subscription: ConsumerSubscription
    ) -> bool:
        """Take over what the join says; whether it changes what the member should get."""
        subscribed_before = member.topics, member.pattern, member.assignor
        self.roster.set_instance(member, join.instance_id)
        member.client_id, member.client_host = join.client_id, join.client_host
        member.rack_id = subscription.rack_id or member.rack_id
        member.rebalance_timeout_ms = max(join.rebalance_timeout_ms, 0)
        member.topics, member.pattern, member.assignor = subscription.topics, None, None
        member.classic = ClassicProtocol(join.session_timeout_ms, join.protocols)
        member.rebalance_deadline_ms = None
        self._unsaved.add(member.member_id)
        return (member.topics, member.pattern, member.assignor) != subscribed_before

    def _by_id(self, owned: frozenset[TopicPartition]) -> Assignment:
        """The partitions by topic id; those of deleted topics are left out."""
        topics = {each.topic: self._existing.find(each.topic) for each in owned}
        return frozenset(
            TopicIdPartition(topic.topic_id, each.partition)
            for each in owned
            if (topic := topics[each.topic]) is not None
        )

    def _by_name(self, assignment: Assignment) -> list[TopicPartition]:
        """The partitions by topic name."""
        return [
            TopicPartition(self._names[each.topic_id], each.partition)
            for each in assignment
            if each.topic_id in self._names
        ]

    # --- sync, heartbeat, leave ---------------------------------------------------------------

    def sync(self, sync: Sync, now_ms: int) -> None:
        """Process a SyncGroup: reply with what the member may use now."""
        member, code = self._check_classic(sync.member_id, sync.instance_id, sync.generation)
        if member is None:
            self._reply(sync.token, SyncReply(code=code))
            return
        assert member.classic is not None
        if sync.protocol_type not in {None, CONSUMER} or sync.protocol not in {
            None,
            member.classic.name,
        }:
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        elif (
            self.epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED
        ):
            self._expect_join(member, now_ms)
            code = Code.REBALANCE_IN_PROGRESS
        if code:
            self._reply(sync.token, SyncReply(code=code))
            return
        member.sync_deadline_ms = None
        self._begin_session(member, now_ms)
        self._reply(
            sync.token,
            SyncReply(
                protocol_type=CONSUMER,
                protocol=member.classic.name,
                assignment=self.classic_assignment(member),
            ),
        )

    def classic_assignment(self, member: ConsumerMember) -> bytes:
        """What the member may use now, as a leader would tell it."""
        assert member.classic is not None
        subscription = parse_whole_subscription(member.classic.metadata)
        version = subscription.version if subscription else 0
        return encode_assignment(self._by_name(member.current.assigned), version)

    def heartbeat(self, beat: Heartbeat, now_ms: int) -> None:
        """Process a classic heartbeat: tell the member whether it has to join again."""
        member, code = self._check_classic(beat.member_id, beat.instance_id, beat.generation)
        if member is not None:
            self._begin_session(member, now_ms)
            if self._has_to_join(member):
                self._expect_join(member, now_ms)
                code = Code.REBALANCE_IN_PROGRESS
        self._reply(beat.token, CodeReply(code))

    def _has_to_join(self, member: ConsumerMember) -> bool:
        self._refresh_epoch()
        current = member.current
        if current.epoch < self.epoch or current.state is MemberState.UNREVOKED:
            return True
        return any(
            self.roster.is_free(each, member) for each in member.target - current.assigned
        )  # a partition that it waited for was released

    def _expect_join(self, member: ConsumerMember, now_ms: int) -> None:
        if member.join_deadline_ms is None:
            member.join_deadline_ms = self._deadline(now_ms, member.rebalance_timeout_ms)

    def _check_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember | None, Code]:
        member, code = self.roster.check(member_id, instance_id)
        if member is not None and member.classic is None:
            return None, Code.UNKNOWN_MEMBER_ID
        if member is not None and member.current.epoch != generation:
            return None, Code.ILLEGAL_GENERATION
        return member, code

    def leave(self, leave: Leave, now_ms: int) -> None:
        """Process a LeaveGroup of one or several members."""
        gone: list[ConsumerMember] = []
        left: list[Left] = []
        for leaver in leave.leavers:
            member, code = self._find_leaver(leaver)
            if member is not None and member in gone:
                code = Code.UNKNOWN_MEMBER_ID
            elif member is not None:
                gone.append(member)
            left.append(Left(leaver.member_id, leaver.instance_id, code))
        self._remove(gone, now_ms)
        self._reply(leave.token, LeaveReply(members=tuple(left)))

    def _find_leaver(self, leaver: Leaver) -> tuple[ConsumerMember | None, Code]:
        """Find the member; an operator may remove a static one of either protocol by its name."""
        if leaver.member_id == UNKNOWN_MEMBER:
            member = self.roster.instance(leaver.instance_id)
            return member, Code.UNKNOWN_MEMBER_ID if member is None else Code.NONE
        member, code = self.roster.check(leaver.member_id, leaver.instance_id)
        if member is not None and member.classic is None:
            return None, Code.UNKNOWN_MEMBER_ID
        return member, code

    # --- offsets ------------------------------------------------------------------------------

    def keep_alive(self, member_id: str, now_ms: int) -> None:
        """Extend a classic member's session after a request other than a heartbeat."""
        member = self.roster.get(member_id)
        if member is not None and member.classic:
            self._begin_session(member, now_ms)

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int,
    ) -> Code:
        """Whether offsets may be committed on behalf of this member; changes nothing."""
        if generation < 0 and (
            not len(self.roster) or (transactional and member_id == UNKNOWN_MEMBER)
        ):
            return Code.NONE  # a consumer without group membership, or an operator
        member, code = self.roster.check(member_id, instance_id)
        if member is None:
            return code
        if not transactional and not member.classic and version < _MEMBER_EPOCH_VERSION:
            return Code.UNSUPPORTED_VERSION
        return self.check_epoch(member, generation)

    def check_epoch(self, member: ConsumerMember, epoch: int) -> Code:
        """Whether the member is at this epoch."""
        if epoch == member.current.epoch:
            return Code.NONE
        return Code.ILLEGAL_GENERATION if member.classic else Code.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> Code:
        """Whether offsets may be fetched on behalf of this member; anybody may without one."""
        if not member_id and epoch < 0:
            return Code.NONE
        member = self.roster.get(member_id or "")
        return Code.UNKNOWN_MEMBER_ID if member is None else self.check_epoch(member, epoch)


def _joined(member: ConsumerMember) -> JoinReply:
    """The reply to a join; it names no leader, so the member's sync brings no assignments."""
    assert member.classic is not None
    return JoinReply(
        member_id=member.member_id,
        generation=member.current.epoch,
        protocol_type=CONSUMER,
        protocol=member.classic.name,
    )
