"""Operations on both parts of the metadata, and the async interface to them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cordwood.errors import (
    TopicExists,
    UnknownReader,
)
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import Cursor, ReaderPartition, key
from cordwood.model import TopicPartition
from support.metadata import TP, OpenedMetadata, a_bundle, a_topic, an_entry


@pytest.fixture
def opened(tmp_path):
    opened = OpenedMetadata(tmp_path / "meta.db")
    yield opened
    opened.metadata.close()


def test_deleting_a_topic_takes_everything_known_of_it(opened):
    """Deleting a topic removes its cursors, readers, segments, history, log starts and epochs."""
    for name in ("t", "t2"):
        tp = TopicPartition(name, 0)
        opened.cluster.create_topics([a_topic(name)])
        opened.readers.commit_cursors({ReaderPartition("r", *tp): Cursor(3)})
        opened.readers.register_reader(name, "r", 1)
        opened.cluster.put_segments(tp, [an_entry(0, 10)])
        opened.cluster.begin_swap(tp, {"job": "a"})
        opened.cluster.finish_swap(tp, "job", [0], [an_entry(0, 10)])
        opened.cluster.begin_swap(tp, {"job": "b"})
        opened.cluster.set_log_start(tp, 2)
    topic = opened.metadata.begin_delete("t")
    assert opened.cluster.deleting == {"t": topic}
    left = [kv.key for kv in opened.store.range("")[1] if "/t/" in kv.key or kv.key.endswith("/t")]
    assert left == [key("deleting", "t")]
    assert opened.cluster.log_start(TopicPartition("t2", 0)) == 2
    with pytest.raises(TopicExists):
        opened.cluster.create_topics([a_topic()])
    opened.cluster.finish_delete("t")
    opened.cluster.create_topics([a_topic()])
    assert opened.readers.cursor(ReaderPartition("r", *TP)) is None
    assert opened.readers.registered("t") == {}
    assert opened.cluster.segments(TP).entries() == []
    opened.assert_survives()


def test_bundles_go_with_their_topic(opened):
    """Deleting a topic removes its bundles, so a new topic of the same name has none."""
    opened.cluster.create_topics([a_topic()])
    opened.cluster.put_bundles(TP, [a_bundle(0, 10)])
    opened.metadata.begin_delete(TP.topic)
    assert opened.cluster.bundles(TP).entries() == []
    opened.assert_survives()


@pytest.fixture
def metadata(opened):
    front = AsyncMetadata(opened.metadata)
    yield front
    front.close()


async def test_a_change_is_visible_when_its_call_returns(metadata):
    """The awaited call returns the result of the change after the change is visible."""
    assert await metadata.run(metadata.readers.new_producer_id) == 0
    await metadata.run(metadata.readers.put_replay, "r", {"state": "running"})
    assert metadata.readers.replays == {"r": {"state": "running"}}


async def test_a_refused_change_raises_its_own_error(metadata):
    """Errors reach the caller unchanged, and later changes still run."""
    with pytest.raises(UnknownReader):
        await metadata.run(metadata.readers.unregister_reader, "t", "nobody")
    assert await metadata.run(metadata.readers.new_producer_id) == 0


async def test_changes_run_in_the_order_of_their_calls(metadata):
    """Changes run in the order of their calls, whichever is awaited first."""
    order = []
    calls = [metadata.run(order.append, number) for number in range(20)]
    await asyncio.gather(*reversed(calls))
    assert order == list(range(20))


async def test_the_event_loop_runs_while_a_change_waits(metadata):
    """A change that blocks on the disk does not block the event loop."""
    release = threading.Event()
    blocked = metadata.run(release.wait, 30)
    await asyncio.to_thread(lambda: None)  # the event loop runs during the change
    release.set()
    assert await blocked


async def test_closing_waits_for_changes_that_nobody_awaits(metadata):
    """Closing waits for submitted changes, even if nothing awaits them."""
    release = threading.Event()
    metadata.run(release.wait, 30)
    left = metadata.run(metadata.readers.put_group, "g", "consumer")
    release.set()
    metadata.close()
    assert metadata.readers.groups == {"g": "consumer"}
    await left
