"""The assignors of the broker: which member gets which partition. Pure.

``uniform`` gives every member the same number of partitions, give or take one where subscriptions
allow it, and moves as few as possible. ``range`` gives each member a contiguous range of every
topic, so that equal partitions of several topics meet at one member; it does not look at what
members had before. Rack ids are not considered: every partition has one copy, at this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from cordwood.decide.groups.consumer.messages import Assignment, TopicIdPartition


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topic_ids: frozenset[str]
    previous: Assignment  # its target so far
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]  # by member id
PartitionCounts = Mapping[str, int]  # by topic id
Assignor = Callable[[Subscribers, PartitionCounts], dict[str, Assignment]]


def assign_range(members: Subscribers, topics: PartitionCounts) -> dict[str, Assignment]:
    """Give each member a contiguous range of every topic it subscribes to."""
    given: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    in_order = sorted(members, key=lambda each: (members[each].instance_id or each, each))
    for topic_id, count in topics.items():
        subscribers = [each for each in in_order if topic_id in members[each].topic_ids]
        start = 0
        for index, member_id in enumerate(subscribers):
            size = count // len(subscribers) + (index < count % len(subscribers))
            given[member_id] |= {TopicIdPartition(topic_id, start + each) for each in range(size)}
            start += size
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def assign_uniform(members: Subscribers, topics: PartitionCounts) -> dict[str, Assignment]:
    """Give each member as many partitions as the others, and keep what it had where possible."""
    if not members:
        return {}
    kept = _keep(members, topics)
    if len({member.topic_ids for member in members.values()}) == 1:
        _fill_to_quota(kept, _unassigned(members, topics, kept))
    else:
        by_topic = {
            topic_id: [each for each in sorted(members) if topic_id in members[each].topic_ids]
            for topic_id in topics
        }
        for partition in _unassigned(members, topics, kept):
            kept[min(by_topic[partition.topic_id], key=lambda each: len(kept[each]))].add(partition)
        while any(_level(topic_id, each, kept) for topic_id, each in by_topic.items()):
            pass  # each move makes the loads more equal, so this ends
    return {member_id: frozenset(partitions) for member_id, partitions in kept.items()}


def _keep(members: Subscribers, topics: PartitionCounts) -> dict[str, set[TopicIdPartition]]:
    """What each member had, as far as it exists, is still subscribed to and has no other owner."""
    taken: set[TopicIdPartition] = set()
    kept: dict[str, set[TopicIdPartition]] = {}
    for member_id in sorted(members):
        topic_ids, previous, _ = members[member_id]
        kept[member_id] = {
            each
            for each in previous
            if each.topic_id in topic_ids
            and each.partition < topics.get(each.topic_id, 0)
            and each not in taken
        }
        taken |= kept[member_id]
    return kept


def _unassigned(
    members: Subscribers, topics: PartitionCounts, kept: Mapping[str, set[TopicIdPartition]]
) -> list[TopicIdPartition]:
    """The partitions that somebody subscribes to and nobody has, in order."""
    wanted = frozenset[str]().union(*(member.topic_ids for member in members.values()))
    taken = {partition for partitions in kept.values() for partition in partitions}
    return [
        partition
        for topic_id in sorted(topics)
        if topic_id in wanted
        for number in range(topics[topic_id])
        if (partition := TopicIdPartition(topic_id, number)) not in taken
    ]


def _fill_to_quota(
    kept: dict[str, set[TopicIdPartition]], unassigned: Sequence[TopicIdPartition]
) -> None:
    """Level members with equal subscriptions: those who have most keep the larger shares."""
    free = list(unassigned)
    count = len(free) + sum(map(len, kept.values()))
    least, larger = divmod(count, len(kept))
    short: list[tuple[str, int]] = []
    for index, member_id in enumerate(sorted(kept, key=lambda each: (-len(kept[each]), each))):
        quota = least + (index < larger)
        surplus = sorted(kept[member_id])[quota:]
        kept[member_id].difference_update(surplus)
        free += surplus
        short.append((member_id, quota - len(kept[member_id])))
    for member_id, missing in short:
        kept[member_id].update(free[:missing])
        del free[:missing]
    assert not free


def _level(
    topic_id: str, subscribers: Sequence[str], kept: Mapping[str, set[TopicIdPartition]]
) -> bool:
    """Move partitions of one topic from the busiest to the least busy; whether any moved."""
    own = {
        member_id: sorted(each for each in kept[member_id] if each.topic_id == topic_id)
        for member_id in subscribers
    }
    moved = False
    while givers := [member_id for member_id in subscribers if own[member_id]]:
        giver = max(givers, key=lambda each: len(kept[each]))
        taker = min(subscribers, key=lambda each: len(kept[each]))
        if len(kept[giver]) - len(kept[taker]) <= 1:
            break
        partition = own[giver].pop()
        own[taker].append(partition)
        kept[giver].remove(partition)
        kept[taker].add(partition)
        moved = True
    return moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
