"""Membership of one KIP-848 group: what a ConsumerGroupHeartbeat does.

The rules are Kafka's, with three differences that help clients:

- a member that joins again with its own id starts anew, also a static one, instead of being fenced
  until its session ends;
- the assignment is repeated for a member that did not hear of its new epoch;
- a static member may return to a full group, because it takes its own place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cordwood.codes import Code
from cordwood.decide.groups.consumer.classic_members import ClassicMembers
from cordwood.decide.groups.consumer.members import ConsumerMember
from cordwood.decide.groups.consumer.messages import (
    JOIN_EPOCH,
    NOTHING,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerMemberDescription,
)
from cordwood.decide.groups.consumer.reconciliation import CurrentAssignment
from cordwood.decide.groups.messages import CONSUMER, GroupDescription, GroupType, MemberDescription

_OWN_ID_VERSION = 1  # ConsumerGroupHeartbeat version from which a member chooses its own id


class Refusal(NamedTuple):
    """Why a request is refused."""

    code: Code
    text: str


class ConsumerMembership(ClassicMembers):
    """Answers the members' requests."""

    def consumer_heartbeat(self, beat: ConsumerHeartbeat, now_ms: int) -> None:
        """Process a ConsumerGroupHeartbeat that passed ``check_heartbeat``."""
        leaves = beat.epoch < JOIN_EPOCH
        act = self._leave_or_pause if leaves else self._join_or_go_on
        refusal = act(beat, now_ms)
        if refusal is not None:
            self._reply(beat.token, ConsumerHeartbeatReply(code=refusal.code, text=refusal.text))

    def _leave_or_pause(self, beat: ConsumerHeartbeat, now_ms: int) -> Refusal | None:
        member, code = self.roster.check(beat.member_id, beat.instance_id)
        if member is None:
            return _unknown(beat, code)
        if beat.epoch == STATIC_LEAVE_EPOCH:
            current = member.current._replace(epoch=STATIC_LEAVE_EPOCH, revoking=NOTHING)
            self._move(member, current)
            member.rebalance_deadline_ms = None
        else:
            self._remove([member], now_ms)
        reply = ConsumerHeartbeatReply(member_id=beat.member_id, epoch=beat.epoch)
        self._reply(beat.token, reply)
        return None

    def _join_or_go_on(self, beat: ConsumerHeartbeat, now_ms: int) -> Refusal | None:
        found = self._enter(beat) if beat.epoch == JOIN_EPOCH else self._recognize(beat)
        if isinstance(found, Refusal):
            return found
        assigned_before = found.current.assigned
        changed = self._update(found, beat)
        if (changed or beat.matched) and self._match(beat.matched):
            changed = True
        if changed:
            self._subscribed = None
        self._refresh_epoch(is_changed=changed)
        self._assign()
        self._reconcile(found, beat.owned, now_ms)
        self._begin_session(found, now_ms)
        is_told = found.current.assigned == assigned_before and beat.epoch == found.current.epoch
        self._reply(
            beat.token,
            ConsumerHeartbeatReply(
                member_id=found.member_id,
                epoch=found.current.epoch,
                interval_ms=self._settings.consumer_heartbeat_interval_ms,
                assignment=None if is_told and not beat.is_full else found.current.assigned,
            ),
        )
        return None

    def _enter(self, beat: ConsumerHeartbeat) -> ConsumerMember | Refusal:
        """The member that joins: a new one, one that starts anew, or a static one that returns."""
        member_id = beat.member_id or beat.new_member_id
        member = self.roster.instance(beat.instance_id) or self.roster.get(member_id)
        if member is None:
            limit = self._settings.consumer_members_max
            if len(self.roster) >= limit:
                text = f"the consumer group has reached its limit of {limit} members"
                return Refusal(Code.GROUP_MAX_SIZE_REACHED, text)
            member = ConsumerMember(member_id=member_id, instance_id=beat.instance_id)
            self._add(member)
        elif member.member_id == member_id:
            self._move(member, CurrentAssignment())
        elif member.current.epoch == STATIC_LEAVE_EPOCH or member.classic:
            member = self._replace_static(member, member_id)
        else:
            text = f"instance id {beat.instance_id} is still in use by member {member.member_id}"
            return Refusal(Code.UNRELEASED_INSTANCE_ID, text)
        return member

    def _recognize(self, beat: ConsumerHeartbeat) -> ConsumerMember | Refusal:
        """The member that goes on, if its epoch is right."""
        member, code = self.roster.check(beat.member_id, beat.instance_id)
        if member is None:
            return _unknown(beat, code)
        current = member.current
        missed_reply = (
            beat.epoch == current.previous_epoch
            and beat.owned is not None
            and beat.owned <= current.assigned
        )
        if beat.epoch != current.epoch and not missed_reply:
            text = (
                f"member {member.member_id} is at epoch {current.epoch}, not {beat.epoch}; it has "
                "to give up its partitions and join again"
            )
            return Refusal(Code.FENCED_MEMBER_EPOCH, text)
        return member

    def _update(self, member: ConsumerMember, beat: ConsumerHeartbeat) -> bool:
        """Take over what the heartbeat says; whether it changes what the member should get."""
        before = replace(member)
        self.roster.set_instance(member, beat.instance_id)
        member.client_id, member.client_host = beat.client_id, beat.client_host
        member.classic = member.join_deadline_ms = member.sync_deadline_ms = None
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.topics is not None:
            member.topics = beat.topics
        if beat.pattern is not None:
            member.pattern = beat.pattern or None
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if member != before:
            self._unsaved.add(member.member_id)
        return (member.topics, member.pattern, member.assignor) != (
            before.topics,
            before.pattern,
            before.assignor,
        )

    # --- descriptions -------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription:
        """The group as ListGroups shows it."""
        is_empty = not len(self.roster)
        return GroupDescription(
            group_id=group_id,
            state=self.state,
            group_type=GroupType.CONSUMER,
            protocol_type=CONSUMER,
            protocol=self.assignor(),
            generation=self.epoch,
            empty_since_ms=self.empty_since_ms if is_empty else None,
            members=tuple(
                MemberDescription(
                    each.member_id, each.instance_id, each.client_id, each.client_host, b"", b""
                )
                for each in self.roster
            ),
        )

    def describe_members(self) -> ConsumerGroupDescription:
        """The group as ConsumerGroupDescribe shows it."""
        return ConsumerGroupDescription(
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self.assignor(),
            members=tuple(
                ConsumerMemberDescription(
                    each.member_id,
                    each.instance_id,
                    each.rack_id,
                    each.current.epoch,
                    each.client_id,
                    each.client_host,
                    each.topics,
                    each.pattern,
                    each.current.assigned,
                    each.target,
                    each.classic is not None,
                )
                for each in self.roster
            ),
        )


