"""Cluster metadata: topics, epochs, segments, bundles and bindings, also after a restart."""

from __future__ import annotations

import pytest

from cordwood.decide.routing import Bindings
from cordwood.errors import (
    TopicExists,
    UnknownTopic,
)
from cordwood.metadata.front import Metadata
from cordwood.model import SegmentState, TopicPartition
from support.metadata import TP, OpenedMetadata, a_bundle, a_topic, an_entry


@pytest.fixture
def opened(tmp_path):
    opened = OpenedMetadata(tmp_path / "meta.db")
    yield opened
    opened.metadata.close()


def test_a_topic_is_there_after_a_restart(opened):
    """A topic keeps its ID, partitions and settings."""
    topic = a_topic(**{"retention.ms": "5"})
    opened.cluster.create_topics([topic])
    assert opened.again().cluster.topic("t") == topic
    opened.assert_survives()


def test_a_topic_is_created_once(opened):
    """Creating a topic that exists fails and leaves the first topic unchanged."""
    opened.cluster.create_topics([a_topic()])
    with pytest.raises(TopicExists):
        opened.cluster.create_topics([a_topic(partitions=9)])
    assert opened.cluster.topic("t").partitions == 2


def test_an_unknown_topic_is_named(opened):
    """The error names the unknown topic."""
    with pytest.raises(UnknownTopic, match="nope"):
        opened.cluster.topic("nope")


def test_every_start_is_a_new_term(opened):
    """Leader epochs start at 0 and increase by one per start; added partitions start at 0."""
    opened.cluster.create_topics([a_topic(partitions=1)])
    assert opened.cluster.leader_epoch(TP) == 0
    opened.cluster.begin_terms()
    opened.cluster.alter_topic(a_topic(partitions=2))
    assert opened.cluster.leader_epoch(TP) == 1
    assert opened.cluster.leader_epoch(TopicPartition("t", 1)) == 0
    opened.assert_survives()


def test_the_log_start_never_moves_back(opened):
    """The log start only increases, so deleted records do not come back."""
    opened.cluster.create_topics([a_topic()])
    opened.cluster.set_log_start(TP, 10)
    opened.cluster.set_log_start(TP, 4)
    assert opened.cluster.log_start(TP) == 10
    opened.assert_survives()


def test_segments_are_found_by_offset(opened):
    """The index finds the segment that holds an offset, and none in gaps or past the last one."""
    opened.cluster.create_topics([a_topic()])
    opened.cluster.put_segments(TP, [an_entry(20, 30), an_entry(0, 10)])
    index = opened.cluster.segments(TP)
    found = [index.find(offset) for offset in (0, 9, 10, 19, 20, 29, 30)]
    assert [e.base_offset if e else None for e in found] == [0, 0, None, None, 20, 20, None]
    opened.assert_survives()


def test_a_reclaimed_segment_is_remembered(opened):
    """Reclaiming changes the state and the log start in one step; the entry keeps its SHA-256."""
    opened.cluster.create_topics([a_topic()])
    opened.cluster.put_segments(TP, [an_entry(0, 10, sha256="ab"), an_entry(10, 20)])
    before, _ = opened.store.range("")
    opened.cluster.reclaim_segments(TP, [opened.cluster.segments(TP).get(0)], 10)
    assert opened.store.range("")[0] == before + 1
    entry = opened.cluster.segments(TP).find(5)
    assert (entry.state, entry.sha256) == (SegmentState.RECLAIMED, "ab")
    assert opened.cluster.log_start(TP) == 10
    opened.assert_survives()


def test_a_swap_turns_entries_into_history(opened):
    """A swap moves replaced entries to the history; lookups return the new entry."""
    opened.cluster.create_topics([a_topic()])
    opened.cluster.put_segments(TP, [an_entry(0, 10), an_entry(10, 20), an_entry(20, 30)])
    opened.cluster.begin_swap(TP, {"job": "job-1"})
    assert opened.again().cluster.swaps == {TP: {"job": "job-1"}}
    opened.cluster.finish_swap(TP, "job-1", [0, 10], [an_entry(0, 20, sha256="new")])
    assert opened.cluster.swaps == {}
    assert [e.base_offset for e in opened.cluster.segments(TP).entries()] == [0, 20]
    assert opened.cluster.segments(TP).find(15).sha256 == "new"
    past = [entry for _, entry in opened.cluster.replaced_segments(TP)]
    assert [(e.base_offset, e.end_offset, e.state) for e in past] == [
        (0, 10, SegmentState.REPLACED),
        (10, 20, SegmentState.REPLACED),
    ]
    opened.assert_survives()


def test_what_swaps_replaced_is_not_remembered_without_end(opened):
    """The history keeps the last swap's entries and a bounded number of earlier ones."""
    cluster = Metadata(opened.store, replaced_kept=3).cluster
    cluster.create_topics([a_topic()])
    cluster.put_segments(TP, [an_entry(0, 10)])
    for number in range(10):
        cluster.finish_swap(TP, f"job-{9 - number}", [0], [an_entry(0, 10, sha256=str(number))])
    jobs = {text.rsplit("/", 2)[1] for text, _ in cluster.replaced_segments(TP)}
    assert jobs == {"job-0", "job-1", "job-2", "job-3"}
    assert cluster.segments(TP).find(5).sha256 == "9"


def test_bundles_are_found_by_offset(opened):
    """The index finds the bundle that holds an offset, and none outside the archived range."""
    opened.cluster.create_topics([a_topic()])
    assert (opened.cluster.bundles(TP).end, opened.cluster.bundles(TP).find(0)) == (0, None)
    opened.cluster.put_bundles(TP, [a_bundle(10, 20), a_bundle(20, 30)])
    found = [opened.cluster.bundles(TP).find(offset) for offset in (9, 10, 19, 20, 30)]
    assert [b.name if b else None for b in found] == [
        None, "10.tar.gz", "10.tar.gz", "20.tar.gz", None,
    ]  # fmt: skip
    assert opened.cluster.bundles(TP).end == 30
    opened.assert_survives()


def test_the_cluster_keeps_its_id(opened):
    """The cluster ID has 22 characters, as in Kafka, and survives a restart."""
    first = opened.cluster.cluster_id()
    assert len(first) == 22
    assert opened.cluster.cluster_id() == opened.again().cluster.cluster_id() == first
    opened.assert_survives()


def test_bindings_survive_a_restart(opened):
    """Bindings are stored unchanged, survive a restart and can be deleted."""
    opened.cluster.put_route("exact", "a.b", "x")
    opened.cluster.put_route("prefix", "a", "y")
    opened.cluster.put_route("prefix", "gone", "z")
    opened.cluster.delete_route("prefix", "gone")
    opened.assert_survives()
    bindings = opened.again().cluster.bindings("s")
    assert bindings == Bindings(exact={"a.b": "x"}, prefix={"a": "y"}, source="s")
