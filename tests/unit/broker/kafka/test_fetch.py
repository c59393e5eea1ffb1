"""Fetch reads on the event loop only if no disk access is needed."""

from __future__ import annotations

import asyncio

from cordwood.broker.kafka.fetch_plan import LOOP_BYTES
from cordwood.broker.kafka.unsent_replies import REPLY_BYTES_MIN, UNSENT_BYTES_MAX, UnsentReplies
from cordwood.decide.roll import RollReason
from cordwood.log.read import segment
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.kafka_services import SESSION, KafkaServices

BATCH_BYTES = 200_000
BATCHES = 12


def a_request(*wanted, bytes_max=LOOP_BYTES, min_bytes=1, max_wait_ms=0):
    """Return a fetch request for partition 0 of each ``(topic, offset)``."""
    topics = [
        FetchTopic(
            topic, partitions=[FetchPartition(0, fetch_offset=at, partition_max_bytes=bytes_max)]
        )
        for topic, at in wanted
    ]
    return FetchRequest(-1, max_wait_ms, min_bytes, 50 * 2**20, 0, topics=topics)


def begin(services, request):
    """Call the handler; return its completed future or an awaitable."""
    return services.handlers["Fetch"](request, 12, SESSION)


def is_at_once(answer):
    return isinstance(answer, asyncio.Future) and answer.done()


def counts(response):
    """Return the number of batches per topic."""
    return [len(topic.partitions[0].records) // BATCH_BYTES for topic in response.topics]


async def fill(services, topic):
    """Fill a topic with one sealed segment of twelve batches; its index is in a file."""
    created = await services.create(topic)
    for _ in range(BATCHES):
        await services.write(topic, [b"v" * BATCH_BYTES])
    partition = created.partition(0)
    partition.roll(RollReason.DEMAND)
    return partition


async def test_history_in_the_page_cache_is_read_on_the_loop_once_its_place_is_known(disk_path):
    """The first read needs the index file, so a thread does it. The next read runs on the loop."""
    async with KafkaServices(disk_path) as services:
        await fill(services, "t")
        first = begin(services, a_request(("t", 0)))
        assert not is_at_once(first)
        assert counts(await first) == [5]
        second = begin(services, a_request(("t", 5)))
        assert is_at_once(second)
        assert counts(await second) == [5]


async def test_what_left_the_page_cache_is_read_on_another_thread(disk_path, monkeypatch):
    """A read from disk does not block the event loop. The test fakes the page cache lookup."""
    async with KafkaServices(disk_path) as services:
        await fill(services, "t")
        await begin(services, a_request(("t", 0)))
        monkeypatch.setattr(segment, "is_resident", lambda _fd, _start, _end: False)
        second = begin(services, a_request(("t", 5)))
        assert not is_at_once(second)
        assert counts(await second) == [5]


async def test_one_reply_reads_no_more_than_its_share_on_the_loop(disk_path):
    """One reply is limited to its share for all partitions; the client fetches the rest later."""
    async with KafkaServices(disk_path) as services:
        names = ["a", "b", "c"]
        for name in names:
            await fill(services, name)
            await begin(services, a_request((name, 0)))
        answer = begin(services, a_request(*((name, 5) for name in names)))
        assert is_at_once(answer)
        assert counts(await answer) == [5, 1, 0]


async def test_cold_and_cached_partitions_come_in_one_reply_in_order(disk_path):
    """A thread continues at the first cold partition and keeps what was already read."""
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
    """A reply gets a quarter of the free capacity for unsent replies, but at least a minimum."""
    outgoing = UnsentReplies()
    assert outgoing.share_bytes == UNSENT_BYTES_MAX // 4
    outgoing.unsent_bytes = UNSENT_BYTES_MAX // 2
    assert outgoing.share_bytes == UNSENT_BYTES_MAX // 8
    outgoing.unsent_bytes = 2 * UNSENT_BYTES_MAX
    assert outgoing.share_bytes == REPLY_BYTES_MIN
