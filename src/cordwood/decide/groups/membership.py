"""Membership of one group: what a join, sync, heartbeat or leave of a member does.

The rules are Kafka's, with four differences that help clients:

- a request that is superseded by another one of the same member is answered, not left hanging;
- members whose sessions end in the same tick are removed together, with one rebalance;
- a static member that returns with other topics triggers a rebalance (Kafka compares only the
  protocol name and leaves new topics unread);
- a member that is asked to rejoin with its id also extends the wait of a first rebalance.

The rebalances that these requests start are in ``generations``. Neither knows about offsets.
"""

from __future__ import annotations

from cordwood.codes import Code
from cordwood.decide.groups.generations import Generations, keep_alive
from cordwood.decide.groups.members import Member
from cordwood.decide.groups.messages import (
    CONSUMER,
    UNKNOWN_MEMBER,
    GroupDescription,
    GroupState,
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Left,
    MemberDescription,
    Sync,
    SyncReply,
)
from cordwood.decide.groups.subscription import parse_subscription
from cordwood.decide.instructions import CodeReply

_KNOWN_ID_VERSION = 4  # JoinGroup version from which a dynamic member must rejoin with its id
_SKIP_ASSIGNMENT_VERSION = 9  # JoinGroup version from which a leader can be told to skip assignment


