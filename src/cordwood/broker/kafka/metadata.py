"""Who is there: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions.

One broker answers for everything, under the address the client reached it by, unless the
operator set ``advertised.kafka``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from cordwood.broker.kafka.caller import Caller
from cordwood.broker.topics import NODE_ID, TopicDesk
from cordwood.decide.codes import Code
from cordwood.errors import CordwoodError, PartitionOffline, UnknownTopic
from cordwood.log.partition import Partition
from cordwood.log.store import LiveTopic
from cordwood.model import is_topic_name
from cordwood.wire.kafka.messages.metadata import (
    OPERATIONS_UNASKED,
    ApiVersionsRequest,
    ApiVersionsResponse,
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    PartitionCursor,
)
from cordwood.wire.kafka.primitives import NO_ID
from cordwood.wire.kafka.schema import api_versions

UNKNOWN_TOPIC_ID: Final = 100
REPLICAS: Final = (NODE_ID,)
NO_NODE: Final = -1


class KafkaMetadata:
    """The handlers of four APIs."""

    def __init__(self, topics: TopicDesk, cluster_id: str) -> None:
        self._topics = topics
        self._cluster_id = cluster_id

    async def api_versions(
        self, _request: ApiVersionsRequest, _version: int, _caller: Caller
    ) -> ApiVersionsResponse:
        """What we serve."""
        return api_versions()

    async def metadata(
        self, request: MetadataRequest, version: int, caller: Caller
    ) -> MetadataResponse:
        """The broker and the topics asked for; a missing one is created where that is on."""
        if request.topics is None or (version == 0 and not request.topics):
            topics = [self._describe(topic) for _, topic in sorted(self._topics.all().items())]
        else:
            may_create = request.allow_auto_topic_creation
            topics = await asyncio.gather(
                *(self._find(wanted, may_create=may_create) for wanted in request.topics)
            )
        return MetadataResponse(
            brokers=[MetadataBroker(NODE_ID, caller.host, caller.port)],
            cluster_id=self._cluster_id,
            controller_id=NODE_ID,
            topics=topics,
        )

    async def _find(self, wanted: MetadataRequestTopic, *, may_create: bool) -> MetadataTopic:
        if wanted.name is None:
            return self._find_by_id(wanted.topic_id)
        try:
            if may_create:
                topic = await self._topics.ensure(wanted.name)
            else:
                topic = self._topics.get(wanted.name)
        except CordwoodError as error:
            return MetadataTopic(error.code, wanted.name)
        return self._describe(topic)

    def _find_by_id(self, topic_id: UUID) -> MetadataTopic:
        for topic in self._topics.all().values():
            if UUID(topic.id) == topic_id:
                return self._describe(topic)
        return MetadataTopic(UNKNOWN_TOPIC_ID, None, topic_id)

    def _describe(self, topic: LiveTopic) -> MetadataTopic:
        partitions = [_partition(number, slot) for number, slot in enumerate(topic.slots)]
        return MetadataTopic(Code.NONE, topic.name, UUID(topic.id), False, partitions)

    async def describe_cluster(
        self, request: DescribeClusterRequest, _version: int, caller: Caller
    ) -> DescribeClusterResponse:
        """The one broker, which is its own controller."""
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._cluster_id,
            controller_id=NODE_ID,
            brokers=[ClusterBroker(NODE_ID, caller.host, caller.port)],
            cluster_authorized_operations=OPERATIONS_UNASKED,
        )

    async def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, _version: int, _caller: Caller
    ) -> DescribeTopicPartitionsResponse:
        """A page of partitions, in order of topic name and number."""
        known = self._topics.all()
        names = sorted({topic.name for topic in request.topics}) or sorted(known)
        start = request.cursor or PartitionCursor("", 0)
        left = max(1, request.response_partition_limit)
        topics: list[DescribedTopic] = []
        for name in names:
            if name < start.topic_name:
                continue
            first = start.partition_index if name == start.topic_name else 0
            if name not in known:
                topics.append(_missing(name))
                continue
            if left == 0:
                return DescribeTopicPartitionsResponse(
                    topics=topics, next_cursor=PartitionCursor(name, first)
                )
            partitions = self._describe(known[name]).partitions[first : first + left]
            topics.append(_described(known[name], partitions))
            left -= len(partitions)
            if first + len(partitions) < known[name].partition_count:
                return DescribeTopicPartitionsResponse(
                    topics=topics, next_cursor=PartitionCursor(name, first + len(partitions))
                )
        return DescribeTopicPartitionsResponse(topics=topics)


def _partition(number: int, slot: Partition | PartitionOffline) -> MetadataPartition:
    if isinstance(slot, PartitionOffline):
        return MetadataPartition(
            error_code=Code.LEADER_NOT_AVAILABLE,
            partition=number,
            leader_id=NO_NODE,
            replica_nodes=REPLICAS,
            offline_replicas=REPLICAS,
        )
    return MetadataPartition(
        error_code=Code.NONE,
        partition=number,
        leader_id=NODE_ID,
        leader_epoch=slot.leader_epoch,
        replica_nodes=REPLICAS,
        isr_nodes=REPLICAS,
    )


def _missing(name: str) -> DescribedTopic:
    code = UnknownTopic.code if is_topic_name(name) else Code.INVALID_TOPIC_EXCEPTION
    return DescribedTopic(code, name, NO_ID)


def _described(topic: LiveTopic, partitions: Sequence[MetadataPartition]) -> DescribedTopic:
    return DescribedTopic(
        Code.NONE,
        topic.name,
        UUID(topic.id),
        partitions=[
            DescribedPartition(
                error_code=partition.error_code,
                partition=partition.partition,
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replica_nodes,
                isr_nodes=partition.isr_nodes,
                # Null is allowed by the schema, and Kafka's own tools fall over it.
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=partition.offline_replicas,
            )
            for partition in partitions
        ],
    )
