"""What clients are told of the cluster: authorized operations, endpoints, special offsets."""

from __future__ import annotations

import pytest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

from cordwood.codes import Code
from cordwood.protocol.kafka.messages.metadata import (
    OPERATIONS_UNASKED,
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from cordwood.protocol.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from cordwood.protocol.kafka.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from cordwood.protocol.kafka.schema import api_table
from support.kafka_services import KafkaServices

ALL_ON_TOPIC, ALL_ON_CLUSTER = 3576, 8096  # as Kafka answers without an authorizer


async def test_metadata_tells_all_operations_if_asked(tmp_path):
    """For topics by name and for all topics; the cluster's only up to version 10."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        for topics in ([MetadataRequestTopic(name="t")], None):
            asked = MetadataRequest(
                topics,
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )
            reply = await services.ask(asked, 10)
            assert reply.topics[0].authorized_operations == ALL_ON_TOPIC
            assert reply.cluster_authorized_operations == ALL_ON_CLUSTER
            unasked = await services.ask(MetadataRequest(topics), 10)
            assert unasked.topics[0].authorized_operations == OPERATIONS_UNASKED
            assert unasked.cluster_authorized_operations == OPERATIONS_UNASKED


async def test_a_described_topic_lists_all_operations(tmp_path):
    """DescribeTopicPartitions always carries them, as in Kafka."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        wanted = DescribeTopicPartitionsRequest([DescribeTopicPartitionsTopic("t")])
        (topic,) = (await services.ask(wanted)).topics
        assert topic.authorized_operations == ALL_ON_TOPIC


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_cluster_is_described_with_its_operations_if_asked(tmp_path, version):
    """One broker that is not fenced; operations only on request."""
    async with KafkaServices(tmp_path) as services:
        asked = await services.ask(DescribeClusterRequest(True), version)
        assert asked.cluster_authorized_operations == ALL_ON_CLUSTER
        assert [(node.broker_id, node.is_fenced) for node in asked.brokers] == [(1, False)]
        unasked = await services.ask(DescribeClusterRequest(False), version)
        assert unasked.cluster_authorized_operations == OPERATIONS_UNASKED


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, Code.MISMATCHED_ENDPOINT_TYPE), (3, Code.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_only_brokers_are_described(tmp_path, endpoint_type, code):
    """Controllers are not reachable on this listener, so no address is given for them."""
    async with KafkaServices(tmp_path) as services:
        reply = await services.ask(DescribeClusterRequest(False, endpoint_type))
        assert (reply.error_code, list(reply.brokers)) == (code, [])
        assert reply.error_message


async def listed(services, timestamp_ms, version):
    """Return code, timestamp, offset and epoch for partition 0 of topic t."""
    topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp_ms=timestamp_ms)])
    reply = await services.ask(ListOffsetsRequest(-1, topics=[topic]), version)
    return tuple(reply.topics[0].partitions[0])[1:]


async def test_offsets_of_tiers_are_answered_as_without_a_tier(tmp_path):
    """The earliest local offset (-4) is the log start; the tier's offsets (-5, -6) are -1."""
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t")).partition(0)
        for _ in range(3):
            await services.write("t", [b"v"])
        below = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 2)])
        await services.ask(DeleteRecordsRequest([below], 1000))
        epoch = partition.leader_epoch
        assert await listed(services, -4, 11) == (Code.NONE, -1, 2, epoch)
        assert await listed(services, -2, 11) == (Code.NONE, -1, 2, epoch)
        assert await listed(services, -1, 11) == (Code.NONE, -1, 3, epoch)
        for tiered in (-5, -6):
            assert await listed(services, tiered, 11) == (Code.NONE, -1, -1, -1)


@pytest.mark.parametrize(
    ("timestamp_ms", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11)]
)
async def test_a_special_offset_needs_the_version_that_introduced_it(
    tmp_path, timestamp_ms, version
):
    """An older version, or a number without a meaning, gets UNSUPPORTED_VERSION as in Kafka."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        code, *_ = await listed(services, timestamp_ms, version)
        assert code == Code.UNSUPPORTED_VERSION


async def wanted(services, *where):
    """Return the error code for a client that wants this cluster and node."""
    reply = await services.ask(ApiVersionsRequest("test", "1", *where))
    assert len(reply.api_keys) == len(api_table())
    return reply.error_code


async def test_a_client_that_wants_another_node_is_sent_back_to_its_bootstrap_servers(tmp_path):
    """ApiVersions 5 may tell cluster and node; a wrong one is answered REBOOTSTRAP_REQUIRED."""
    async with KafkaServices(tmp_path) as services:
        cluster_id = services.cluster.cluster_id
        for right in ((), (cluster_id, 1), (None, 1), (cluster_id, -1)):
            assert await wanted(services, *right) == Code.NONE
        for wrong in (("another", 1), (cluster_id, 2), ("another", -1)):
            assert await wanted(services, *wrong) == Code.REBOOTSTRAP_REQUIRED


def test_kafka_python_infers_a_broker_version_whose_requests_we_serve():
    """It takes us for Kafka 4.3 because of DescribeLogDirs 5, the newest that it can test for."""
    ranges = {key: (first, last) for _, key, first, last in api_table()}
    assert infer_broker_version_from_api_versions(ranges) == (4, 3)
