"""Online migration: a group with members changes its type, and its members go on. Pure.

A classic group becomes a consumer group when the first member that speaks the new protocol joins
it; the classic members stay, with the partitions that they have. It becomes a classic group again
when the last such member is gone; the remaining members are rebalanced. The setting
``group.consumer.migration.policy`` allows either, both or none. A group without members always
takes the type of the next member that joins.
"""

from __future__ import annotations

from cordwood.decide.groups.consumer.members import ClassicProtocol, ConsumerMember
from cordwood.decide.groups.consumer.membership import ConsumerMembership
from cordwood.decide.groups.consumer.messages import Assignment, TopicIdPartition, Topics
from cordwood.decide.groups.consumer.reconciliation import CurrentAssignment, MemberState
from cordwood.decide.groups.members import Member
from cordwood.decide.groups.membership import Membership
from cordwood.decide.groups.messages import CONSUMER, GroupSettings, GroupState, MigrationPolicy
from cordwood.decide.groups.subscription import parse_assignment, parse_whole_subscription
from cordwood.model import TopicPartition

_UPGRADES = {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE}
_DOWNGRADES = {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE}


def upgraded(
    classic: Membership, settings: GroupSettings, topics: Topics, now_ms: int
) -> ConsumerMembership | None:
    """The consumer group with the classic group's members; ``None`` if it has to stay classic."""
    group = ConsumerMembership(settings, topics, now_ms, classic.generation)
    if classic.state is GroupState.EMPTY:
        return group
    if (
        settings.migration_policy not in _UPGRADES
        or classic.protocol_type != CONSUMER
        or len(classic.roster) > settings.consumer_members_max
    ):
        return None
    taken: set[TopicIdPartition] = set()
    for member in classic.roster:
        subscription = parse_whole_subscription(member.protocols[0][1])
        partitions = parse_assignment(member.assignment)
        if subscription is None or partitions is None:
            return None  # not the bytes that consumers send
        assigned = _by_id(partitions, topics) - taken
        taken |= assigned
        generation = classic.generation
        group.adopt(
            ConsumerMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topics=subscription.topics,
                classic=ClassicProtocol(member.session_timeout_ms, member.protocols),
                target=assigned,
                current=CurrentAssignment(generation, generation, MemberState.STABLE, assigned),
            ),
            now_ms,
        )
    classic.abandon()
    return group


def _by_id(partitions: frozenset[TopicPartition], topics: Topics) -> Assignment:
    found = {each.topic: topics.find(each.topic) for each in partitions}
    return frozenset(
        TopicIdPartition(topic.topic_id, each.partition)
        for each in partitions
        if (topic := found[each.topic]) is not None
    )


def downgraded(
    group: ConsumerMembership, settings: GroupSettings, now_ms: int
) -> Membership | None:
    """The classic group with the members of one that has only classic ones left, else ``None``."""
    if (
        settings.migration_policy not in _DOWNGRADES
        or not group.roster.is_all_classic
        or len(group.roster) > settings.members_max
    ):
        return None
    classic = Membership(settings, CONSUMER, now_ms)
    members = [_classic_member(group, member, now_ms) for member in group.roster]
    classic.adopt(members, group.assignment_epoch, now_ms)  # where they are, so they may commit
    return classic


def _classic_member(group: ConsumerMembership, member: ConsumerMember, now_ms: int) -> Member:
    assert member.classic is not None
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=member.classic.protocols,
        deadline_ms=now_ms + member.classic.session_timeout_ms,
        is_new=False,
        assignment=group.classic_assignment(member),
    )
