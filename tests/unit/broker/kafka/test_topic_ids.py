"""Topics named by id: in Fetch and Produce from version 13, and in Metadata."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from cordwood.batch.records import encode_batch
from cordwood.codes import Code
from cordwood.model import Record
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.kafka.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.kafka.primitives import NO_ID
from support.kafka_services import KafkaServices

BATCH = encode_batch([Record(0, 1, b"k", b"v")])


def produce_request(topic_id: UUID) -> ProduceRequest:
    """Return a request to append one batch to partition 0."""
    topic = ProduceTopic(topic_id=topic_id, partitions=[ProducePartition(0, BATCH)])
    return ProduceRequest(None, -1, 1000, [topic])


def fetch_request(topic_id: UUID, **options) -> FetchRequest:
    """Return a request for partition 0 from offset 0 on."""
    topic = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(0, partition_max_bytes=9999)])
    return FetchRequest(min_bytes=1, topics=[topic], **options)


async def begin_waiting(services, request):
    """Send a fetch and return its future once it waits for records."""
    is_waiting, wait = asyncio.Event(), services.notifier.wait

    def tell_and_wait(*arguments):
        is_waiting.set()
        return wait(*arguments)

    services.notifier.wait = tell_and_wait
    answer = services.begin(request, 16)
    await is_waiting.wait()
    return answer


@pytest.mark.parametrize("fetch_version", range(13, 19))
async def test_records_are_produced_and_fetched_by_topic_id(tmp_path, fetch_version):
    """The replies carry the id instead of the name."""
    async with KafkaServices(tmp_path) as services:
        topic_id = UUID((await services.create("t")).id)
        (produced,) = (await services.ask(produce_request(topic_id), 13)).topics
        assert (produced.topic_id, produced.name) == (topic_id, "")
        assert produced.partitions[0].error_code == Code.NONE
        (fetched,) = (await services.ask(fetch_request(topic_id), fetch_version)).topics
        assert (fetched.topic_id, fetched.name) == (topic_id, "")
        assert len(fetched.partitions[0].records) == len(BATCH)


@pytest.mark.parametrize("topic_id", [NO_ID, uuid4()], ids=["no id", "another id"])
async def test_an_id_that_no_topic_has_is_unknown(tmp_path, topic_id):
    """The reply names the id and each partition, with UNKNOWN_TOPIC_ID."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        for request, version in [(produce_request(topic_id), 13), (fetch_request(topic_id), 13)]:
            (answer,) = (await services.ask(request, version)).topics
            assert answer.topic_id == topic_id
            assert [part.error_code for part in answer.partitions] == [Code.UNKNOWN_TOPIC_ID]


async def test_a_partition_that_the_topic_lacks_is_unknown_by_its_number(tmp_path):
    """A known id with an unknown partition gets UNKNOWN_TOPIC_OR_PARTITION."""
    async with KafkaServices(tmp_path) as services:
        topic_id = UUID((await services.create("t")).id)
        topic = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(7)])
        (answer,) = (await services.ask(FetchRequest(topics=[topic]), 13)).topics
        assert answer.partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_created_again_is_not_mistaken_for_the_old_one(tmp_path):
    """The old id is unknown although the name exists; the new id finds the new topic."""
    async with KafkaServices(tmp_path) as services:
        old = UUID((await services.create("t")).id)
        await services.topics.delete("t")
        new = UUID((await services.create("t")).id)
        for topic_id, code in [(old, Code.UNKNOWN_TOPIC_ID), (new, Code.NONE)]:
            (answer,) = (await services.ask(produce_request(topic_id), 13)).topics
            assert answer.partitions[0].error_code == code


async def test_a_waiting_fetch_by_id_is_woken_by_an_append(tmp_path):
    """The wait ends with the records, long before its timeout."""
    async with KafkaServices(tmp_path) as services:
        topic_id = UUID((await services.create("t")).id)
        waiting = await begin_waiting(services, fetch_request(topic_id, max_wait_ms=60_000))
        await services.write("t", [b"late"])
        (answer,) = (await asyncio.wait_for(waiting, 20)).topics
        assert answer.partitions[0].records


async def test_a_waiting_fetch_does_not_read_the_topic_that_replaced_its_own(tmp_path):
    """A topic deleted and created again during the wait ends it with UNKNOWN_TOPIC_ID."""
    async with KafkaServices(tmp_path) as services:
        old = UUID((await services.create("t")).id)
        waiting = await begin_waiting(services, fetch_request(old, max_wait_ms=60_000))
        await services.topics.delete("t")
        await services.create("t")
        await services.write("t", [b"of the new topic"])
        (answer,) = (await asyncio.wait_for(waiting, 20)).topics
        assert answer.partitions[0].error_code == Code.UNKNOWN_TOPIC_ID
        assert not answer.partitions[0].records


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (0, 0), (1, 70), (9, 70)])
async def test_a_session_that_was_never_opened_cannot_be_continued(tmp_path, epoch, code):
    """Only epochs 0 and -1 begin in full; others get FETCH_SESSION_ID_NOT_FOUND, so they do too."""
    async with KafkaServices(tmp_path) as services:
        request = FetchRequest(session_id=5, session_epoch=epoch)
        answer = await services.ask(request, 16)
        assert (answer.error_code, answer.session_id) == (code, 0)


@pytest.mark.parametrize("name", [None, "", "other"])
async def test_metadata_describes_a_topic_by_its_id(tmp_path, name):
    """From version 12 on, an id decides whatever the name is; nothing is created."""
    async with KafkaServices(tmp_path) as services:
        topic_id = UUID((await services.create("t")).id)
        unknown = uuid4()
        wanted = [MetadataRequestTopic(each, name) for each in (topic_id, unknown)]
        found, missing = (await services.ask(MetadataRequest(wanted))).topics
        assert (found.error_code, found.name, found.topic_id) == (Code.NONE, "t", topic_id)
        assert (missing.error_code, missing.topic_id) == (Code.UNKNOWN_TOPIC_ID, unknown)
        assert missing.name is None
        assert list(services.topics.all()) == ["t"]
