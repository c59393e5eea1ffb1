"""Kafka requests for partitions that have not been opened since start-up."""

from __future__ import annotations

import asyncio
import threading

from cordwood.log.files.disk import Files
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.kafka.messages.metadata import MetadataRequest
from cordwood.protocol.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from support.kafka_services import KafkaServices
from support.stores import append, open_store

COUNT = 6


class WatchedFiles(Files):
    """Records the threads on which files are opened."""

    def __init__(self):
        self.threads = []

    def open_existing(self, path):
        self.threads.append(threading.current_thread())
        return super().open_existing(path)


def prepared(path):
    store = open_store(path)
    store.create_topic("t", COUNT)
    for partition in store.partitions("t"):
        append(partition, "x", "y")
    store.close()


def damage(path, number):
    file = path / f"t-{number}" / "00000000000000000000.log"
    file.write_bytes(file.read_bytes()[:-1])


def fetch(*numbers, isolation_level=0):
    parts = [FetchPartition(number, fetch_offset=0) for number in numbers]
    topics = [FetchTopic("t", partitions=parts)]
    return FetchRequest(-1, 0, 1, 1 << 20, isolation_level, topics=topics)


def test_metadata_of_all_topics_opens_none(tmp_path):
    """Leaders and epochs come from the catalog, so no partition is opened."""
    prepared(tmp_path)

    async def story():
        async with KafkaServices(tmp_path, eager=0) as services:
            reply = await services.ask(MetadataRequest(None))
            (topic,) = reply.topics
            assert [part.error_code for part in topic.partitions] == [0] * COUNT
            assert len(services.store.unopened()) == COUNT

    asyncio.run(story())


def test_a_fetch_opens_what_it_asks_for_off_the_loop(tmp_path):
    """A fetch opens only the requested partitions. Both isolation levels return their records."""
    prepared(tmp_path)

    async def story():
        files = WatchedFiles()
        async with KafkaServices(tmp_path, eager=0, files=files) as services:
            files.threads.clear()
            for number, level in ((1, 0), (2, 1)):
                reply = await services.ask(fetch(number, isolation_level=level))
                (part,) = reply.topics[0].partitions
                assert (part.error_code, part.high_watermark) == (0, 2)
                assert part.records
            assert len(services.store.unopened()) == COUNT - 2
            assert threading.current_thread() not in files.threads

    asyncio.run(story())


def test_a_fetch_of_a_damaged_one_has_its_error_and_its_neighbours_records(tmp_path):
    """Newly found damage is an error of that partition only, not of the whole request."""
    prepared(tmp_path)
    damage(tmp_path, 1)

    async def story():
        async with KafkaServices(tmp_path, eager=0) as services:
            reply = await services.ask(fetch(0, 1, 2))
            codes = [part.error_code for part in reply.topics[0].partitions]
            assert codes == [0, 56, 0]
            assert [bool(part.records) for part in reply.topics[0].partitions] == [1, 0, 1]

    asyncio.run(story())


def test_offsets_of_all_partitions_are_listed_whether_they_were_open_or_not(tmp_path):
    """The reply lists all partitions; one that cannot be opened has an error."""
    prepared(tmp_path)
    damage(tmp_path, 4)

    async def story():
        async with KafkaServices(tmp_path, eager=0) as services:
            wanted = [ListOffsetsPartition(number, timestamp_ms=-1) for number in range(COUNT)]
            request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic("t", wanted)])
            listed = (await services.ask(request)).topics[0].partitions
            assert [part.offset for part in listed] == [2, 2, 2, 2, -1, 2]
            assert listed[4].error_code == 56

    asyncio.run(story())


def test_producing_to_an_unopened_partition_keeps_the_order_of_requests(tmp_path):
    """The writer thread opens the partition, and later requests wait in its queue."""
    prepared(tmp_path)

    async def story():
        files = WatchedFiles()
        async with KafkaServices(tmp_path, eager=0, files=files) as services:
            files.threads.clear()
            first = asyncio.ensure_future(services.write("t", [b"1", b"2"], partition=3))
            second = asyncio.ensure_future(services.write("t", [b"3"], partition=3))
            assert [(await first).base_offset, (await second).base_offset] == [2, 4]
            assert threading.current_thread() not in files.threads

    asyncio.run(story())
