"""Topics over the Kafka protocol: creation, growth, record deletion, and topic deletion."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from cordwood.codes import Code
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from cordwood.protocol.kafka.messages.topics import (
    CreatePartitionsRequest,
    CreateTopic,
    CreateTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopic,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    GrowTopic,
    NewPartitionAssignment,
    ReplicaAssignment,
)
from support.kafka_services import KafkaServices


def topic(name="t", partitions=1, replicas=1, assignments=(), **config):
    output = [CreateTopicConfig(key.replace("_", "."), value) for key, value in config.items()]
    return CreateTopic(name, partitions, replicas, assignments, output)


async def create(services, *topics, version=None, validate_only=False):
    request = CreateTopicsRequest(topics, validate_only=validate_only)
    return (await services.ask(request, version)).topics


async def refusal(services, wanted):
    (reply,) = await create(services, wanted)
    assert wanted.name not in services.store.topics
    return reply.error_code


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_in_every_version(tmp_path, version):
    """The topic gets its partitions and settings. Newer versions return them in the reply."""
    async with KafkaServices(tmp_path) as services:
        (reply,) = await create(services, topic(partitions=3, retention_ms="5000"), version=version)
        assert reply.error_code == Code.NONE
        live = services.store.topic("t")
        assert (live.partition_count, live.config.retention_ms) == (3, 5000)
        if version >= 5:
            configs = {each.name: (each.value, each.config_source) for each in reply.configs}
            assert configs["retention.ms"] == ("5000", 1)
            assert configs["segment.bytes"] == ("1073741824", 5)
            assert (reply.num_partitions, reply.replication_factor) == (3, 1)
        if version >= 7:
            assert reply.topic_id == UUID(live.id)


async def test_minus_one_takes_the_brokers_defaults(tmp_path):
    """-1 selects the broker's default for the partition count and the replication factor."""
    async with KafkaServices(tmp_path, num_partitions=4) as services:
        (reply,) = await create(services, topic(partitions=-1, replicas=-1))
        assert (reply.error_code, reply.num_partitions, reply.replication_factor) == (0, 4, 1)
        assert services.store.topic("t").partition_count == 4


async def test_what_cannot_be_created_is_refused_by_its_own_code(tmp_path):
    """Each invalid request gets its own error code and creates no topic."""
    async with KafkaServices(tmp_path) as services:
        assert await refusal(services, topic("no/slash")) == Code.INVALID_TOPIC_EXCEPTION
        assert await refusal(services, topic(partitions=0)) == Code.INVALID_PARTITIONS
        assert await refusal(services, topic(partitions=-2)) == Code.INVALID_PARTITIONS
        assert await refusal(services, topic(replicas=2)) == Code.INVALID_REPLICATION_FACTOR
        assert await refusal(services, topic(replicas=0)) == Code.INVALID_REPLICATION_FACTOR
        assert await refusal(services, topic(retention_ms="soon")) == Code.INVALID_CONFIG
        assert await refusal(services, topic(retentoin_ms="1")) == Code.INVALID_CONFIG
        assert await refusal(services, topic(retention_ms=None)) == Code.INVALID_CONFIG


