"""Cluster metadata: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions.

One broker answers for everything, under the address by which the client reached it, unless the
operator set ``advertised.kafka``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from cordwood.broker.kafka.session import Session
from cordwood.broker.kafka.time_slices import RequestSlices
from cordwood.broker.topics import NODE_ID, TopicService
from cordwood.codes import Code
from cordwood.errors import CordwoodError, PartitionOffline, UnknownTopic
from cordwood.log.lifecycle.topics import LiveTopic
from cordwood.log.write.partition import Partition
from cordwood.model import is_topic_name
from cordwood.protocol.kafka.messages.metadata import (
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
from cordwood.protocol.kafka.primitives import NO_ID
from cordwood.protocol.kafka.schema import api_versions

UNKNOWN_TOPIC_ID: Final = 100
CREATED_MAX: Final = 100  # topics that one Metadata request creates; clients retry for the rest
PAGE_PARTITIONS_MAX: Final = 2_000  # in one DescribeTopicPartitions reply, as in Kafka
REPLICAS: Final = (NODE_ID,)
NO_NODE: Final = -1


class KafkaMetadata:
    """The handlers of four APIs."""

    def __init__(self, topics: TopicService, cluster_id: str) -> None:
        self._topics = topics
        self._cluster_id = cluster_id

    async def api_versions(
        self, _request: ApiVersionsRequest, _version: int, _session: Session
    ) -> ApiVersionsResponse:
        """Return the APIs and versions served."""
        return api_versions()

    async def metadata(
        self, request: MetadataRequest, version: int, session: Session
    ) -> MetadataResponse:
        """Describe the broker and the topics; creates missing ones if auto-creation is on."""
        turns = RequestSlices()
        if request.topics is None or (version == 0 and not request.topics):
            known = self._topics.all()
            names = await turns.sort(list(known))
            found = [known[name] for name in names if name in known]  # some may be deleted now
            topics = [await self._describe(topic, turns) async for topic in turns.of(found)]
        else:
            wanted: dict[str | UUID, MetadataRequestTopic] = {}
            async for each in turns.of(request.topics):  # once each, as Kafka does
                wanted.setdefault(each.topic_id if each.name is None else each.name, each)
            topics = await self._find_all(
                list(wanted.values()), turns, may_create=request.allow_auto_topic_creation
            )
        return MetadataResponse(
            brokers=[MetadataBroker(NODE_ID, session.host, session.port)],
            cluster_id=self._cluster_id,
            controller_id=NODE_ID,
            topics=topics,
        )

    async def _find_all(
        self, wanted: Sequence[MetadataRequestTopic], turns: RequestSlices, *, may_create: bool
    ) -> list[MetadataTopic]:
        """Describe each topic; creates up to ``CREATED_MAX`` missing ones per request.

        For the rest the client gets a retriable error, as Kafka gives the first request for a
        topic.
        """
        known = self._topics.all()
        missing = [
            each.name
            async for each in turns.of(wanted)
            if each.name is not None and each.name not in known
        ]
        created: dict[str, LiveTopic | CordwoodError] = {}
        if may_create:
            names = missing[:CREATED_MAX]
            made = await asyncio.gather(*map(self._ensure, names))
            created = dict(zip(names, made, strict=True))
        has_ids = any(each.name is None for each in wanted)
        named = list(known.values()) if has_ids else []
        by_id = {topic.id: topic async for topic in turns.of(named)}
        is_short = may_create and len(missing) > CREATED_MAX
        found: list[MetadataTopic] = []
        async for each in turns.of(wanted):
            if each.name is None:
                topic = by_id.get(str(each.topic_id))
                missed = MetadataTopic(UNKNOWN_TOPIC_ID, None, each.topic_id)
            else:
                topic, code = self._look_up(each.name, created, is_short=is_short)
                missed = MetadataTopic(code, each.name)
            found.append(missed if topic is None else await self._describe(topic, turns))
        return found

    async def _ensure(self, name: str) -> LiveTopic | CordwoodError:
        try:
            return await self._topics.ensure(name)
        except CordwoodError as error:
            return error

    def _look_up(
        self, name: str, created: Mapping[str, LiveTopic | CordwoodError], *, is_short: bool
    ) -> tuple[LiveTopic | None, int]:
        """Return a topic, or the error code that says why there is none."""
        try:
            outcome = created[name] if name in created else self._topics.get(name)
        except CordwoodError as error:
            outcome = error
        if not isinstance(outcome, CordwoodError):
            return outcome, Code.NONE
        if not is_short or name in created:
            return None, outcome.code
        is_name = is_topic_name(name)
        return None, Code.LEADER_NOT_AVAILABLE if is_name else Code.INVALID_TOPIC_EXCEPTION

    async def _describe(self, topic: LiveTopic, turns: RequestSlices) -> MetadataTopic:
        partitions = await turns.map(lambda slot: _partition(*slot), enumerate(topic.slots))
        return MetadataTopic(Code.NONE, topic.name, UUID(topic.id), False, partitions)

    async def describe_cluster(
        self, request: DescribeClusterRequest, _version: int, session: Session
    ) -> DescribeClusterResponse:
        """Describe the only broker, which is its own controller."""
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._cluster_id,
            controller_id=NODE_ID,
            brokers=[ClusterBroker(NODE_ID, session.host, session.port)],
            cluster_authorized_operations=OPERATIONS_UNASKED,
        )

    async def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, _version: int, _session: Session
    ) -> DescribeTopicPartitionsResponse:
        """Return one page of partitions, ordered by topic name and partition number."""
        known = self._topics.all()
        turns = RequestSlices()
        asked = {topic.name async for topic in turns.of(request.topics)}
        names = await turns.sort(list(asked or known))
        start = request.cursor or PartitionCursor("", 0)
        left = min(max(1, request.response_partition_limit), PAGE_PARTITIONS_MAX)
        topics: list[DescribedTopic] = []
        async for name in turns.of(names):
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
            slots = enumerate(known[name].slots[first : first + left], first)
            partitions = await turns.map(lambda slot: _partition(*slot), slots)
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
                # The schema allows null, but Kafka's own tools fail on it.
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=partition.offline_replicas,
            )
            for partition in partitions
        ],
    )
