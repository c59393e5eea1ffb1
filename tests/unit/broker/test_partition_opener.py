"""Partitions are opened off the event loop: on request, and all of them in the background."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cordwood.broker.partition_opener import BATCH, PartitionOpener
from cordwood.errors import PartitionOffline
from cordwood.log.files.disk import Files
from cordwood.model import TopicPartition
from support.stores import append, open_store

COUNT = 2 * BATCH + 3


class WatchedFiles(Files):
    """Records the threads on which active segments are opened."""

    def __init__(self):
        self.threads = []

    def open_existing(self, path):
        if path.name.endswith(".log"):
            self.threads.append(threading.current_thread())
        return super().open_existing(path)


@pytest.fixture
def data(tmp_path):
    store = open_store(tmp_path / "data")
    store.create_topic("t", COUNT)
    for partition in store.partitions("t"):
        append(partition, "x")
    store.close()
    return store.data


def damage(data, number):
    path = data / f"t-{number}" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1])


def opening(store):
    """Return an opener that the test must close."""
    return PartitionOpener(store)


def test_whoever_waits_has_it_opened_on_another_thread_once(data):
    """Partitions are opened off the event loop's thread; concurrent requests share one open."""
    files = WatchedFiles()
    store = open_store(data, files, eager=0)
    opener = opening(store)
    partition = store.partition(TopicPartition("t", 5))

    async def both():
        await asyncio.gather(opener.open(partition), opener.open(partition))

    asyncio.run(both())
    assert partition.is_open
    assert len(files.threads) == 1
    assert files.threads[0] is not threading.current_thread()
    opener.close()
    store.close()


def test_requests_that_wait_for_a_damaged_partition_fail_with_its_error(data):
    """Opening a damaged partition raises its error and leaves no open in progress."""
    damage(data, 5)
    store = open_store(data, eager=0)
    opener = opening(store)
    with pytest.raises(PartitionOffline):
        asyncio.run(opener.open(store.partition(TopicPartition("t", 5))))
    assert not opener._under_way
    opener.close()
    store.close()


def test_all_are_opened_in_time_and_damage_holds_up_no_other(data):
    """The background run opens all partitions and finds damage before any read."""
    damage(data, 3)
    files = WatchedFiles()
    store = open_store(data, files, eager=0)
    opener = opening(store)
    batches = []
    opener.on_batch = lambda: batches.append(len(store.partitions("t")))
    asyncio.run(opener.run())
    assert not store.unopened()
    assert list(store.offline) == [TopicPartition("t", 3)]
    assert len(store.partitions("t")) == COUNT - 1
    assert batches == [BATCH - 1, 2 * BATCH - 1, COUNT - 1]
    assert threading.current_thread() not in files.threads
    opener.close()
    store.close()


def test_a_mistake_of_ours_in_one_holds_up_no_other(data, caplog):
    """An unexpected error in one partition is logged, and the others are opened."""

    class Wrong(Files):
        def open_existing(self, path):
            if path.parent.name == "t-4":
                raise ZeroDivisionError
            return super().open_existing(path)

    store = open_store(data, Wrong(), eager=0)
    opener = opening(store)
    asyncio.run(opener.run())
    assert [partition.tp.partition for partition in store.unopened()] == [4]
    assert "partition.open_failed partition=t-4" in caplog.text
    opener.close()
    store.close()


def test_a_topic_deleted_meanwhile_is_passed_over(data):
    """Partitions of a topic deleted during the run are skipped."""
    store = open_store(data, eager=0)
    opener = opening(store)
    opener.on_batch = lambda: store.delete_topic("t") if "t" in store.topics else None
    asyncio.run(opener.run())
    assert not list(data.glob("t-*"))
    assert not store.offline
    opener.close()
    store.close()
