"""Harnesses that carry out a coordinator's instructions in memory, as the broker does on disk.

Time passes only when a test advances it; timers fire on the way. Every request token is checked: a
second answer, or an answer without a request, fails at once.
"""

from __future__ import annotations

import itertools
import struct
import uuid

from cordwood.codes import Code
from cordwood.decide.groups.consumer.messages import (
    ConsumerHeartbeat,
    EraseConsumerGroup,
    PersistConsumerGroup,
    SubscribedTopic,
    TopicIdPartition,
)
from cordwood.decide.groups.directory import GroupDirectory
from cordwood.decide.groups.group import StoredGroup
from cordwood.decide.groups.messages import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    EraseGroup,
    EraseOffsets,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Leaver,
    PersistGroup,
    PersistOffsets,
    Sync,
)
from cordwood.decide.instructions import Forget, Reply, SetTimer, Tick
from cordwood.decide.offsets import PartitionOffset
from cordwood.model import TopicPartition

SESSION_MS = 10_000
REBALANCE_MS = 60_000
QUICK = GroupSettings(initial_rebalance_delay_ms=0)


def subscription(*topics: str) -> bytes:
    """Return the metadata of a consumer's subscription, version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


RANGE = (("range", subscription("t")),)


class TopicsByName:
    """Topics that a test creates, grows and deletes."""

    def __init__(self, **partitions: int) -> None:
        """Create these topics."""
        self.version = 0
        self._topics = {}
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic with a new id."""
        self.version += 1
        topic_id = str(uuid.UUID(int=self.version))
        self._topics[name] = SubscribedTopic(topic_id, name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions."""
        self.version += 1
        self._topics[name] = self._topics[name]._replace(partitions=partitions)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self.version += 1
        del self._topics[name]

    def find(self, name: str) -> SubscribedTopic | None:
        """Return the topic with that name, if it exists."""
        return self._topics.get(name)

    def all_of(self, *names: str) -> frozenset:
        """Return every partition of these topics."""
        found = (self._topics[name] for name in names if name in self._topics)
        return frozenset(
            TopicIdPartition(topic.topic_id, number)
            for topic in found
            for number in range(topic.partitions)
        )

    def matching(self, prefix: str) -> frozenset[str]:
        """Return the names that begin with the prefix."""
        return frozenset(name for name in self._topics if name.startswith(prefix))


class GroupHarness:
    """A group in a directory, with its timer, its cursors and its waiting requests."""

    def __init__(
        self,
        settings: GroupSettings = QUICK,
        group_id: str = "g",
        topics: TopicsByName | None = None,
    ) -> None:
        """Start at time 0."""
        self.topics = topics or TopicsByName()
        self.settings = settings
        self.groups = GroupDirectory(settings, self.topics)
        self.stored = {}  # member id → record, of a consumer group
        self.stored_group = None
        self.group_id = group_id
        self.now_ms = 0
        self.timer_ms = None
        self.waiting = {}
        self.answers = {}
        self.cursors = {}
        self.remembered = None
        self.forgotten = False
        self.trace = []
        self._tokens = itertools.count(1)
        self._ids = itertools.count(1)

    @property
    def state(self) -> str:
        """Return the group's state; a group that does not exist is Dead."""
        description = self.groups.describe(self.group_id)
        return "Dead" if description is None else str(description.state)

    def members(self) -> list[str]:
        """Return the ids of the current members."""
        description = self.groups.describe(self.group_id)
        return [] if description is None else [each.member_id for each in description.members]

    def send(self, event):
        """Send an event and return its answer, or ``None`` while it waits."""
        token = getattr(event, "token", None)
        if token is not None:
            self.waiting[token] = event
        self._carry_out(self.groups.handle(self.group_id, event, self.now_ms))
        return self.answers.get(token)

    def advance(self, ms: int) -> None:
        """Advance the time, with a tick at each timer on the way."""
        end_ms = self.now_ms + ms
        for _ in range(10_000):
            if self.timer_ms is None or self.timer_ms > end_ms:
                break
            self.now_ms, self.timer_ms = max(self.now_ms, self.timer_ms), None
            self._carry_out(self.groups.handle(self.group_id, Tick(), self.now_ms))
        else:
            raise AssertionError("the timer spins")
        self.now_ms = end_ms

    def _carry_out(self, instructions) -> None:
        self.trace += instructions
        for each in instructions:
            match each:
                case Reply(token, answer):
                    assert token in self.waiting, f"answered twice or never asked: {token}"
                    del self.waiting[token]
                    self.answers[token] = answer
                case SetTimer(at_ms):
                    self.timer_ms = at_ms
                case PersistOffsets(offsets):
                    self.cursors |= {kept.partition: kept for kept in offsets}
                case EraseOffsets(partitions):
                    for partition in partitions:
                        self.cursors.pop(partition, None)
                case PersistGroup(protocol_type):
                    self.remembered = protocol_type
                case PersistConsumerGroup(record, members):
                    self.stored_group = record
                    self.stored |= members
                    self.stored = {name: kept for name, kept in self.stored.items() if kept}
                case EraseConsumerGroup():
                    self.stored, self.stored_group = {}, None
                case EraseGroup():
                    self.cursors, self.remembered = {}, None
                    self.stored, self.stored_group = {}, None
                case Forget():
                    self.timer_ms, self.forgotten = None, True

    def restart(self) -> None:
        """Forget everything but what was stored."""
        assert not self.waiting
        self.groups = GroupDirectory(self.settings, self.topics)
        self.timer_ms = None
        if self.remembered is None and self.stored_group is None and not self.cursors:
            return
        stored = StoredGroup(
            self.remembered or "consumer", bool(self.cursors), self.stored_group, self.stored
        )
        self._carry_out(self.groups.restore(self.group_id, stored, self.now_ms))

    def consumer_beat(self, member_id, epoch, **how):
        """Send a ConsumerGroupHeartbeat and return its answer; a join says all it has to."""
        joining = {"rebalance_timeout_ms": REBALANCE_MS, "owned": frozenset()}
        if epoch == 0 and "pattern" not in how:
            joining["topics"] = frozenset({"t"})
        return self.send(
            ConsumerHeartbeat(
                token=self.token(),
                version=1,
                member_id=member_id,
                new_member_id=f"m{next(self._ids)}",
                epoch=epoch,
                client_id="client",
                client_host="/127.0.0.1",
                **{**(joining if epoch == 0 else {}), **how},
            )
        )

    # --- requests, with default fields ------------------------------------------------------

    def token(self) -> int:
        """Return a new token."""
        return next(self._tokens)

    def join(
        self,
        member_id="",
        *,
        instance_id=None,
        version=9,
        protocols=RANGE,
        protocol_type="consumer",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
    ) -> int:
        """Send a join request and return its token."""
        token = self.token()
        self.send(
            Join(
                token=token,
                version=version,
                member_id=member_id,
                new_member_id=f"m{next(self._ids)}",
                instance_id=instance_id,
                client_id="client",
                client_host="/127.0.0.1",
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                protocol_type=protocol_type,
                protocols=tuple(protocols),
            )
        )
        return token

    def enter(self, **how) -> tuple[str, int]:
        """Join without, then with a member id; return the id and the token of the second join."""
        first = self.join(**how)
        member_id = self.answers[first].member_id
        return member_id, self.join(member_id, **how)

    def sync(self, member_id, generation, assignments=None, **how):
        """Send a sync request and return its token."""
        token = self.token()
        self.send(
            Sync(
                token=token,
                member_id=member_id,
                generation=generation,
                assignments=tuple((assignments or {}).items()),
                **how,
            )
        )
        return token

    def beat(self, member_id, generation, instance_id=None):
        """Send a heartbeat and return its error code."""
        event = Heartbeat(
            token=self.token(),
            member_id=member_id,
            generation=generation,
            instance_id=instance_id,
        )
        return self.send(event).code

    def leave(self, *leavers) -> list:
        """Send a leave request and return the error code of each member."""
        answer = self.send(Leave(self.token(), tuple(Leaver(*each) for each in leavers)))
        return [each.code for each in answer.members]

    def commit(self, member_id="", generation=-1, *, version=8, metadata="", **how):
        """Commit offset 5 of t-0 and return its error code."""
        event = CommitOffsets(
            token=self.token(),
            version=version,
            member_id=member_id,
            generation=generation,
            offsets=(PartitionOffset(TopicPartition("t", 0), 5, -1, metadata),),
            **how,
        )
        return self.send(event).codes[0][1]

    def delete_offsets(self, *partitions):
        """Delete offsets and return the answer."""
        return self.send(DeleteOffsets(self.token(), partitions))

    def delete(self):
        """Delete the group and return its error code."""
        return self.send(DeleteGroup(self.token())).code

    def stable(self, *hows) -> tuple[list[str], int]:
        """Add members one by one with these join options; the first becomes the leader."""
        consumers = []
        for how in hows:
            consumers.append(Consumer(self, **how))
            settle(self, consumers)
        return [each.member_id for each in consumers], consumers[0].generation


class Consumer:
    """A client that follows the protocol: it joins, syncs, heartbeats and reacts to errors."""

    def __init__(self, service: GroupHarness, **how) -> None:
        """Send nothing yet; ``how`` holds the options of its joins."""
        self.service = service
        self.how = how
        self.member_id = ""
        self.generation = -1
        self.assignment = None
        self._token = None
        self._step = self._begin_join

    @property
    def is_active(self) -> bool:
        """Return whether it has a valid assignment."""
        return self._step == self._begin_heartbeat

    def step(self) -> bool:
        """React to the last answer, if any, and return whether that made progress."""
        if self._token is not None and self._token not in self.service.answers:
            return False
        was_active = self.is_active
        self._step()
        return not (was_active and self.is_active)

    def _answer(self):
        return self.service.answers[self._token]

    def _begin_join(self) -> None:
        self.assignment = None
        self._token = self.service.join(self.member_id, **self.how)
        self._step = self._end_join

    def _end_join(self) -> None:
        answer = self._answer()
        if answer.code == Code.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        if answer.code:
            self._go_back(answer.code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation
        leads = answer.leader == self.member_id and not answer.skip_assignment
        ids = [each.member_id for each in answer.members] if leads else []
        self._token = self.service.sync(
            self.member_id,
            self.generation,
            {each: each.encode() for each in ids},
            instance_id=self.how.get("instance_id"),
            protocol=answer.protocol,
            protocol_type=answer.protocol_type,
        )
        self._step = self._end_sync

    def _end_sync(self) -> None:
        answer = self._answer()
        if answer.code:
            self._go_back(answer.code)
            return
        self.assignment = answer.assignment
        self._step = self._begin_heartbeat

    def _begin_heartbeat(self) -> None:
        instance_id = self.how.get("instance_id")
        code = self.service.beat(self.member_id, self.generation, instance_id)
        if code:
            self._go_back(code)

    def _go_back(self, code: Code) -> None:
        assert code in {
            Code.MEMBER_ID_REQUIRED,
            Code.REBALANCE_IN_PROGRESS,
            Code.ILLEGAL_GENERATION,
            Code.UNKNOWN_MEMBER_ID,
        }, code
        if code == Code.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._step = self._begin_join


def settle(service: GroupHarness, consumers: list[Consumer], rounds: int = 400) -> None:
    """Step the consumers until all share one generation; advance time while all wait."""
    for _ in range(rounds):
        got_on = [consumer.step() for consumer in consumers]
        if any(got_on):
            continue
        ids = {each.member_id for each in consumers}
        if service.state == "Stable" and ids == set(service.members()):
            assert all(each.is_active for each in consumers)
            assert len({each.generation for each in consumers}) == 1
            return
        service.advance(500)
    raise AssertionError(f"not stable but {service.state}")