def check_heartbeat(beat: ConsumerHeartbeat, assignors: tuple[str, ...]) -> Refusal | None:
    """Why the request is not a valid one, whatever the group; ``None`` if it is."""
    problem = _problem(beat)
    if problem:
        return Refusal(Code.INVALID_REQUEST, problem)
    if beat.assignor is not None and beat.assignor not in assignors:
        text = f"there is no assignor {beat.assignor}; use {' or '.join(assignors)}"
        return Refusal(Code.UNSUPPORTED_ASSIGNOR, text)
    return None


def _problem(beat: ConsumerHeartbeat) -> str:
    if beat.epoch < STATIC_LEAVE_EPOCH:
        return f"{beat.epoch} is not a member epoch"
    if "" in {beat.instance_id, beat.rack_id}:
        return "an instance id or rack id is null or has characters; it cannot be empty"
    if not beat.member_id and (beat.epoch != JOIN_EPOCH or beat.version >= _OWN_ID_VERSION):
        return "the member id cannot be empty"
    if beat.epoch == STATIC_LEAVE_EPOCH and beat.instance_id is None:
        return "only a static member can leave with epoch -2; give its instance id"
    if beat.epoch != JOIN_EPOCH:
        return ""
    if beat.rebalance_timeout_ms < 0:
        return "a member that joins has to give its rebalance timeout"
    if beat.owned != NOTHING:
        return "a member that joins owns no partitions; send an empty list of them"
    if not beat.topics and not beat.pattern:
        return "a member that joins has to subscribe to topics or to a regular expression"
    return ""


def _unknown(beat: ConsumerHeartbeat, code: Code) -> Refusal:
    if code is Code.FENCED_INSTANCE_ID:
        text = f"another member than {beat.member_id} has the instance id {beat.instance_id}"
    else:
        text = f"there is no member {beat.member_id} in the group; join again with epoch 0"
    return Refusal(code, text)
