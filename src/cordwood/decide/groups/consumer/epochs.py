"""The epochs of one KIP-848 group: when they grow, targets, removal, and what is stored.

Which requests change what is decided in ``membership`` and ``classic_members``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from cordwood.decide.groups.consumer.assignors import ASSIGNORS, Subscriber
from cordwood.decide.groups.consumer.members import ConsumerMember, ConsumerRoster
from cordwood.decide.groups.consumer.messages import (
    Assignment,
    PersistConsumerGroup,
    SubscribedTopic,
    Topics,
)
from cordwood.decide.groups.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    Target,
    reconcile,
)
from cordwood.decide.groups.consumer.record import (
    encode_group_record,
    encode_member_record,
    parse_matched,
    parse_member_record,
    parse_topics,
)
from cordwood.decide.groups.messages import GroupSettings, GroupState, Instruction
from cordwood.decide.instructions import Reply, Token


class ConsumerEpochs:
    """The members of one group and its epochs; collects instructions until ``take_out``."""

    def __init__(
        self, settings: GroupSettings, topics: Topics, now_ms: int, epoch: int = 0
    ) -> None:
        """Start without members; a group that was a classic one goes on from its generation."""
        self.epoch = epoch
        self.assignment_epoch = epoch
        self.empty_since_ms = now_ms
        self.roster = ConsumerRoster()
        self._settings = settings
        self._existing = topics
        self._seen: tuple[int, frozenset[str]] | None = None  # the last refresh was for these
        self._topics: dict[str, SubscribedTopic] = {}  # by name; the target was computed for these
        self._names: dict[str, str] = {}  # topic id → name, of all topics seen in this process
        self._matched: dict[str, frozenset[str]] = {}  # pattern → topics
        self._subscribed: frozenset[str] | None = None  # None: to be computed
        self._is_dead = False
        self._unsaved: set[str] = set()  # members
        self._is_group_unsaved = True
        self._new_deadline_ms: int | None = None
        self._replies: list[Instruction] = []

    def configure(self, settings: GroupSettings) -> None:
        """Use other settings from the next event on."""
        self._settings = settings

    def restore(
        self, record: Mapping[str, Any], members: Mapping[str, Mapping[str, Any]], now_ms: int
    ) -> None:
        """Continue from what was stored before a restart."""
        self.epoch, self.assignment_epoch = record["epoch"], record["assignment_epoch"]
        self._matched = parse_matched(record)
        self._set_topics(parse_topics(record))
        for member_id, values in members.items():
            member = parse_member_record(member_id, values)
            self._begin_session(member, now_ms)
            if member.current.state is MemberState.UNREVOKED and not member.classic:
                member.rebalance_deadline_ms = self._deadline(now_ms, member.rebalance_timeout_ms)
            self.roster.add(member)
        self._is_group_unsaved = False

    def take_out(self) -> list[Instruction]:
        """Return what to store, then the replies, and start new lists."""
        out: list[Instruction] = []
        if self._unsaved or self._is_group_unsaved:
            members = {each: self._member_record(each) for each in sorted(self._unsaved)}
            record = encode_group_record(
                self.epoch, self.assignment_epoch, self._topics, self._matched
            )
            out.append(PersistConsumerGroup(record, members))
        self._unsaved, self._is_group_unsaved = set(), False
        return out + self.take_replies()

    def take_replies(self) -> list[Instruction]:
        """Return only the replies: the group changes its type, and nothing of it is stored."""
        replies, self._replies = self._replies, []
        return replies

    def take_deadline(self) -> int | None:
        """Return the earliest deadline that was set since the last call."""
        deadline_ms, self._new_deadline_ms = self._new_deadline_ms, None
        return deadline_ms

    def _deadline(self, now_ms: int, timeout_ms: int) -> int:
        """A deadline from now on, for which a tick is needed."""
        at_ms = now_ms + timeout_ms
        earlier_ms = self._new_deadline_ms
        self._new_deadline_ms = at_ms if earlier_ms is None else min(at_ms, earlier_ms)
        return at_ms

    def _member_record(self, member_id: str) -> Mapping[str, Any] | None:
        member = self.roster.get(member_id)
        return None if member is None else encode_member_record(member)

    def mark_unsaved(self, stored: Iterable[str]) -> None:
        """Store everything with the next change: an earlier write failed and left these members."""
        self._unsaved |= {member.member_id for member in self.roster} | set(stored)
        self._is_group_unsaved = True

    def die(self) -> None:
        """Mark the group as deleted."""
        self._is_dead = True
        self._is_group_unsaved = False

    @property
    def state(self) -> GroupState:
        """The group's state, computed from its epochs and members."""
        if self._is_dead:
            return GroupState.DEAD
        if not len(self.roster):
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        reconciled = (
            each.current.state is MemberState.STABLE and each.current.epoch == self.assignment_epoch
            for each in self.roster
        )
        return GroupState.STABLE if all(reconciled) else GroupState.RECONCILING

    def deadlines(self) -> Iterator[int]:
        """All deadlines in ms."""
        for member in self.roster:
            yield from member.deadlines()

    def tick(self, now_ms: int) -> None:
        """Remove every member that has missed a deadline."""
        late = [each for each in self.roster if min(each.deadlines()) <= now_ms]
        self._remove(late, now_ms)

    # --- subscriptions ------------------------------------------------------------------------

    @property
    def subscribed(self) -> frozenset[str]:
        """All topics that members subscribe to, by name or by pattern."""
        if self._subscribed is None:
            topics = (self._topics_of(member) for member in self.roster)
            self._subscribed = frozenset[str]().union(*topics)
        return self._subscribed

    @property
    def patterns(self) -> frozenset[str]:
        """The patterns of all members."""
        return frozenset(self._matched)

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        return member.topics | self._matched.get(member.pattern or "", frozenset())

    def _match(self, matched: Mapping[str, frozenset[str]]) -> bool:
        """Keep the matches of patterns that a member has; whether any differs from before."""
        used = {member.pattern for member in self.roster if member.pattern}
        kept = {
            pattern: names
            for pattern, names in {**self._matched, **matched}.items()
            if pattern in used
        }
        differs = kept != self._matched
        if differs:
            self._matched, self._subscribed = kept, None
            self._is_group_unsaved = True
        return differs

    def _refresh_epoch(self, *, is_changed: bool = False) -> None:
        """Begin a new epoch if subscriptions or the topics behind them changed."""
        if self._have_topics_changed() or is_changed:
            self.epoch += 1
            self._is_group_unsaved = True

    def _have_topics_changed(self) -> bool:
        """Whether a subscribed topic appeared, grew, disappeared or was recreated."""
        version, subscribed = self._existing.version, self.subscribed
        if self._seen is not None and self._seen[0] == version and self._seen[1] is subscribed:
            return False
        self._seen = version, subscribed
        found = ((name, self._existing.find(name)) for name in subscribed)
        topics = {name: topic for name, topic in found if topic is not None}
        differ = topics != self._topics
        if differ:
            self._set_topics(topics)
        return differ

    def _set_topics(self, topics: dict[str, SubscribedTopic]) -> None:
        self._topics = topics
        self._names |= {topic.topic_id: topic.name for topic in topics.values()}

    # --- targets and reconciliation -----------------------------------------------------------

    def assignor(self) -> str:
        """The name of the assignor that the members prefer."""
        return self.roster.preferred_assignor(self._settings.consumer_assignors[0])

    def _assign(self) -> None:
        """Compute the target assignment of the current epoch, unless it is computed already."""
        if self.assignment_epoch == self.epoch:
            return
        members = {
            member.member_id: Subscriber(
                frozenset(
                    topic.topic_id
                    for name in self._topics_of(member)
                    if (topic := self._topics.get(name))
                ),
                member.target,
                member.instance_id,
            )
            for member in self.roster
        }
        topics = {topic.topic_id: topic.partitions for topic in self._topics.values()}
        targets = ASSIGNORS[self.assignor()](members, topics)
        for member in self.roster:
            if member.target != targets[member.member_id]:
                member.target = targets[member.member_id]
                self._unsaved.add(member.member_id)
        self.assignment_epoch = self.epoch
        self._is_group_unsaved = True

    def _reconcile(self, member: ConsumerMember, owned: Assignment | None, now_ms: int) -> None:
        """Move the member towards its target, as far as it and the other members allow."""
        target = Target(self.assignment_epoch, member.target)
        is_free = partial(self.roster.is_free, member=member)
        current = reconcile(member.current, target, owned, is_free)
        if current == member.current:
            return
        self._move(member, current)
        waits = current.state is MemberState.UNREVOKED and not member.classic
        member.rebalance_deadline_ms = (
            self._deadline(now_ms, member.rebalance_timeout_ms) if waits else None
        )

    def _move(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        self.roster.move(member, current)
        self._unsaved.add(member.member_id)

    # --- members ------------------------------------------------------------------------------

    def _begin_session(self, member: ConsumerMember, now_ms: int) -> None:
        timeout_ms = self._settings.consumer_session_timeout_ms
        if member.classic:
            timeout_ms = member.classic.session_timeout_ms
        member.session_deadline_ms = self._deadline(now_ms, timeout_ms)

    def adopt(self, member: ConsumerMember, now_ms: int) -> None:
        """Add a member of the classic group that this group was before."""
        self._begin_session(member, now_ms)
        self._add(member)

    def _add(self, member: ConsumerMember) -> None:
        self.roster.add(member)
        self._subscribed = None
        self._unsaved.add(member.member_id)

    def _remove(self, members: Iterable[ConsumerMember], now_ms: int) -> None:
        """Remove members; the next heartbeat of another one computes the new target."""
        gone = list(members)
        for member in gone:
            self.roster.remove(member)
            self._unsaved.add(member.member_id)
            self._subscribed = None
            self._refresh_epoch(is_changed=True)
        if gone and not len(self.roster):
            self.empty_since_ms = now_ms
            self.assignment_epoch = self.epoch

    def _reply(self, token: Token, answer: object) -> None:
        self._replies.append(Reply(token, answer))
