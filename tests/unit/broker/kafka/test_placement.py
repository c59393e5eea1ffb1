"""Elections, reassignments and moves on a single broker: correct codes, and nothing changes."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from cordwood.protocol.kafka.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    MoveTo,
    ReassignPartition,
    ReassignTopic,
)
from support.kafka_services import KafkaServices


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_needed(tmp_path, version):
    """Existing partitions get ELECTION_NOT_NEEDED; a request for all gets an empty list."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        asked = ElectLeadersRequest(
            topics=[TopicPartitions("t", [0, 1]), TopicPartitions("nope", [0])]
        )
        reply = await services.ask(asked, version)
        codes = [part.error_code for topic in reply.topics for part in topic.partitions]
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [Code.ELECTION_NOT_NEEDED, unknown, unknown]
        assert not (await services.ask(ElectLeadersRequest(topics=None), version)).topics


async def test_a_partition_can_be_assigned_to_the_only_broker_and_to_no_other(tmp_path):
    """A reassignment to any other broker is refused, and no reassignment is in progress."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        for replicas, code in (
            ([1], Code.NONE),
            ([2], Code.INVALID_REPLICA_ASSIGNMENT),
            ([1, 2], Code.INVALID_REPLICA_ASSIGNMENT),
            ([], Code.INVALID_REPLICA_ASSIGNMENT),
            (None, Code.NO_REASSIGNMENT_IN_PROGRESS),
        ):
            topic = ReassignTopic("t", [ReassignPartition(0, replicas)])
            reply = await services.ask(AlterPartitionReassignmentsRequest(topics=[topic]), 0)
            assert reply.topics[0].partitions[0].error_code == code
        assert not (await services.ask(ListPartitionReassignmentsRequest(), 0)).topics


@pytest.mark.parametrize("version", range(1, 3))
async def test_logs_lie_in_the_data_directory_and_nowhere_else(tmp_path, version):
    """A move to the data directory succeeds; any other directory gets LOG_DIR_NOT_FOUND."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        for path, number, code in (
            (str(tmp_path), 0, Code.NONE),
            ("/elsewhere", 0, Code.LOG_DIR_NOT_FOUND),
            (str(tmp_path), 1, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            asked = AlterReplicaLogDirsRequest([MoveTo(path, [TopicPartitions("t", [number])])])
            (topic,) = (await services.ask(asked, version)).results
            assert [tuple(part) for part in topic.partitions] == [(number, code)]
