"""Requests of KIP-848 consumer groups: the heartbeat, and describing groups.

Requests become events of ``decide.groups``, and its answers become replies. Topic ids are UUIDs on
the wire and text in the groups. Regular expressions are matched here, before the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from cordwood.broker.kafka.authorized_operations import ON_GROUP, authorized
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.broker.kafka.groups import missing_group
from cordwood.broker.kafka.topic_patterns import TopicPatterns
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices, once_each
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.decide.groups.consumer.messages import (
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerMemberDescription,
    TopicIdPartition,
)
from cordwood.decide.groups.messages import GroupState, GroupType
from cordwood.decide.re2 import PatternError
from cordwood.errors import UnknownTopicId
from cordwood.protocol.kafka.messages import consumer_groups as m

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class KafkaConsumerGroups:
    """The handlers of two APIs."""

    def __init__(self, coordinator: GroupCoordinator, topics: TopicService) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._patterns = TopicPatterns(topics)

    async def consumer_group_heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, version: int, session: Session
    ) -> m.ConsumerGroupHeartbeatResponse:
        """Join, go on or leave; answered at once."""
        try:
            matched = await self._match(request)
        except PatternError as error:
            return m.ConsumerGroupHeartbeatResponse(
                error_code=Code.INVALID_REGULAR_EXPRESSION, error_message=str(error)
            )
        names, owned = request.subscribed_topic_names, request.topic_partitions
        answer: ConsumerHeartbeatReply = await self._coordinator.ask(
            request.group_id,
            lambda token: ConsumerHeartbeat(
                token=token,
                version=version,
                member_id=request.member_id,
                new_member_id=str(uuid4()),
                epoch=request.member_epoch,
                client_id=session.client_id or "",
                client_host=f"/{session.peer.rpartition(':')[0]}",  # as Kafka writes it
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topics=None if names is None else frozenset(names),
                pattern=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                owned=None if owned is None else _assignment(owned),
                matched=matched,
            ),
        )
        assignment = None
        if answer.assignment is not None:
            assignment = m.HeartbeatAssignment(
                [
                    m.TopicIdPartitions(topic_id, partitions)
                    for topic_id, partitions in _by_topic(answer.assignment)
                ]
            )
        return m.ConsumerGroupHeartbeatResponse(
            error_code=answer.code,
            error_message=answer.text,
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.interval_ms,
            assignment=assignment,
        )

    async def _match(self, request: m.ConsumerGroupHeartbeatRequest) -> dict[str, frozenset[str]]:
        """Return what the patterns of this request and of its group match.

        Raises ``PatternError`` for this request's. Another member's pattern that became too costly
        keeps its earlier topics.
        """
        matched = {}
        if request.subscribed_topic_regex:
            own = request.subscribed_topic_regex
            matched[own] = await self._patterns.matches(own)
        for pattern in self._coordinator.groups.patterns(request.group_id):
            with suppress(PatternError):
                matched[pattern] = await self._patterns.matches(pattern)
        return matched

    async def consumer_group_describe(
        self, request: m.ConsumerGroupDescribeRequest, _version: int, _session: Session
    ) -> m.ConsumerGroupDescribeResponse:
        """Describe consumer groups with what their members have and should have."""
        operations = authorized(ON_GROUP, is_asked=request.include_authorized_operations)
        turns = RequestSlices()
        return m.ConsumerGroupDescribeResponse(
            groups=[
                await self._describe(group_id, operations, turns)
                async for group_id in turns.of(once_each(request.group_ids))
            ]
        )

    async def _describe(
        self, group_id: str, operations: int, turns: RequestSlices
    ) -> m.DescribedConsumerGroup:
        self._coordinator.adopt(group_id)
        groups = self._coordinator.groups
        group = groups.describe_consumer(group_id)
        if group is None:
            text = missing_group(group_id, groups.describe(group_id), GroupType.CONSUMER)
            dead = GroupState.DEAD.value
            return m.DescribedConsumerGroup(Code.GROUP_ID_NOT_FOUND, text, group_id, dead)
        return m.DescribedConsumerGroup(
            Code.NONE,
            None,
            group_id,
            group.state,
            group.epoch,
            group.assignment_epoch,
            group.assignor,
            await turns.map(self._described_member, group.members),
            operations,
        )

    def _described_member(self, member: ConsumerMemberDescription) -> m.DescribedConsumerMember:
        return m.DescribedConsumerMember(
            member.member_id,
            member.instance_id,
            member.rack_id,
            member.epoch,
            member.client_id,
            member.client_host,
            sorted(member.topics),
            member.pattern,
            self._described_assignment(member.assigned),
            self._described_assignment(member.target),
            _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
        )

    def _described_assignment(self, assignment: Assignment) -> m.DescribedAssignment:
        """Return the partitions with topic names; those of deleted topics are left out."""
        described = []
        for topic_id, partitions in _by_topic(assignment):
            try:
                name = self._topics.get_by_id(topic_id).name
            except UnknownTopicId:
                continue
            described.append(m.DescribedTopicPartitions(topic_id, name, partitions))
        return m.DescribedAssignment(described)


def _assignment(topics: Sequence[m.TopicIdPartitions]) -> Assignment:
    return frozenset(
        TopicIdPartition(str(topic.topic_id), number)
        for topic in topics
        for number in topic.partitions
    )


def _by_topic(assignment: Assignment) -> list[tuple[UUID, list[int]]]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, number in sorted(assignment):
        by_topic.setdefault(topic_id, []).append(number)
    return [(UUID(topic_id), numbers) for topic_id, numbers in by_topic.items()]
