"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete. They are cursors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from cordwood.broker.kafka.coordinator import Token
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.decide.groups.messages import (
    CommitOffsets,
    CommitReply,
    DeleteOffsets,
    DeleteOffsetsReply,
)
from cordwood.decide.offsets import NO_LEADER_EPOCH, PartitionOffset
from cordwood.errors import UnknownTopicId
from cordwood.metadata.keys import ReaderPartition
from cordwood.metadata.reader_state import ReaderState
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages import commits as m
from cordwood.protocol.kafka.primitives import NO_ID

_BY_ID_VERSION: Final = 10  # OffsetCommit and OffsetFetch name topics by id from this version on
_BATCHED_FETCH: Final = 8  # OffsetFetch takes several groups from this version on
_NO_OFFSET: Final = -1
_UNKNOWN: Final = Code.UNKNOWN_TOPIC_OR_PARTITION
STEP_OFFSETS: Final = 500  # per event, because a coordinator handles an event in one go
T = TypeVar("T")

Unstable = Callable[[str, Iterable[TopicPartition]], Collection[TopicPartition]]


class KafkaCommits:
    """The handlers of three APIs."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        state: ReaderState,
        topics: TopicService,
        unstable: Unstable,
    ) -> None:
        """``unstable`` returns which of a group's offsets depend on an open transaction."""
        self._coordinator = coordinator
        self._state = state
        self._topics = topics
        self._unstable = unstable

    async def offset_commit(
        self, request: m.OffsetCommitRequest, version: int, _session: Session
    ) -> m.OffsetCommitResponse:
        """Move the group's cursors on existing partitions; durable before the reply."""
        turns = RequestSlices()
        if version >= _BY_ID_VERSION:
            names = [self._name(topic.topic_id) async for topic in turns.of(request.topics)]
            topics = [each._replace(name=n) for each, n in zip(request.topics, names, strict=True)]
            request = request._replace(topics=topics)
        named = await offsets_of(request.topics, turns)
        offsets = [
            each async for each in turns.of(named) if has_partition(self._topics, each.partition)
        ]
        codes: dict[TopicPartition, Code] = {}
        if offsets or not request.topics:
            for some in in_steps(offsets):
                answer: CommitReply = await self._coordinator.ask(
                    request.group_id, partial(_commit, request, version, some)
                )
                codes |= answer.codes
        replies = await committed(request.topics, codes, turns)
        if version >= _BY_ID_VERSION:
            replies = [
                _by_id(topic.topic_id, reply)
                for topic, reply in zip(request.topics, replies, strict=True)
            ]
        return m.OffsetCommitResponse(topics=replies)

    def _name(self, topic_id: UUID) -> str:
        """Return the name of the topic with this id; empty if there is none."""
        try:
            return self._topics.get_by_id(topic_id).name
        except UnknownTopicId:
            return ""

    # --- fetch ------------------------------------------------------------------------------

    async def offset_fetch(
        self, request: m.OffsetFetchRequest, version: int, _session: Session
    ) -> m.OffsetFetchResponse:
        """Return the committed offsets of groups; -1 where nothing was committed."""
        turns = RequestSlices()
        stable = request.require_stable
        if version < _BATCHED_FETCH:
            topics = await self._asked(request.group_id, request.topics, turns)
            return m.OffsetFetchResponse(
                topics=await self._fetch(request.group_id, topics, turns, stable=stable)
            )
        asked = {group.group_id: group for group in request.groups}  # the last one counts
        return m.OffsetFetchResponse(
            groups=[
                await self._fetch_group(group, version, turns, stable=stable)
                async for group in turns.of(asked.values())
            ]
        )

    async def _fetch_group(
        self, group: m.OffsetFetchGroup, version: int, turns: RequestSlices, *, stable: bool
    ) -> m.FetchedOffsetGroup:
        name, by_id = group.group_id, version >= _BY_ID_VERSION
        self._coordinator.adopt(name)
        code = self._coordinator.groups.check_fetch(name, group.member_id, group.member_epoch)
        if code:
            return m.FetchedOffsetGroup(name, (), code)
        topics = group.topics
        if by_id and topics is not None:
            topics = [
                each._replace(name=self._name(each.topic_id)) async for each in turns.of(topics)
            ]
        asked = await self._asked(name, topics, turns)
        fetched = await self._fetch(name, asked, turns, stable=stable)
        replies = [m.FetchedGroupTopic(each.name, NO_ID, each.partitions) for each in fetched]
        if by_id:
            replies = [
                self._fetched_by_id(topic, reply)
                for topic, reply in zip(asked, replies, strict=True)
            ]
        return m.FetchedOffsetGroup(name, replies)

    def _fetched_by_id(
        self, topic: m.OffsetFetchTopic | m.OffsetFetchGroupTopic, reply: m.FetchedGroupTopic
    ) -> m.FetchedGroupTopic:
        """Return the reply with the topic's id; of a topic that does not exist, only errors."""
        if isinstance(topic, m.OffsetFetchTopic):  # everything was asked for
            live = self._topics.all().get(topic.name)
            return reply._replace(topic_id=NO_ID if live is None else UUID(live.id))
        if not topic.name:
            code = Code.UNKNOWN_TOPIC_ID
            missing = [m.FetchedOffset(n, _NO_OFFSET, error_code=code) for n in topic.partitions]
            return reply._replace(topic_id=topic.topic_id, partitions=missing)
        return reply._replace(topic_id=topic.topic_id)

    async def _fetch(
        self,
        group_id: str,
        topics: Sequence[m.OffsetFetchTopic | m.OffsetFetchGroupTopic],
        turns: RequestSlices,
        *,
        stable: bool,
    ) -> list[m.FetchedOffsetTopic]:
        replies = []
        async for topic in turns.of(topics):
            fetched: list[m.FetchedOffset] = []
            async for numbers in turns.steps(topic.partitions):
                asked = [TopicPartition(topic.name, number) for number in numbers]
                unstable = self._unstable(group_id, asked) if stable else ()
                fetched += [self._fetch_one(group_id, unstable, each) for each in asked]
            replies.append(m.FetchedOffsetTopic(topic.name, fetched))
        return replies

    async def _asked(
        self,
        group_id: str,
        topics: Sequence[m.OffsetFetchTopic | m.OffsetFetchGroupTopic] | None,
        turns: RequestSlices,
    ) -> Sequence[m.OffsetFetchTopic | m.OffsetFetchGroupTopic]:
        """Return the requested partitions; for None, all where the group has cursors."""
        if topics is not None:
            return topics
        own: dict[str, list[int]] = {}
        async for _, topic, number in turns.of(self._state.cursors_of(group_id)):
            own.setdefault(topic, []).append(number)
        names = await turns.sort(list(own))
        return [m.OffsetFetchTopic(name, sorted(own[name])) async for name in turns.of(names)]

    def _fetch_one(
        self, group_id: str, unstable: Collection[TopicPartition], partition: TopicPartition
    ) -> m.FetchedOffset:
        number = partition.partition
        if partition in unstable:
            return m.FetchedOffset(number, _NO_OFFSET, error_code=Code.UNSTABLE_OFFSET_COMMIT)
        cursor = self._state.cursor(ReaderPartition(group_id, *partition))
        if cursor is None:
            return m.FetchedOffset(number, _NO_OFFSET, NO_LEADER_EPOCH, "")
        return m.FetchedOffset(number, cursor.offset, cursor.leader_epoch, cursor.metadata)

    # --- delete -----------------------------------------------------------------------------

    async def offset_delete(
        self, request: m.OffsetDeleteRequest, _version: int, _session: Session
    ) -> m.OffsetDeleteResponse:
        """Delete cursors on topics that no member of the group subscribes to."""
        turns = RequestSlices()
        known = [
            tp
            async for topic in turns.of(request.topics)
            async for each in turns.of(topic.partitions)
            if has_partition(self._topics, tp := TopicPartition(topic.name, each.partition))
        ]
        codes: dict[TopicPartition, Code] = {}
        for some in in_steps(known):
            answer: DeleteOffsetsReply = await self._coordinator.ask(
                request.group_id, partial(_delete, some)
            )
            if answer.code:
                return m.OffsetDeleteResponse(error_code=answer.code)
            codes |= answer.codes

        def deleted(topic: str, part: m.OffsetDeletePartition) -> m.OffsetDeletedPartition:
            tp = TopicPartition(topic, part.partition)
            return m.OffsetDeletedPartition(part.partition, codes.get(tp, _UNKNOWN))

        topics = await turns.map_topics(request.topics, m.OffsetDeletedTopic, deleted)
        return m.OffsetDeleteResponse(topics=topics)