async def test_a_name_in_use_or_named_twice_is_refused(tmp_path):
    """An existing or repeated name is refused; the request's other topics are created."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        replies = await create(services, topic("t"), topic("u"), topic("twice"), topic("twice"))
        assert [reply.error_code for reply in replies] == [
            Code.TOPIC_ALREADY_EXISTS,
            Code.NONE,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
        ]
        assert set(services.store.topics) == {"t", "u"}


async def test_topics_of_one_request_are_made_together(tmp_path, monkeypatch):
    """All valid topics of a request are created in one writer step, without the refused ones."""
    async with KafkaServices(tmp_path) as services:
        steps = []
        make = services.store.create_topics
        monkeypatch.setattr(
            services.store,
            "create_topics",
            lambda wanted: (steps.append(len(wanted)), make(wanted))[1],
        )
        replies = await create(services, *map(topic, ["a", "b", "c"]), topic("d", replicas=3))
        assert [reply.error_code for reply in replies[:3]] == [Code.NONE] * 3
        assert replies[3].error_code == Code.INVALID_REPLICATION_FACTOR
        assert steps == [3]


async def test_a_manual_assignment_names_the_one_broker(tmp_path):
    """Assignments cover consecutive partitions from 0, and both counts are -1."""
    async with KafkaServices(tmp_path) as services:
        both = [ReplicaAssignment(1, [1]), ReplicaAssignment(0, [1])]
        (reply,) = await create(services, topic("good", -1, -1, both))
        assert (reply.error_code, reply.num_partitions) == (0, 2)
        bad = Code.INVALID_REPLICA_ASSIGNMENT
        assert await refusal(services, topic("a", -1, -1, [ReplicaAssignment(1, [1])])) == bad
        assert await refusal(services, topic("b", -1, -1, [ReplicaAssignment(0, [2])])) == bad
        assert await refusal(services, topic("c", -1, -1, [ReplicaAssignment(0, [1, 2])])) == bad
        assert await refusal(services, topic("d", 2, -1, both)) == Code.INVALID_REQUEST


async def test_validation_creates_nothing(tmp_path):
    """A validation returns the codes of a real request and creates nothing."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        replies = await create(
            services, topic("new"), topic("t"), topic("x", retention_ms="?"), validate_only=True
        )
        assert [reply.error_code for reply in replies] == [
            Code.NONE,
            Code.TOPIC_ALREADY_EXISTS,
            Code.INVALID_CONFIG,
        ]
        assert set(services.store.topics) == {"t"}


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name(tmp_path, version):
    """Deleting a topic deletes its records. An unknown name gets its own error code."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.write("t", [b"v"])
        names = ["t", "nope"]
        request = DeleteTopicsRequest([DeleteTopic(name) for name in names], names)
        deleted = (await services.ask(request, version)).topics
        assert [(each.name, each.error_code) for each in deleted] == [
            ("t", Code.NONE),
            ("nope", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert not services.store.topics
        await services.create("t")
        assert services.store.partitions("t")[0].high_watermark == 0


async def test_topics_are_deleted_by_id(tmp_path):
    """The reply contains the name of the deleted topic; an unknown id has no name."""
    async with KafkaServices(tmp_path) as services:
        known = UUID((await services.create("t")).id)
        unknown = uuid4()
        topics = [DeleteTopic(None, known), DeleteTopic(None, unknown)]
        deleted = (await services.ask(DeleteTopicsRequest(topics))).topics
        assert [(each.name, each.topic_id, each.error_code) for each in deleted] == [
            ("t", known, Code.NONE),
            (None, unknown, Code.UNKNOWN_TOPIC_ID),
        ]


async def grow(services, *topics, validate_only=False):
    request = CreatePartitionsRequest(topics, 1000, validate_only)
    return [each.error_code for each in (await services.ask(request)).results]


async def test_a_topic_grows(tmp_path):
    """A topic can only grow, and its new partitions accept records immediately."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        assert await grow(services, GrowTopic("t", 3), validate_only=True) == [Code.NONE]
        assert services.store.topic("t").partition_count == 2
        assert await grow(services, GrowTopic("t", 3)) == [Code.NONE]
        assert (await services.write("t", [b"v"], partition=2)).error_code == Code.NONE
        too_few = await grow(services, GrowTopic("t", 3), GrowTopic("nope", 9))
        assert too_few == [Code.INVALID_PARTITIONS, Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert await grow(services, GrowTopic("t", 5), GrowTopic("t", 6)) == [
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
        ]


async def test_new_partitions_are_assigned_to_the_one_broker(tmp_path):
    """Each added partition needs one assignment, to the only broker."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        one, two = NewPartitionAssignment([1]), NewPartitionAssignment([2])
        bad = [Code.INVALID_REPLICA_ASSIGNMENT]
        assert await grow(services, GrowTopic("t", 3, [one])) == bad
        assert await grow(services, GrowTopic("t", 3, [one, two])) == bad
        assert await grow(services, GrowTopic("t", 3, [one, one])) == [Code.NONE]


async def trim(services, offset, topic="t", partition=0):
    parts = [DeleteRecordsPartition(partition, offset)]
    request = DeleteRecordsRequest([DeleteRecordsTopic(topic, parts)], 1000)
    answer = (await services.ask(request)).topics[0].partitions[0]
    return answer.low_watermark, answer.error_code


async def test_records_below_an_offset_go_for_good(tmp_path):
    """The log start never moves back or past the end, and it survives a restart."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.write("t", [b"a", b"b", b"c", b"d"])
        assert await trim(services, 2) == (2, Code.NONE)
        assert await trim(services, 1) == (2, Code.NONE)
        assert await trim(services, 5) == (-1, Code.OFFSET_OUT_OF_RANGE)
        assert await trim(services, -2) == (-1, Code.OFFSET_OUT_OF_RANGE)
        assert await trim(services, 0, topic="nope") == (-1, Code.UNKNOWN_TOPIC_OR_PARTITION)
        assert await trim(services, 0, partition=1) == (-1, Code.UNKNOWN_TOPIC_OR_PARTITION)
    async with KafkaServices(tmp_path) as services:
        assert services.store.partition(TopicPartition("t", 0)).log_start_offset == 2
        assert await trim(services, -1) == (4, Code.NONE)
        await services.write("t", [b"e"])
        assert await trim(services, -1) == (5, Code.NONE)


async def test_a_compacted_topic_is_not_trimmed(tmp_path):
    """Records of a compacted topic cannot be deleted, unless its policy also contains delete."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="compact")
        await services.create("both", cleanup_policy="compact,delete")
        await services.write("both", [b"a"])
        assert await trim(services, 0) == (-1, Code.POLICY_VIOLATION)
        assert await trim(services, -1, topic="both") == (1, Code.NONE)


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_data_directory_is_described(tmp_path, version):
    """The reply lists all topics or the requested ones, with their log sizes."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        await services.create("u")
        await services.write("t", [b"v" * 100], partition=1)
        (found,) = (await services.ask(DescribeLogDirsRequest(None), version)).results
        assert found.path == str(tmp_path)
        sizes = {
            (topic.name, part.partition): part.size_bytes
            for topic in found.topics
            for part in topic.partitions
        }
        size_bytes = services.store.partitions("t")[1].size_bytes
        assert sizes == {("t", 0): 0, ("t", 1): size_bytes, ("u", 0): 0}
        assert (found.total_bytes > 0) is (version >= 4)
        asked = DescribeLogDirsRequest([TopicPartitions("t", [1]), TopicPartitions("nope", [0])])
        (some,) = (await services.ask(asked, version)).results
        assert [(topic.name, len(topic.partitions)) for topic in some.topics] == [("t", 1)]
        (none,) = (await services.ask(DescribeLogDirsRequest([]), version)).results
        assert not none.topics
