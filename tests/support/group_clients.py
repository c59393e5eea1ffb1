"""Clients of both group protocols, in memory, that keep to the protocol of a ``GroupHarness``."""

from __future__ import annotations

import struct

from cordwood.codes import Code
from cordwood.decide.groups.messages import SyncReply
from cordwood.decide.groups.subscription import (
    encode_assignment,
    parse_assignment,
    parse_whole_subscription,
)
from cordwood.model import TopicPartition
from support.coordination import subscription


class NewConsumer:
    """A client that keeps to KIP-848: it revokes when told, acknowledges, and rejoins if fenced."""

    def __init__(self, service, member_id, **how) -> None:
        """Start outside the group; ``how`` has its subscription."""
        self.service, self.member_id, self.how = service, member_id, how
        self.epoch, self.owned = 0, frozenset()

    def beat(self):
        """Send one heartbeat and do what its reply says."""
        how = {**self.how, **self._matched()} if self.epoch == 0 else self._matched()
        answer = self.service.consumer_beat(self.member_id, self.epoch, owned=self.owned, **how)
        if answer.code in {Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID}:
            self.epoch, self.owned = 0, frozenset()
        elif not answer.code:
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.owned = answer.assignment
        return answer

    def _matched(self):
        pattern = self.how.get("pattern")
        matching = self.service.topics.matching
        return {"matched": {pattern: matching(pattern)}} if pattern else {}

    def leave(self, epoch=-1) -> None:
        """Leave the group, or pause as a static member."""
        self.service.consumer_beat(self.member_id, epoch, instance_id=self.how.get("instance_id"))
        self.epoch, self.owned = 0, frozenset()


class OldConsumer:
    """A cooperative client of the classic protocol, as it behaves in a group of either type."""

    def __init__(self, service, *topics) -> None:
        """Start outside the group."""
        self.service, self.topics = service, topics
        self.member_id, self.generation, self.owned = "", -1, frozenset()
        self.token = None
        self.is_joining = True
        self.leads = ()

    def step(self) -> None:
        """Send the next request, or do what a reply says."""
        if self.token is not None:
            answer = self.service.answers.get(self.token)
            if answer is None:
                return
            self.token = None
            self._handle(answer)
        elif self.is_joining:
            metadata = whole_subscription(self.topics, self.owned)
            self.token = self.service.join(
                self.member_id, protocols=(("cooperative-sticky", metadata),)
            )
        else:
            self._after(self.service.beat(self.member_id, self.generation))

    def _handle(self, answer) -> None:
        if isinstance(answer, SyncReply):
            if not answer.code:
                self._take(parse_assignment(answer.assignment))
            self._after(answer.code)
        elif answer.code is Code.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.code:
            self._after(answer.code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation
            leads = answer.leader == answer.member_id
            shares = self._lead(answer.members) if leads else {}
            self.token = self.service.sync(self.member_id, self.generation, shares)
            self.is_joining = False

    def _take(self, partitions) -> None:
        revokes = bool(self.owned - partitions)
        self.owned = partitions
        self.is_joining = revokes  # cooperative members join again after they revoked

    def _lead(self, members):
        """Assign as a cooperative leader: owned partitions move only after they are revoked."""
        told = {each.member_id: parse_whole_subscription(each.metadata) for each in members}
        wanted = sorted({topic for each in told.values() for topic in each.topics})
        count = {name: self.service.topics.find(name) for name in wanted}
        all_of = [
            TopicPartition(name, number)
            for name, topic in count.items()
            if topic
            for number in range(topic.partitions)
        ]
        owner = {tp: member for member, each in told.items() for tp in each.owned}
        shares = {member: [] for member in told}
        for index, tp in enumerate(all_of):
            member = sorted(told)[index % len(told)]
            if owner.get(tp, member) == member:
                shares[member].append(tp)
        return {member: encode_assignment(partitions, 1) for member, partitions in shares.items()}

    def _after(self, code) -> None:
        if code in {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION}:
            self.owned = frozenset()
            self.generation = -1
        if code is Code.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if code:
            self.is_joining = True


def whole_subscription(topics, owned) -> bytes:
    """Return a subscription of version 1, with what its member owns."""
    partitions = encode_assignment(owned, 0)[2:-4]
    return struct.pack(">h", 1) + subscription(*topics)[2:] + partitions