def _commit(
    request: m.OffsetCommitRequest, version: int, offsets: Sequence[PartitionOffset], token: Token
) -> CommitOffsets:
    return CommitOffsets(
        token=token,
        version=version,
        offsets=tuple(offsets),
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
    )


def _delete(partitions: Sequence[TopicPartition], token: Token) -> DeleteOffsets:
    return DeleteOffsets(token, tuple(partitions))


def in_steps(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in chunks of one event each; one empty chunk if there are none."""
    for start in range(0, len(items) or 1, STEP_OFFSETS):
        yield items[start : start + STEP_OFFSETS]


def has_partition(topics: TopicService, partition: TopicPartition) -> bool:
    """Return whether the partition exists, online or not."""
    topic = topics.all().get(partition.topic)
    return topic is not None and 0 <= partition.partition < topic.partition_count


async def offsets_of(
    topics: Sequence[m.OffsetCommitTopic | m.TxnOffsetTopic], turns: RequestSlices
) -> list[PartitionOffset]:
    """Return the offsets that a commit names, transactional or not."""
    return [
        PartitionOffset(
            TopicPartition(topic.name, each.partition),
            each.offset,
            each.leader_epoch,
            each.metadata or "",
        )
        async for topic in turns.of(topics)
        async for each in turns.of(_partitions(topic))
    ]


async def committed(
    topics: Sequence[m.OffsetCommitTopic | m.TxnOffsetTopic],
    codes: Mapping[TopicPartition, Code],
    turns: RequestSlices,
) -> list[m.CommittedTopic]:
    """Return the reply to a commit; a partition without a code does not exist."""

    def result(
        topic: str, part: m.OffsetCommitPartition | m.TxnOffsetPartition
    ) -> m.CommittedPartition:
        tp = TopicPartition(topic, part.partition)
        return m.CommittedPartition(part.partition, codes.get(tp, _UNKNOWN))

    def reply(topic: str, partitions: list[m.CommittedPartition]) -> m.CommittedTopic:
        return m.CommittedTopic(topic, partitions=partitions)

    return await turns.map_topics(topics, reply, result)


def _by_id(topic_id: UUID, reply: m.CommittedTopic) -> m.CommittedTopic:
    """Return the reply with the topic's id; of a topic that does not exist, with its error."""
    partitions = reply.partitions
    if not reply.name:
        partitions = [each._replace(error_code=Code.UNKNOWN_TOPIC_ID) for each in partitions]
    return reply._replace(topic_id=topic_id, partitions=partitions)


def _partitions(
    topic: m.OffsetCommitTopic | m.TxnOffsetTopic,
) -> Sequence[m.OffsetCommitPartition | m.TxnOffsetPartition]:
    return topic.partitions
