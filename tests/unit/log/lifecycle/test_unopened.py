"""Lazily opened partitions: start-up opens none of many, and the first use opens one once."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cordwood.errors import PartitionOffline, TooManyOpenFiles, TopicExists
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.store import EAGER_MAX
from cordwood.log.read.published_offsets import read_published_offsets
from cordwood.log.write.partition import Partition
from cordwood.log.write.tail import UnqueuedBatches
from cordwood.model import TopicPartition
from support.crash import CrashFiles
from support.stores import a_batch, append, open_store, values_in

TPS = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def data(tmp_path):
    """One topic with four partitions and a record in each; closed cleanly."""
    store = open_store(tmp_path / "data")
    store.create_topic("t", len(TPS))
    for tp in TPS:
        append(store.partition(tp), f"v{tp.partition}")
    store.close()
    return store.data


@pytest.fixture
def lazy(data):
    store = open_store(data, eager=0)
    yield store
    store.close()


def opened(store):
    return [partition.tp.partition for partition in store.partitions("t")]


def damage(data, number):
    """Flip a byte that was synced at the last clean close."""
    path = data / f"t-{number}" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)


def test_a_start_opens_no_partition_of_many(data):
    """With many partitions, start-up touches none of their files; the catalog describes them."""
    files = CrashFiles(data)
    store = open_store(data, files, eager=len(TPS) - 1)
    assert opened(store) == []
    assert len(store.unopened()) == len(TPS)
    assert store.topic("t").partition_count == len(TPS)
    assert store.partition(TPS[0]).leader_epoch == 1
    touched = {e.path.parent.name for e in files.effects} | {e.path.name for e in files.effects}
    assert not touched & {str(tp) for tp in TPS}
    store.close()


def test_a_start_opens_all_of_a_few(data):
    """With few partitions, start-up opens all of them and so detects damage before serving."""
    damage(data, 2)
    store = open_store(data)
    assert opened(store) == [0, 1, 3]
    assert list(store.offline) == [TPS[2]]
    assert len(TPS) <= EAGER_MAX
    store.close()


def test_the_first_read_opens_the_partition_it_needs(lazy):
    """A read opens its partition and no other; the opened one is an ordinary ``Partition``."""
    assert values_in(lazy.partition(TPS[1])) == {0: "v1"}
    assert opened(lazy) == [1]
    assert type(lazy.partition(TPS[1])) is Partition


def test_the_first_append_opens_the_partition_it_needs(lazy):
    """An append is not taken inline by an unopened partition; it opens the partition first."""
    partition = lazy.partition(TPS[3])
    assert not partition.takes_at_once([])
    assert not partition.is_open
    append(partition, "more")
    assert values_in(partition) == {0: "v3", 1: "more"}
    assert opened(lazy) == [3]


def test_a_torn_tail_is_cut_before_anything_is_appended_or_read(data):
    """The first use of a partition runs recovery, which copies a torn tail aside and cuts it."""
    path = data / "t-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    (data / "t-0" / "segment-facts-checkpoint").unlink()
    path.write_bytes(whole + a_batch({1: "never acknowledged"})[:70])
    store = open_store(data, eager=0)
    partition = store.partition(TPS[0])
    append(partition, "after")
    assert partition.recovery.cut_bytes == 70
    assert values_in(partition) == {0: "v0", 1: "after"}
    assert list((data / "t-0").glob("*.torn-*"))
    store.close()


def test_many_threads_open_a_partition_once(data):
    """Concurrent first uses share one recovery and see the same partition."""
    began, goes_on = threading.Event(), threading.Event()

    class SlowFiles(Files):
        opens = 0

        def open_existing(self, path):
            if path.name.endswith(".log"):
                SlowFiles.opens += 1
                began.set()
                assert goes_on.wait(30)
            return super().open_existing(path)

    store = open_store(data, SlowFiles(), eager=0)
    partition = store.partition(TPS[0])
    with ThreadPoolExecutor(8) as pool:
        ends = [pool.submit(lambda: partition.high_watermark) for _ in range(8)]
        assert began.wait(30)
        goes_on.set()
        assert [end.result(30) for end in ends] == [1] * 8
    assert SlowFiles.opens == 1
    store.close()


def test_damage_takes_it_offline_when_it_is_opened_and_the_rest_serves(data, caplog):
    """Damage found at the first use takes that partition offline; the other partitions serve."""
    damage(data, 1)
    store = open_store(data, eager=0)
    assert not store.offline
    first = store.partition(TPS[1])
    with pytest.raises(PartitionOffline, match="t-1 is offline"):
        values_in(first)
    assert list(store.offline) == [TPS[1]]
    with pytest.raises(PartitionOffline):
        store.partition(TPS[1])
    with pytest.raises(PartitionOffline):
        first.load()
    assert [r.getMessage().split()[0] for r in caplog.records if r.levelname == "ERROR"] == [
        "partition.offline"
    ]
    assert values_in(store.partition(TPS[2])) == {0: "v2"}
    store.close()


def test_appends_to_what_cannot_be_opened_all_fail_with_the_reason(data):
    """Every append to a partition that cannot be opened gets PartitionOffline as its outcome."""
    damage(data, 1)
    store = open_store(data, eager=0)
    outcomes = store.partition(TPS[1]).append_all(
        [UnqueuedBatches(bytearray(), [], strict=True)] * 3
    )
    assert [type(outcome) for outcome in outcomes] == [PartitionOffline] * 3
    store.close()


def test_running_out_of_descriptors_is_no_reason_to_be_offline(data):
    """TooManyOpenFiles does not take a partition offline; a later use opens it."""

    class Few(Files):
        left = 0

        def open_existing(self, path):
            if path.name.endswith(".log") and not Few.left:
                raise TooManyOpenFiles(os.strerror(errno.EMFILE))
            return super().open_existing(path)

    store = open_store(data, Few(), eager=0)
    with pytest.raises(TooManyOpenFiles):
        values_in(store.partition(TPS[0]))
    assert not store.offline
    Few.left = 1
    assert values_in(store.partition(TPS[0])) == {0: "v0"}
    store.close()


def test_a_topic_nobody_opened_can_be_altered_and_deleted(lazy):
    """An unopened topic can be altered and deleted; after its deletion it cannot be opened."""
    lazy.alter_topic("t", {"retention.ms": 1234})
    assert lazy.partition(TPS[0]).config.retention_ms == 1234
    lazy.partition(TPS[0]).load()
    assert lazy.partition(TPS[0]).config.retention_ms == 1234
    unopened = lazy.partition(TPS[1])
    lazy.delete_topic("t")
    assert not list(lazy.data.glob("t-*"))
    with pytest.raises(PartitionOffline, match="deleted"):
        values_in(unopened)
    lazy.create_topic("t", 1)
    assert values_in(lazy.partition(TPS[0])) == {}


def test_a_name_whose_files_are_there_stays_taken(lazy):
    """A topic cannot be created if an unopened topic has the same name."""
    with pytest.raises(TopicExists):
        lazy.create_topic("t", 1)


def test_a_stop_touches_nothing_that_was_not_opened(data):
    """Closing the store touches only the partitions that were opened."""
    files = CrashFiles(data)
    store = open_store(data, files, eager=0)
    append(store.partition(TPS[2]), "new")
    store.close()
    touched = {e.path.parent.name for e in files.effects} | {e.path.name for e in files.effects}
    assert touched & {str(tp) for tp in TPS} == {"t-2"}
    again = open_store(data, eager=0)
    assert [values_in(again.partition(tp)) for tp in TPS] == [
        {0: "v0"},
        {0: "v1"},
        {0: "v2", 1: "new"},
        {0: "v3"},
    ]
    again.close()


def test_marks_of_an_unopened_partition_are_those_of_its_last_run(lazy):
    """The published offsets of an unopened partition are those of its last run.

    Spark reads the files up to these offsets.
    """
    assert read_published_offsets(lazy.data / "t-0").high_watermark == 1
    assert opened(lazy) == []
