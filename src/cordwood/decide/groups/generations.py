"""The generations of one group: its states, rebalances, deadlines and parked requests.

A rebalance waits for the members to join, forms the next generation, and waits for the leader's
assignment. Which requests start one is decided in ``membership``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cordwood.codes import Code
from cordwood.decide.groups.members import Member, Roster
from cordwood.decide.groups.messages import (
    CONSUMER,
    UNKNOWN_MEMBER,
    Answer,
    GroupSettings,
    GroupState,
    Instruction,
    JoinReply,
    PersistGroup,
    SyncReply,
)
from cordwood.decide.groups.subscription import parse_subscription
from cordwood.decide.instructions import Reply, Token

_POSTPONE_MS_MIN = 100  # the shortest interval between checks of a rebalance that no member joins

_BEFORE = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: {GroupState.EMPTY},
}


class Generations:
    """The rebalance protocol of one group; collects instructions until ``take_out``."""

    def __init__(self, settings: GroupSettings, protocol_type: str, now_ms: int) -> None:
        """Start without members; the protocol type was stored before a restart, or is empty."""
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.roster = Roster(protocol_type)
        self.empty_since_ms = now_ms
        self.subscribed: frozenset[str] | None = frozenset()  # None: unknown
        self._settings = settings
        self._persisted_type = protocol_type
        self._pending_sync: set[str] = set()
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._is_initial = False  # waiting for the first members: do not finish early
        self._initial_left_ms = 0
        self._has_newcomers = False
        self._out: list[Instruction] = []

    def configure(self, settings: GroupSettings) -> None:
        """Use other settings from the next event on."""
        self._settings = settings

    def take_out(self) -> list[Instruction]:
        """Return the collected instructions in order, and start a new list."""
        out, self._out = self._out, []
        return out

    def die(self) -> None:
        """Mark the group as deleted; pending members have to join a new group."""
        self.roster.pending.clear()
        self._move(GroupState.DEAD)

    def deadlines(self) -> Iterator[int]:
        """All deadlines in ms: pending members, sessions, and the waits for joins and syncs."""
        yield from self.roster.pending.values()
        yield from (member.deadline_ms for member in self.roster if not member.is_excused)
        if self._join_deadline_ms is not None:
            yield self._join_deadline_ms
        if self._sync_deadline_ms is not None:
            yield self._sync_deadline_ms

    def tick(self, now_ms: int) -> None:
        """Process every deadline that has passed."""
        self._expire_sessions(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._go_on_without(sorted(self._pending_sync), now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._end_join_wait(now_ms)

    def _expire_sessions(self, now_ms: int) -> None:
        gone = [each for each, deadline_ms in self.roster.pending.items() if deadline_ms <= now_ms]
        gone += [
            member.member_id
            for member in self.roster
            if member.deadline_ms <= now_ms and not member.is_excused
        ]
        self._go_on_without(gone, now_ms)

    def adopt(self, members: Iterable[Member], generation: int, now_ms: int) -> None:
        """Begin with the members of a group that was of the other type, and rebalance them."""
        for member in members:
            self.roster.add(member, CONSUMER)
        self.state, self.generation = GroupState.STABLE, generation
        self.protocol = self.roster.select_protocol()
        self._rebalance(now_ms)

    def abandon(self) -> None:
        """Answer parked requests, so that their members join the group of the other type."""
        for member in self.roster:
            self._answer_waiting(member, Code.REBALANCE_IN_PROGRESS, member.member_id)

    # --- rebalance ----------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        """Start a rebalance, or complete the current one if all members have joined."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(now_ms)
        elif not self._is_initial and self.roster.has_all_joined:
            self._complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        if self.state is GroupState.EMPTY:
            self.subscribed = None  # unknown before the first generation
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.roster:
                member.assignment = b""
                self._answer_sync(member, SyncReply(code=Code.REBALANCE_IN_PROGRESS), now_ms)
        self._pending_sync.clear()
        self._sync_deadline_ms = None
        delay_ms = self._settings.initial_rebalance_delay_ms
        self._is_initial = self.state is GroupState.EMPTY and delay_ms > 0
        self._move(GroupState.PREPARING_REBALANCE)
        if self._is_initial:
            self._join_deadline_ms = now_ms + delay_ms
            self._initial_left_ms = max(self.roster.rebalance_timeout_ms - delay_ms, 0)
            self._has_newcomers = False
        elif self.roster.has_all_joined:
            self._complete_join(now_ms)
        else:
            self._join_deadline_ms = now_ms + self.roster.rebalance_timeout_ms

    def _end_join_wait(self, now_ms: int) -> None:
        """Handle the join deadline; a first rebalance is extended while new members arrive."""
        if self._is_initial and self._has_newcomers and self._initial_left_ms > 0:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._has_newcomers = False
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Form the next generation of the rejoined members; static ones stay for their session."""
        assert self.state is GroupState.PREPARING_REBALANCE
        self._join_deadline_ms = None
        self._is_initial = False
        for member in self.roster:
            if member.join_token is None and member.instance_id is None:
                self._expel(member.member_id)
        if len(self.roster) and not self.roster.elect_joined_leader():
            wait_ms = max(self.roster.rebalance_timeout_ms, _POSTPONE_MS_MIN)
            self._join_deadline_ms = now_ms + wait_ms
            return
        self.generation += 1
        if len(self.roster):
            self._begin_generation(now_ms)
        else:
            self.protocol = None
            self.subscribed = frozenset()
            self.empty_since_ms = now_ms
            self._move(GroupState.EMPTY)

    def _begin_generation(self, now_ms: int) -> None:
        self.protocol = self.roster.select_protocol()
        self.subscribed = self._read_subscriptions()
        self._move(GroupState.COMPLETING_REBALANCE)
        if self._persisted_type != self.roster.protocol_type:
            self._persisted_type = self.roster.protocol_type
            self._out.append(PersistGroup(self._persisted_type))
        self._pending_sync = {member.member_id for member in self.roster}
        self._sync_deadline_ms = now_ms + self.roster.rebalance_timeout_ms
        for member in self.roster:
            member.is_new = False
            keep_alive(member, now_ms)
            leads = member.member_id == self.roster.leader_id
            self._answer_join(member, self._joined(member, with_members=leads))

    def _read_subscriptions(self) -> frozenset[str] | None:
        """All topics the members subscribe to, or ``None`` if any subscription is unreadable."""
        assert self.protocol is not None
        if self.roster.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        for member in self.roster:
            subscribed = parse_subscription(member.metadata(self.protocol))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self._move(GroupState.STABLE)
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            self._answer_sync(member, self._synced(member), now_ms)

    # --- removal ------------------------------------------------------------------------------

    def _go_on_without(self, member_ids: Sequence[str], now_ms: int) -> None:
        """Remove members or pending members, and rebalance if necessary."""
        was_member = False
        for member_id in member_ids:
            if self.roster.pending.pop(member_id, None) is None:
                self._expel(member_id)
                was_member = True
        if was_member or (member_ids and self.state is GroupState.PREPARING_REBALANCE):
            self._rebalance(now_ms)

    def _expel(self, member_id: str) -> None:
        """Remove a member; its parked requests get UNKNOWN_MEMBER_ID, so a live client rejoins."""
        member = self.roster.remove(member_id)
        self._pending_sync.discard(member_id)
        self._answer_waiting(member, Code.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER)

    # --- answers ------------------------------------------------------------------------------

    def _joined(
        self,
        member: Member,
        *,
        with_members: bool = False,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinReply:
        assert self.protocol is not None
        return JoinReply(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.roster.protocol_type,
            protocol=self.protocol,
            leader=leader or self.roster.leader_id or UNKNOWN_MEMBER,
            members=self.roster.metadata(self.protocol) if with_members else (),
            skip_assignment=skip_assignment,
        )

    def _synced(self, member: Member) -> SyncReply:
        return SyncReply(
            protocol_type=self.roster.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    def _answer_waiting(self, member: Member, code: Code, member_id: str) -> None:
        self._answer_join(member, JoinReply(code=code, member_id=member_id))
        if member.sync_token is not None:
            self._reply(member.sync_token, SyncReply(code=code))
            member.sync_token = None

    def _answer_join(self, member: Member, answer: JoinReply) -> None:
        if member.join_token is not None:
            self._reply(member.join_token, answer)
            member.join_token = None

    def _answer_sync(self, member: Member, answer: SyncReply, now_ms: int) -> None:
        if member.sync_token is not None:
            self._reply(member.sync_token, answer)
            member.sync_token = None
            keep_alive(member, now_ms)

    def _reply(self, token: Token, answer: Answer) -> None:
        self._out.append(Reply(token, answer))

    def _move(self, state: GroupState) -> None:
        assert self.state in _BEFORE[state], f"{self.state} → {state}"
        self.state = state


def keep_alive(member: Member, now_ms: int) -> None:
    """Restart the member's session timeout; a new member keeps its longer join deadline."""
    if not member.is_new:
        member.deadline_ms = now_ms + member.session_timeout_ms
