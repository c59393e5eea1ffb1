"""Cluster metadata: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions.

Nodes are named as ``broker.cluster_view`` gives them: under the address by which the client reached
this broker, unless the operator set ``advertised.kafka``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.kafka.authorized_operations import ON_CLUSTER, ON_TOPIC, authorized
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.errors import CordwoodError, UnknownTopic, UnknownTopicId
from cordwood.log.lifecycle.live_topics import LiveTopic
from cordwood.model import is_topic_name
from cordwood.protocol.kafka.messages import metadata as m
from cordwood.protocol.kafka.primitives import NO_ID
from cordwood.protocol.kafka.schema import api_versions

_ANY_NODE: Final = -1  # in ApiVersions: the client does not know which node it reaches
BROKERS, CONTROLLERS = 1, 2  # endpoint types of DescribeCluster
BY_ID_VERSION: Final = 12  # the first Metadata version that describes topics by id in Kafka
CREATED_MAX: Final = 100  # topics that one Metadata request creates; clients retry for the rest
PAGE_PARTITIONS_MAX: Final = 2_000  # in one DescribeTopicPartitions reply, as in Kafka


class KafkaMetadata:
    """The handlers of four APIs."""

    def __init__(self, topics: TopicService, cluster: ClusterView) -> None:
        self._topics = topics
        self._cluster = cluster

    async def api_versions(
        self, request: m.ApiVersionsRequest, _version: int, _session: Session
    ) -> m.ApiVersionsResponse:
        """Return the APIs and versions served; a client that wants another node is sent away."""
        wants_cluster = request.cluster_id in (None, self._cluster.cluster_id)
        wants_node = request.node_id in (_ANY_NODE, self._cluster.node_id)
        return api_versions(
            Code.NONE if wants_cluster and wants_node else Code.REBOOTSTRAP_REQUIRED
        )

    async def metadata(
        self, request: m.MetadataRequest, version: int, session: Session
    ) -> m.MetadataResponse:
        """Describe the broker and the topics; creates missing ones if auto-creation is on."""
        turns = RequestSlices()
        operations = authorized(ON_TOPIC, is_asked=request.include_topic_authorized_operations)
        if request.topics is None or (version == 0 and not request.topics):
            known = self._topics.all()
            names = await turns.sort(list(known))
            present = [known[name] for name in names if name in known]  # some may be deleted now
            topics = [
                await self._describe(topic, operations, turns) async for topic in turns.of(present)
            ]
        else:
            wanted: dict[str | UUID, m.MetadataRequestTopic] = {}
            async for each in turns.of(request.topics):  # once each, as Kafka does
                asked = each
                if version >= BY_ID_VERSION and each.topic_id != NO_ID:
                    asked = each._replace(name=None)  # an id decides, whatever the name
                wanted.setdefault(asked.topic_id if asked.name is None else asked.name, asked)
            topics = await self._find_all(
                list(wanted.values()),
                operations,
                turns,
                may_create=request.allow_auto_topic_creation,
            )
        return m.MetadataResponse(
            brokers=[m.MetadataBroker(*node) for node in self._cluster.endpoints(session)],
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            topics=topics,
            cluster_authorized_operations=authorized(
                ON_CLUSTER, is_asked=request.include_cluster_authorized_operations
            ),
        )

    async def _find_all(
        self,
        wanted: Sequence[m.MetadataRequestTopic],
        operations: int,
        turns: RequestSlices,
        *,
        may_create: bool,
    ) -> list[m.MetadataTopic]:
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
        is_short = may_create and len(missing) > CREATED_MAX
        described: list[m.MetadataTopic] = []
        async for each in turns.of(wanted):
            if each.name is None:
                topic, code = self._look_up_id(each.topic_id)
            else:
                topic, code = self._look_up(each.name, created, is_short=is_short)
            described.append(
                m.MetadataTopic(code, each.name, each.topic_id)
                if topic is None
                else await self._describe(topic, operations, turns)
            )
        return described

    async def _ensure(self, name: str) -> LiveTopic | CordwoodError:
        try:
            return await self._topics.ensure(name)
        except CordwoodError as error:
            return error

    def _look_up_id(self, topic_id: UUID) -> tuple[LiveTopic | None, int]:
        try:
            return self._topics.get_by_id(topic_id), Code.NONE
        except UnknownTopicId as error:
            return None, error.code

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

    async def _describe(
        self, topic: LiveTopic, operations: int, turns: RequestSlices
    ) -> m.MetadataTopic:
        numbers = range(topic.partition_count)
        partitions = await turns.map(partial(self._partition, topic), numbers)
        return m.MetadataTopic(Code.NONE, topic.name, UUID(topic.id), False, partitions, operations)

    async def describe_cluster(
        self, request: m.DescribeClusterRequest, _version: int, session: Session
    ) -> m.DescribeClusterResponse:
        """Describe the brokers and name the controller; clients cannot reach a controller."""
        if request.endpoint_type != BROKERS:
            is_known = request.endpoint_type == CONTROLLERS
            return m.DescribeClusterResponse(
                error_code=Code.MISMATCHED_ENDPOINT_TYPE
                if is_known
                else Code.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this listener describes brokers only (endpoint type 1)",
            )
        return m.DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            brokers=[m.ClusterBroker(*node) for node in self._cluster.endpoints(session)],
            cluster_authorized_operations=authorized(
                ON_CLUSTER, is_asked=request.include_cluster_authorized_operations
            ),
        )

    async def describe_topic_partitions(
        self, request: m.DescribeTopicPartitionsRequest, _version: int, _session: Session
    ) -> m.DescribeTopicPartitionsResponse:
        """Return one page of partitions, ordered by topic name and partition number."""
        known = self._topics.all()
        turns = RequestSlices()
        asked = {topic.name async for topic in turns.of(request.topics)}
        names = await turns.sort(list(asked or known))
        start = request.cursor or m.PartitionCursor("", 0)
        left = min(max(1, request.response_partition_limit), PAGE_PARTITIONS_MAX)
        topics: list[m.DescribedTopic] = []
        async for name in turns.of(names):
            if name < start.topic_name:
                continue
            first = start.partition_index if name == start.topic_name else 0
            if name not in known:
                topics.append(_missing(name))
                continue
            if left == 0:
                return m.DescribeTopicPartitionsResponse(
                    topics=topics, next_cursor=m.PartitionCursor(name, first)
                )
            topic = known[name]
            end = min(first + left, topic.partition_count)
            numbers = range(first, end)
            partitions = await turns.map(partial(self._described_partition, topic), numbers)
            topics.append(
                m.DescribedTopic(Code.NONE, name, UUID(topic.id), False, partitions, ON_TOPIC)
            )
            left -= len(partitions)
            if end < topic.partition_count:
                return m.DescribeTopicPartitionsResponse(
                    topics=topics, next_cursor=m.PartitionCursor(name, end)
                )
        return m.DescribeTopicPartitionsResponse(topics=topics)

    def _partition(self, topic: LiveTopic, number: int) -> m.MetadataPartition:
        placement = self._cluster.placement(topic, number)
        code = Code.LEADER_NOT_AVAILABLE if placement.is_offline else Code.NONE
        return m.MetadataPartition(code, number, *placement)

    def _described_partition(self, topic: LiveTopic, number: int) -> m.DescribedPartition:
        partition = self._partition(topic, number)
        return m.DescribedPartition(
            *partition[:-1],
            # The schema allows null here, but Kafka's own tools fail on it.
            eligible_leader_replicas=(),
            last_known_elr=(),
            offline_replicas=partition.offline_replicas,
        )


def _missing(name: str) -> m.DescribedTopic:
    code = UnknownTopic.code if is_topic_name(name) else Code.INVALID_TOPIC_EXCEPTION
    return m.DescribedTopic(code, name, NO_ID)