class Membership(Generations):
    """Answers the members' requests."""

    @property
    def protocol_type(self) -> str:
        """The protocol type of the members, or of those before."""
        return self.roster.protocol_type

    def keep_alive(self, member_id: str, now_ms: int) -> None:
        """Extend a member's session after a request other than a heartbeat."""
        if member_id in self.roster:
            keep_alive(self.roster[member_id], now_ms)

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> Code:
        """Whether offsets may be committed on behalf of this member; changes nothing."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return Code.NONE  # a consumer without group membership, or an operator
        if generation >= 0 or member_id or instance_id is not None:
            code = self.check(member_id, instance_id, generation)
            if code:
                return code
        elif not transactional:
            return Code.UNKNOWN_MEMBER_ID
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def describe(self, group_id: str) -> GroupDescription:
        """The group as DescribeGroups shows it."""
        stable = self.state is GroupState.STABLE
        protocol = (self.protocol or "") if stable else ""
        return GroupDescription(
            group_id=group_id,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol=protocol,
            generation=self.generation,
            empty_since_ms=self.empty_since_ms if self.state is GroupState.EMPTY else None,
            members=tuple(
                MemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(protocol) if stable else b"",
                    member.assignment if stable else b"",
                )
                for member in self.roster
            ),
        )

    # --- join ---------------------------------------------------------------------------------

    def join(self, join: Join, now_ms: int) -> None:
        """Process a JoinGroup: add the member, park the request, or refuse it."""
        settings, roster = self._settings, self.roster
        session_ms = join.session_timeout_ms
        if self.state is GroupState.DEAD:
            self._refuse_join(join, Code.COORDINATOR_NOT_AVAILABLE)
        elif not settings.session_timeout_ms_min <= session_ms <= settings.session_timeout_ms_max:
            self._refuse_join(join, Code.INVALID_SESSION_TIMEOUT)
        elif not self._has_capacity(join):
            self._turn_away(join, now_ms)
        elif not roster.supports(join):
            self._refuse_join(join, Code.INCONSISTENT_GROUP_PROTOCOL)
        elif join.member_id == UNKNOWN_MEMBER:
            self._join_unknown(join, now_ms)
        elif join.member_id in roster.pending and join.instance_id is None:
            self._add(join, join.member_id, now_ms)
        else:
            self._rejoin(join, now_ms)

    def _has_capacity(self, join: Join) -> bool:
        """Whether the size limit allows this join; in a rebalance only rejoined members count."""
        roster, members_max = self.roster, self._settings.members_max
        if roster.instance_member(join.instance_id) is not None:
            return True  # it takes over its own place
        if join.member_id == UNKNOWN_MEMBER and len(roster.pending) >= members_max:
            return False
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            is_back = join.member_id in roster and roster[join.member_id].join_token is not None
            return is_back or roster.awaiting_join < members_max
        return join.member_id in roster or len(roster) < members_max

    def _turn_away(self, join: Join, now_ms: int) -> None:
        self._refuse_join(join, Code.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
        if join.member_id in self.roster or join.member_id in self.roster.pending:
            self._go_on_without([join.member_id], now_ms)

    def _join_unknown(self, join: Join, now_ms: int) -> None:
        known_id = self.roster.instance_member(join.instance_id)
        if known_id is not None:
            self._replace_static(join, self.roster[known_id], now_ms)
        elif join.instance_id is None and join.version >= _KNOWN_ID_VERSION:
            self.roster.pending[join.new_member_id] = now_ms + join.session_timeout_ms
            self._has_newcomers = True
            self._refuse_join(join, Code.MEMBER_ID_REQUIRED, join.new_member_id)
        else:
            self._add(join, join.new_member_id, now_ms)

    def _add(self, join: Join, member_id: str, now_ms: int) -> None:
        member = Member(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=max(join.rebalance_timeout_ms, 0),
            protocols=join.protocols,
            deadline_ms=now_ms + self._settings.new_member_join_timeout_ms,
            join_token=join.token,
        )
        self.roster.add(member, join.protocol_type)
        self._has_newcomers = True
        self._rebalance(now_ms)

    def _rejoin(self, join: Join, now_ms: int) -> None:
        code = self.roster.check(join.member_id, join.instance_id)
        if code:
            self._refuse_join(join, code)
            return
        member = self.roster[join.member_id]
        leads = self.roster.leader_id == member.member_id
        if (
            self.state is GroupState.PREPARING_REBALANCE
            or member.protocols != join.protocols
            or (self.state is GroupState.STABLE and leads)  # the leader noticed a change
        ):
            self._update(member, join)
            self._rebalance(now_ms)
        else:  # it missed the reply: send it again
            keep_alive(member, now_ms)
            with_members = leads and self.state is GroupState.COMPLETING_REBALANCE
            self._reply(join.token, self._joined(member, with_members=with_members))

    def _update(self, member: Member, join: Join) -> None:
        if member.join_token is not None:
            overtaken = JoinReply(code=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            self._reply(member.join_token, overtaken)
        member.protocols = join.protocols
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = max(join.rebalance_timeout_ms, 0)
        member.join_token = join.token

    def _replace_static(self, join: Join, member: Member, now_ms: int) -> None:
        """A static instance returns without its id: give it a new id and fence the old one."""
        old_id, old_protocols = member.member_id, member.protocols
        old_leader = self.roster.leader_id
        self._answer_waiting(member, Code.FENCED_INSTANCE_ID, old_id)
        self.roster.rename(member, join.new_member_id)
        if old_id in self._pending_sync:
            self._pending_sync.remove(old_id)
            self._pending_sync.add(member.member_id)
        member.client_id, member.client_host = join.client_id, join.client_host
        self._update(member, join)
        keep_alive(member, now_ms)
        if self.state is GroupState.STABLE and self._is_assignment_good(member, old_protocols):
            leads = self.roster.leader_id == member.member_id
            skips = leads and join.version >= _SKIP_ASSIGNMENT_VERSION
            answer = self._joined(member, with_members=skips, skip_assignment=skips)
            if leads and not skips:  # an old client must not believe it has to assign
                answer = self._joined(member, leader=old_leader)
            self._answer_join(member, answer)
        else:
            self._rebalance(now_ms)

    def _is_assignment_good(self, member: Member, before: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether the current assignment still fits a static member that returned."""
        if self.roster.select_protocol() != self.protocol:
            return False
        if self.roster.protocol_type != CONSUMER:
            return True  # like Kafka: we cannot interpret this metadata
        assert self.protocol is not None
        return parse_subscription(dict(before)[self.protocol]) == parse_subscription(
            member.metadata(self.protocol)
        )

    def _refuse_join(self, join: Join, code: Code, member_id: str | None = None) -> None:
        answer = JoinReply(code=code, member_id=join.member_id if member_id is None else member_id)
        self._reply(join.token, answer)

    # --- sync, heartbeat, leave ---------------------------------------------------------------

    def sync(self, sync: Sync, now_ms: int) -> None:
        """Process a SyncGroup: park it, or reply with the assignment."""
        code = self._check_sync(sync)
        if code:
            self._reply(sync.token, SyncReply(code=code))
            return
        member = self.roster[sync.member_id]
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._sync_deadline_ms = None
        if self.state is GroupState.STABLE:
            keep_alive(member, now_ms)
            self._reply(sync.token, self._synced(member))
            return
        if member.sync_token is not None:
            self._reply(member.sync_token, SyncReply(code=Code.REBALANCE_IN_PROGRESS))
        member.sync_token = sync.token
        if member.member_id == self.roster.leader_id:
            self._assign(dict(sync.assignments), now_ms)

    def _check_sync(self, sync: Sync) -> Code:
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        code = self.check(sync.member_id, sync.instance_id, sync.generation)
        if code:
            return code
        says_other_type = sync.protocol_type not in {None, self.roster.protocol_type}
        if says_other_type or (self.protocol and sync.protocol not in {None, self.protocol}):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def check(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        """Whether a request may act for this member in this generation."""
        code = self.roster.check(member_id, instance_id)
        if not code and generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return code

    def heartbeat(self, beat: Heartbeat, now_ms: int) -> None:
        """Process a heartbeat."""
        code = Code.COORDINATOR_NOT_AVAILABLE
        if self.state is not GroupState.DEAD:
            code = self.check(beat.member_id, beat.instance_id, beat.generation)
        if not code:
            keep_alive(self.roster[beat.member_id], now_ms)
            if self.state is GroupState.PREPARING_REBALANCE:
                code = Code.REBALANCE_IN_PROGRESS
        self._reply(beat.token, CodeReply(code))

    def leave(self, leave: Leave, now_ms: int) -> None:
        """Process a LeaveGroup of one or several members."""
        if self.state is GroupState.DEAD:
            self._reply(leave.token, LeaveReply(Code.COORDINATOR_NOT_AVAILABLE))
            return
        gone: list[str] = []
        left: list[Left] = []
        for leaver in leave.leavers:
            member_id, code = self._find_leaver(leaver)
            if member_id in gone:
                code = Code.UNKNOWN_MEMBER_ID
            elif not code:
                gone.append(member_id)
            left.append(Left(leaver.member_id, leaver.instance_id, code))
        self._reply(leave.token, LeaveReply(members=tuple(left)))
        self._go_on_without(gone, now_ms)

    def _find_leaver(self, leaver: Leaver) -> tuple[str, Code]:
        member_id = leaver.member_id
        if member_id == UNKNOWN_MEMBER:  # an operator gives only the instance id
            member_id = self.roster.instance_member(leaver.instance_id) or UNKNOWN_MEMBER
        if member_id in self.roster.pending:
            return member_id, Code.NONE
        return member_id, self.roster.check(member_id, leaver.instance_id)
