"""Committed offsets over the Kafka protocol: they are cursors, and RECLAIM waits for them."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.protocol.kafka.messages.commits import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from support.kafka_services import KafkaServices


def commit(*at, group="g", topic="t", metadata=None):
    parts = [OffsetCommitPartition(number, offset, 3, metadata) for number, offset in at]
    return OffsetCommitRequest(group, topics=[OffsetCommitTopic(topic, partitions=parts)])


async def codes(services, request, version=None):
    reply = await services.ask(request, version)
    return [part.error_code for topic in reply.topics for part in topic.partitions]


@pytest.mark.parametrize("version", range(2, 9))
async def test_a_commit_comes_back_as_it_was_made(tmp_path, version):
    """Offset, metadata and leader epoch are returned in every version that has them."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        assert await codes(services, commit((0, 5), (1, 7), metadata="note"), version) == [0, 0]
        fetched = await services.ask(OffsetFetchRequest("g", [OffsetFetchTopic("t", [0, 1])]), 5)
        epoch = 3 if version >= 6 else -1
        assert [tuple(part) for part in fetched.topics[0].partitions] == [
            (0, 5, epoch, "note", 0),
            (1, 7, epoch, "note", 0),
        ]


async def test_a_commit_is_durable_before_it_is_answered(tmp_path):
    """The offset is in the metadata store when the reply arrives, before any stop or close."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.ask(commit((0, 5)))
        from cordwood.clock import SystemClock
        from cordwood.metadata.front import Metadata
        from cordwood.metadata.sqlite import SqliteStore

        other = Metadata(SqliteStore(tmp_path / "meta.db", SystemClock()))
        cursor = other.readers.cursor(ReaderPartition("g", "t", 0))
        other.close()
        assert cursor is not None
        assert cursor.offset == 5


async def test_a_missing_partition_gets_its_own_error(tmp_path):
    """Only the unknown partition gets an error; the others are committed."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await codes(services, commit((0, 1), (1, 1), (-1, 1))) == [0, unknown, unknown]
        assert await codes(services, commit((0, 1), topic="nope")) == [unknown]
        assert set(services.metadata.readers.cursors()) == {ReaderPartition("g", "t", 0)}


async def test_a_note_that_is_too_long_is_refused(tmp_path):
    """The limit is ``offset.metadata.max.bytes``, counted in bytes."""
    async with KafkaServices(tmp_path, offset_metadata_max_bytes=4) as services:
        await services.create("t")
        assert await codes(services, commit((0, 1), metadata="éé")) == [0]
        assert await codes(services, commit((0, 2), metadata="ééé")) == [
            Code.OFFSET_METADATA_TOO_LARGE
        ]


async def test_a_group_on_a_consume_topic_is_waited_for(tmp_path):
    """The first commit registers the group on a topic with the consume policy, and only there."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.create("c", cleanup_policy="consume,delete")
        await services.ask(commit((0, 5)))
        await services.ask(commit((0, 5), topic="c"))
        assert not services.metadata.readers.registered("t")
        tp = services.store.partitions("c")[0].tp
        assert services.metadata.readers.registered_positions(tp) == {"g": 5}


@pytest.mark.parametrize("version", range(1, 10))
async def test_nothing_committed_is_minus_one(tmp_path, version):
    """The offset is -1 without an error, even if the topic or the group does not exist."""
    async with KafkaServices(tmp_path) as services:
        topics = [OffsetFetchTopic("t", [0, 4])]
        of_group = [OffsetFetchGroupTopic("t", partitions=[0, 4])]
        request = OffsetFetchRequest("g", topics, [OffsetFetchGroup("g", topics=of_group)])
        fetched = await services.ask(request, version)
        topic = fetched.groups[0].topics[0] if version >= 8 else fetched.topics[0]
        found = [(part.partition, part.offset, part.error_code) for part in topic.partitions]
        assert found == [(0, -1, 0), (4, -1, 0)]


@pytest.mark.parametrize("version", [2, 5, 7, 8])
async def test_null_topics_ask_for_all_of_a_group(tmp_path, version):
    """Null topics return all offsets of the group and none of other groups."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        await services.create("u")
        await services.ask(commit((0, 1), (1, 2)))
        await services.ask(commit((0, 3), topic="u"))
        await services.ask(commit((0, 9), group="other"))
        request = OffsetFetchRequest("g", None, [OffsetFetchGroup("g")])
        fetched = await services.ask(request, version)
        topics = fetched.groups[0].topics if version >= 8 else fetched.topics
        found = {
            (topic.name, part.partition): part.offset
            for topic in topics
            for part in topic.partitions
        }
        assert found == {("t", 0): 1, ("t", 1): 2, ("u", 0): 3}


async def test_several_groups_are_fetched_at_once(tmp_path):
    """The reply contains each group under its name, in the requested order."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        for group, offset in (("g", 1), ("h", 2)):
            await services.ask(commit((0, offset), group=group))
        topics = [OffsetFetchGroupTopic("t", partitions=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchGroup(group, topics=topics) for group in ("h", "g", "i")]
        )
        fetched = await services.ask(request)
        assert [
            (group.group_id, group.topics[0].partitions[0].offset) for group in fetched.groups
        ] == [("h", 2), ("g", 1), ("i", -1)]


async def test_a_line_reader_and_a_group_share_a_cursor(tmp_path):
    """OffsetFetch returns the cursor that a line reader's ACK moved."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.write("t", [b"v"] * 4)
        await services.readers.register("t", "g")
        await services.readers.advance(services.store.partitions("t")[0].tp, "g", 4)
        fetched = await services.ask(OffsetFetchRequest("g", [OffsetFetchTopic("t", [0])]), 7)
        assert fetched.topics[0].partitions[0].offset == 4


def delete(*numbers, group="g", topic="t"):
    parts = [OffsetDeletePartition(number) for number in numbers]
    return OffsetDeleteRequest(group, [OffsetDeleteTopic(topic, parts)])


async def test_deleted_offsets_are_gone_and_no_longer_waited_for(tmp_path):
    """Deleting a group's last cursor on a topic also removes its registration for RECLAIM."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2, cleanup_policy="consume")
        await services.ask(commit((0, 1), (1, 2)))
        assert await codes(services, delete(0, 7)) == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert list(services.metadata.readers.cursors()) == [ReaderPartition("g", "t", 1)]
        assert "g" in services.metadata.readers.registered("t")
        assert await codes(services, delete(1)) == [0]
        assert not services.metadata.readers.registered("t")


async def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(tmp_path):
    """The reply has the error GROUP_ID_NOT_FOUND and no partitions."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        reply = await services.ask(delete(0, group="nobody"))
        assert (reply.error_code, list(reply.topics)) == (Code.GROUP_ID_NOT_FOUND, [])


async def test_a_topic_deleted_under_a_commit_does_not_hurt_the_next(tmp_path):
    """Deleting a topic deletes its cursors. The group can still commit to other topics."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.create("u")
        await services.ask(commit((0, 1)))
        await services.topics.delete("t")
        assert await codes(services, commit((0, 1))) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert await codes(services, commit((0, 8), topic="u")) == [0]
        (where,) = services.metadata.readers.cursors()
        assert where == ReaderPartition("g", "u", 0)
        assert isinstance(services.metadata.readers.cursor(where), Cursor)
