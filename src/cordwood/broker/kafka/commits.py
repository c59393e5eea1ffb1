"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete. They are the catalog's cursors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Final

from cordwood.broker.kafka.caller import Caller
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.broker.topics import TopicDesk
from cordwood.decide.codes import Code
from cordwood.decide.groups import Commit, CommitReply, DeleteOffsets, DeleteOffsetsReply
from cordwood.decide.offsets import NO_LEADER_EPOCH, PartitionOffset
from cordwood.meta.catalog import Catalog
from cordwood.meta.keys import ReaderPartition
from cordwood.model import TopicPartition
from cordwood.wire.kafka.messages.commits import (
    CommittedPartition,
    CommittedTopic,
    FetchedOffset,
    FetchedOffsetGroup,
    FetchedOffsetTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetDeletedPartition,
    OffsetDeletedTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    TxnOffsetTopic,
)

_BATCHED_FETCH: Final = 8  # from this OffsetFetch on there are several groups
_NO_OFFSET: Final = -1

Unstable = Callable[[str, Iterable[TopicPartition]], Collection[TopicPartition]]


class KafkaCommits:
    """The handlers of three APIs."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalog: Catalog,
        topics: TopicDesk,
        unstable: Unstable,
    ) -> None:
        """``unstable`` tells which of a group's offsets hang on an open transaction."""
        self._coordinator = coordinator
        self._catalog = catalog
        self._topics = topics
        self._unstable = unstable

    async def offset_commit(
        self, request: OffsetCommitRequest, version: int, _caller: Caller
    ) -> OffsetCommitResponse:
        """Move the group's cursors on partitions that exist; durable before the reply."""
        offsets = [each for each in offsets_of(request.topics) if self._topics_have(each.partition)]
        answer = CommitReply(())
        if offsets or not request.topics:
            answer = await self._coordinator.ask(
                request.group_id,
                lambda token: Commit(
                    token=token,
                    version=version,
                    offsets=tuple(offsets),
                    member_id=request.member_id,
                    generation=request.generation_id,
                    instance_id=request.group_instance_id,
                ),
            )
        return OffsetCommitResponse(topics=committed(request.topics, dict(answer.codes)))

    def _topics_have(self, partition: TopicPartition) -> bool:
        return has_partition(self._topics, partition)

    # --- fetch ------------------------------------------------------------------------------

    async def offset_fetch(
        self, request: OffsetFetchRequest, version: int, _caller: Caller
    ) -> OffsetFetchResponse:
        """Where groups are; -1 where nothing was committed."""
        if version < _BATCHED_FETCH:
            topics = self._fetch(request.group_id, request.topics, request.require_stable)
            return OffsetFetchResponse(topics=topics)
        return OffsetFetchResponse(
            groups=[
                FetchedOffsetGroup(
                    group.group_id,
                    self._fetch(group.group_id, group.topics, request.require_stable),
                )
                for group in request.groups
            ]
        )

    def _fetch(
        self, group_id: str, topics: Sequence[OffsetFetchTopic] | None, require_stable: bool
    ) -> list[FetchedOffsetTopic]:
        if topics is None:
            topics = self._all_topics(group_id)
        asked = [
            TopicPartition(topic.name, number) for topic in topics for number in topic.partitions
        ]
        unstable = self._unstable(group_id, asked) if require_stable else ()
        return [
            FetchedOffsetTopic(
                topic.name,
                [
                    self._fetch_one(group_id, TopicPartition(topic.name, number), unstable)
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]

    def _all_topics(self, group_id: str) -> list[OffsetFetchTopic]:
        mine = sorted(at[1:] for at in list(self._catalog.cursors()) if at.reader == group_id)
        return [
            OffsetFetchTopic(name, [number for _, number in found])
            for name, found in groupby(mine, key=lambda at: at[0])
        ]

    def _fetch_one(
        self, group_id: str, partition: TopicPartition, unstable: Collection[TopicPartition]
    ) -> FetchedOffset:
        number = partition.partition
        if partition in unstable:
            return FetchedOffset(number, _NO_OFFSET, error_code=Code.UNSTABLE_OFFSET_COMMIT)
        cursor = self._catalog.cursor(ReaderPartition(group_id, *partition))
        if cursor is None:
            return FetchedOffset(number, _NO_OFFSET, NO_LEADER_EPOCH, "")
        return FetchedOffset(number, cursor.offset, cursor.leader_epoch, cursor.metadata)

    # --- delete -----------------------------------------------------------------------------

    async def offset_delete(
        self, request: OffsetDeleteRequest, _version: int, _caller: Caller
    ) -> OffsetDeleteResponse:
        """Forget cursors on topics nobody of the group is subscribed to."""
        asked = [
            TopicPartition(topic.name, each.partition)
            for topic in request.topics
            for each in topic.partitions
        ]
        known = tuple(partition for partition in asked if self._topics_have(partition))
        answer: DeleteOffsetsReply = await self._coordinator.ask(
            request.group_id, lambda token: DeleteOffsets(token, known)
        )
        if answer.code:
            return OffsetDeleteResponse(error_code=answer.code)
        codes = dict(answer.codes)
        topics = [
            OffsetDeletedTopic(
                topic.name,
                [
                    OffsetDeletedPartition(
                        each.partition,
                        codes.get(
                            TopicPartition(topic.name, each.partition),
                            Code.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetDeleteResponse(topics=topics)


def has_partition(topics: TopicDesk, partition: TopicPartition) -> bool:
    """Whether there is such a partition, online or not."""
    topic = topics.all().get(partition.topic)
    return topic is not None and 0 <= partition.partition < topic.partition_count


def offsets_of(
    topics: Sequence[OffsetCommitTopic] | Sequence[TxnOffsetTopic],
) -> list[PartitionOffset]:
    """The offsets a commit names, transactional or not."""
    return [
        PartitionOffset(
            TopicPartition(topic.name, each.partition),
            each.offset,
            each.leader_epoch,
            each.metadata or "",
        )
        for topic in topics
        for each in topic.partitions
    ]


def committed(
    topics: Sequence[OffsetCommitTopic] | Sequence[TxnOffsetTopic],
    codes: dict[TopicPartition, Code],
) -> list[CommittedTopic]:
    """The reply to a commit; a partition without a code does not exist."""
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    return [
        CommittedTopic(
            topic.name,
            [
                CommittedPartition(
                    each.partition, codes.get(TopicPartition(topic.name, each.partition), unknown)
                )
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]
