"""A monitor round over many partitions submits only due work to the writer thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from cordwood.broker.jobs.archive import ArchiveService
from cordwood.broker.monitor import Monitor
from cordwood.config import BrokerConfig
from cordwood.decide.roll import RollReason
from cordwood.metadata.front import AsyncMetadata
from support.clock import ManualClock
from support.stores import append, open_store


class CountingTopics:
    """A fake topic service for the monitor; counts the calls on the writer."""

    def __init__(self, store):
        self.store = store
        self.asked = 0

    async def sync_overdue(self):
        """No partition has flush.ms."""

    async def on_writer(self, change):
        self.asked += 1
        return change()


@pytest.fixture
def round_of(tmp_path):
    """A store, its clock, and a function that runs one round and counts the calls on the writer."""
    clock = ManualClock()
    store = open_store(tmp_path / "data", clock=clock)
    topics = CountingTopics(store)
    with ThreadPoolExecutor(1) as background:
        monitor = Monitor(
            BrokerConfig(),
            store,
            topics,
            clock,
            background,
            archive=ArchiveService(store, AsyncMetadata(store.metadata)),
        )

        def look():
            topics.asked = 0
            asyncio.run(monitor.run_round())
            return topics.asked

        yield store, clock, look
    store.close()


def test_a_round_over_idle_partitions_asks_nothing_of_the_writer(round_of):
    """A round over idle partitions uses no time of the writer thread."""
    store, _, look = round_of
    store.create_topic("t", 5, {"retention.ms": -1})  # the timestamps in these tests are old
    for partition in store.partitions("t"):
        append(partition, "x")
    assert look() == 0


def test_what_is_due_is_cut_dropped_and_purged(round_of):
    """A due segment is sealed and dropped, and its files are purged after the delay."""
    store, clock, look = round_of
    settings = {"retention.ms": 1000, "segment.ms": 500, "file.delete.delay.ms": 50}
    store.create_topic("t", 3, settings)
    partition = store.topic("t").partition(1)
    append(partition, "x")
    clock.advance(10_000_000_000_000)
    assert look() >= 1
    assert partition.log_start_offset == 1
    clock.advance(100)
    look()
    assert not list(partition.directory.glob("*.deleted"))
    assert look() == 0


def test_an_unopened_partition_is_left_to_be_opened_first(round_of, tmp_path):
    """The monitor opens no partition; it handles only open ones."""
    store, _, _ = round_of
    store.create_topic("t", 3)
    append(store.topic("t").partition(0), "x")
    store.segments.roll(store.topic("t").partition(0), RollReason.DEMAND)
    store.close()
    again = open_store(store.data, eager=0)
    with ThreadPoolExecutor(1) as background:
        topics = CountingTopics(again)
        monitor = Monitor(
            BrokerConfig(), again, topics, ManualClock(), background,
            archive=ArchiveService(again, AsyncMetadata(again.metadata)),
        )  # fmt: skip
        asyncio.run(monitor.run_round())
    assert (topics.asked, len(again.unopened())) == (0, 3)
    again.close()
