"""Topics created in one call share their syncs, and a failure of one does not affect the others."""

from __future__ import annotations

from collections import Counter
from uuid import UUID, uuid4

import pytest

from cordwood.errors import (
    CordwoodError,
    DiskFull,
    InvalidConfig,
    InvalidTopic,
    PartitionOffline,
    TopicExists,
)
from cordwood.log.files.disk import Files
from cordwood.log.format.layout import parse_metadata
from cordwood.log.health.registry import Condition
from cordwood.log.lifecycle.live_topics import LiveTopic, NewTopic
from cordwood.metadata.keys import Topic
from cordwood.metadata.sqlite import SqliteStore
from cordwood.model import TopicPartition
from support.stores import append, open_store, values_in


class CountedFiles(Files):
    """Counts effects by name, and simulates a full disk on demand."""

    is_full = False

    def __init__(self):
        self.seen = Counter()

    def effect(self, name, path, act):
        """Count the effect, then perform it; fail on ``mkdir`` if the disk is full."""
        if self.is_full and name == "mkdir":
            raise DiskFull("no space")
        self.seen[name] += 1
        return super().effect(name, path, act)


@pytest.fixture
def files():
    return CountedFiles()


@pytest.fixture
def store(tmp_path, files):
    opened = open_store(tmp_path / "data", files)
    yield opened
    opened.close()


def test_many_topics_cost_no_more_syncs_than_one(store, files, monkeypatch):
    """Creating 50 topics takes one metadata transaction and one directory sync."""
    steps = []
    txn = SqliteStore.txn
    monkeypatch.setattr(SqliteStore, "txn", lambda *a, **how: steps.append(how) or txn(*a, **how))
    files.seen.clear()
    made = store.create_topics([NewTopic(f"t{n}", 2, {}) for n in range(50)])
    assert all(isinstance(topic, LiveTopic) for topic in made)
    assert len(steps) == 1
    assert (files.seen["sync_dir"], files.seen["sync_data"]) == (1, 0)
    assert files.seen["mkdir"] == 100


def test_each_topic_is_created_or_refused_on_its_own(store):
    """Each invalid or repeated topic gets its own error, and the valid topics are created."""
    store.create_topic("old", 1)
    wanted = [
        NewTopic("a", 1, {}),
        NewTopic("old", 1, {}),
        NewTopic("no/name", 1, {}),
        NewTopic("b", 1, {"no.such.setting": 1}),
        NewTopic("a", 3, {}),
        NewTopic("c", 2, {"segment.entries": 7}),
    ]
    outcomes = store.create_topics(wanted)
    kinds = [LiveTopic, TopicExists, InvalidTopic, InvalidConfig, TopicExists, LiveTopic]
    assert [type(outcome) for outcome in outcomes] == kinds
    assert sorted(store.topics) == sorted(store.metadata.cluster.topics) == ["a", "c", "old"]
    assert store.topics["a"].partition_count == 1
    assert store.topics["c"].config.segment_entries == 7


def test_a_full_disk_leaves_nothing_of_topics_made_together(store, files):
    """If the disk is full, no topic is recorded, and all can be created once there is space."""
    files.is_full = True
    with pytest.raises(DiskFull):
        store.create_topics([NewTopic("a", 1, {}), NewTopic("b", 1, {})])
    assert not store.topics
    assert not store.metadata.cluster.topics
    files.is_full = False
    made = store.create_topics([NewTopic("a", 1, {}), NewTopic("b", 1, {})])
    assert not [outcome for outcome in made if isinstance(outcome, CordwoodError)]


def test_a_damaged_topic_id_is_written_again(store):
    """A start rewrites a damaged ``partition.metadata``, which is not synced at creation."""
    topic = store.create_topic("t", 1)
    append(topic.partition(0), "a")
    path = topic.partition(0).directory / "partition.metadata"
    assert parse_metadata(path.read_bytes()) == UUID(topic.id)
    store.close()
    path.write_bytes(bytes(10))
    again = open_store(store.data)
    assert parse_metadata(path.read_bytes()) == UUID(topic.id)
    assert values_in(again.topic("t").partition(0)) == {0: "a"}
    again.close()


def test_a_directory_that_cannot_be_made_stops_no_start(tmp_path, files):
    """A partition whose directory cannot be created is offline; the other topics are served."""
    opened = open_store(tmp_path / "data", files)
    opened.create_topic("old", 1)
    append(opened.partition(TopicPartition("old", 0)), "a")
    opened.metadata.cluster.create_topics([Topic("new", str(uuid4()), 1, {}, 0)])
    opened.close()
    files.is_full = True
    opened = open_store(tmp_path / "data", files)
    assert values_in(opened.partition(TopicPartition("old", 0))) == {0: "a"}
    with pytest.raises(PartitionOffline, match="accept-loss"):
        opened.partition(TopicPartition("new", 0)).segments()
    assert Condition.OFFLINE in opened.health.conditions(TopicPartition("new", 0))
    opened.close()
