"""Fetch reads on the loop what waits for no disk, and nothing else."""

from __future__ import annotations

import asyncio

from cordwood.broker.kafka.fetch import LOOP_BYTES
from cordwood.broker.kafka.unsent_replies import REPLY_BYTES_MIN, UNSENT_BYTES_MAX, UnsentReplies
from cordwood.decide.roll import RollReason
from cordwood.log.read import segment
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.kafka_services import SESSION, KafkaServices

BATCH_BYTES = 200_000
BATCHES = 12


def a_request(*wanted, bytes_max=LOOP_BYTES, min_bytes=1, max_wait_ms=0):
    """Of ``(topic, offset)``, each of partition 0."""
    topics = [
        FetchTopic(topic, [FetchPartition(0, fetch_offset=at, partition_max_bytes=bytes_max)])
        for topic, at in wanted
    ]
    return FetchRequest(-1, max_wait_ms, min_bytes, 50 * 2**20, 0, topics=topics)


def begin(services, request):
    """What the handler gives: a future that is done, or something to wait for."""
    return services.handlers["Fetch"](request, 12, SESSION)


def is_at_once(answer):
    return isinstance(answer, asyncio.Future) and answer.done()


def counts(response):
    """How many batches of each topic."""
    return [len(topic.partitions[0].records) // BATCH_BYTES for topic in response.topics]


async def fill(services, topic):
    """A sealed segment of a dozen batches, its index in files."""
    created = await services.create(topic)
    for _ in range(BATCHES):
        await services.write(topic, [b"v" * BATCH_BYTES])
    partition = created.partition(0)
    partition.roll(RollReason.DEMAND)
    return partition


async def test_history_in_the_page_cache_is_read_on_the_loop_once_its_place_is_known(disk_path):
    """The first read asks an index in a file, on another thread; who goes on gets it at once."""
    async with KafkaServices(disk_path) as services:
        await fill(services, "t")
        first = begin(services, a_request(("t", 0)))
        assert not is_at_once(first)
        assert counts(await first) == [5]
        second = begin(services, a_request(("t", 5)))
        assert is_at_once(second)
        assert counts(await second) == [5]


async def test_what_left_the_page_cache_is_read_on_another_thread(disk_path, monkeypatch):
    """A slow disk delays nobody else. The test answers for the kernel: a fast disk may be done."""
    async with KafkaServices(disk_path) as services:
        await fill(services, "t")
        await begin(services, a_request(("t", 0)))
        monkeypatch.setattr(segment, "is_resident", lambda _fd, _start, _end: False)
        second = begin(services, a_request(("t", 5)))
        assert not is_at_once(second)
        assert counts(await second) == [5]


async def test_one_reply_reads_no_more_than_its_share_on_the_loop(disk_path):
    """However many partitions are asked for; the client asks again for the rest."""
    async with KafkaServices(disk_path) as services:
        names = ["a", "b", "c"]
        for name in names:
            await fill(services, name)
            await begin(services, a_request((name, 0)))
        answer = begin(services, a_request(*((name, 5) for name in names)))
        assert is_at_once(answer)
        assert counts(await answer) == [5, 1, 0]


async def test_cold_and_cached_partitions_come_in_one_reply_in_order(disk_path):
    """Reading goes on elsewhere where it must; what was read before is kept."""
    async with KafkaServices(disk_path) as services:
        for name in ("cached", "cold"):
            await fill(services, name)
        await begin(services, a_request(("cached", 0), bytes_max=300_000))
        answer = begin(services, a_request(("cached", 1), ("cold", 0), bytes_max=300_000))
        assert not is_at_once(answer)
        response = await answer
        assert [topic.name for topic in response.topics] == ["cached", "cold"]
        assert counts(response) == [1, 1]


def test_a_reply_shrinks_with_what_is_unsent_and_never_to_nothing():
    """A quarter of what is left for all; a reader gets on however much others leave lying."""
    outgoing = UnsentReplies()
    assert outgoing.share_bytes == UNSENT_BYTES_MAX // 4
    outgoing.unsent_bytes = UNSENT_BYTES_MAX // 2
    assert outgoing.share_bytes == UNSENT_BYTES_MAX // 8
    outgoing.unsent_bytes = 2 * UNSENT_BYTES_MAX
    assert outgoing.share_bytes == REPLY_BYTES_MIN
