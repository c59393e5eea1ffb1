"""The quorum of one node."""

from __future__ import annotations

import base64

import pytest

from cordwood.broker.kafka.quorum import METADATA_TOPIC
from cordwood.codes import Code
from cordwood.protocol.kafka.messages.quorum import (
    DescribeQuorumRequest,
    QuorumPartition,
    QuorumTopic,
)
from support.kafka_services import KafkaServices


def described(name=METADATA_TOPIC, *numbers):
    return DescribeQuorumRequest([QuorumTopic(name, list(map(QuorumPartition, numbers or (0,))))])


async def test_this_broker_is_the_only_voter_and_leads(tmp_path):
    """Node, directory, address and time are this broker's; there are no observers."""
    async with KafkaServices(tmp_path) as services:
        reply = await services.ask(described())
        ((partition,),) = (topic.partitions for topic in reply.topics)
        assert (reply.error_code, partition.error_code, partition.leader_id) == (0, 0, 1)
        (voter,) = partition.current_voters
        assert (voter.replica_id, list(partition.observers)) == (1, [])
        data_id = services.store.directory.identity.data_id
        assert voter.replica_directory_id.bytes == base64.urlsafe_b64decode(data_id + "==")
        assert voter.last_caught_up_ms > 0
        assert [tuple(node) for node in reply.nodes] == [(1, (("KAFKA", "broker.example", 9092),))]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_metadata_log_ends_at_the_last_change_of_the_metadata(tmp_path, version):
    """A change of the metadata moves the end of the only voter's log and the high watermark."""
    async with KafkaServices(tmp_path) as services:
        ends = []
        for name in ("a", "b"):
            await services.create(name)
            (topic,) = (await services.ask(described(), version)).topics
            (partition,) = topic.partitions
            assert partition.high_watermark == partition.current_voters[0].log_end_offset
            ends.append(partition.high_watermark)
        assert ends[0] < ends[1]


@pytest.mark.parametrize("wrong", [("t", 0), (METADATA_TOPIC, 1), (METADATA_TOPIC, 0, 1)])
async def test_only_the_metadata_log_has_a_quorum(tmp_path, wrong):
    """Another topic or partition is refused as a whole."""
    async with KafkaServices(tmp_path) as services:
        reply = await services.ask(described(*wrong))
        assert (reply.error_code, list(reply.topics)) == (Code.INVALID_REQUEST, [])
