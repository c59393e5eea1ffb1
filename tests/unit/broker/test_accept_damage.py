"""Accepted damage: still refused to readers, no longer a problem, and it hides no other damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.broker.health import damaged, partition_state, topic_problems
from cordwood.broker.scrub import Scrubber
from cordwood.clock import ManualClock
from cordwood.config import BrokerConfig, changed
from cordwood.errors import DamagedRecords, UnknownSegment
from support.stores import TP, append_sealed, open_store

BATCHES = 4


@pytest.fixture
def store(tmp_path):
    """Two sealed segments of four batches of one record."""
    opened = open_store(tmp_path / "data", clock=ManualClock())
    opened.create_topic("t", 1)
    append_sealed(opened, "abcd", "efgh")
    opened.hash_sealed()
    yield opened
    opened.close()


def a_scrubber(store):
    settings = changed(BrokerConfig(), {"scrub.bytes.per.second": 0})
    return Scrubber(settings, store, ManualClock())


async def scrub(store):
    """Read everything now."""
    scrubber = a_scrubber(store)
    try:
        run = await scrubber.scrub_now(None)
        await scrubber._demanded
    finally:
        scrubber.stop()
    return run


def flip(store, batch, base=4):
    """Change the last byte of one batch of a segment; what the file was."""
    path = store.data / str(TP) / f"{base:020}.log"
    before = path.read_bytes()
    data = bytearray(before)
    data[len(data) // BATCHES * (batch + 1) - 1] ^= 1
    path.write_bytes(data)
    return before


def told(store):
    """Start offsets of the damage that is a problem, and of what was accepted."""
    found = store.health.damaged(), store.health.accepted()
    return tuple([each.start_offset for each in ranges.get(TP, [])] for ranges in found)


async def test_accepted_damage_is_no_problem_and_stays_refused(store):
    """Health is well; the reader gets the same error as before, and the rest."""
    flip(store, 1)
    await scrub(store)
    assert list(damaged(store.health)) == ["t-0"]
    (accepted,) = store.accept_damage(TP, 4)
    assert (accepted.start_offset, accepted.end_offset) == (5, 6)
    assert damaged(store.health) == {}
    assert partition_state(store.health, TP)["state"] == "online"
    (row,) = topic_problems(store.health, "t")
    assert [each["accepted"] for each in row["damage"]] == [True]
    with pytest.raises(DamagedRecords):
        store.partition(TP).read(5, 1)
    assert store.partition(TP).read(6, 1).next_offset == 7


async def test_acceptance_outlives_a_scrub_and_a_restart(store):
    """It is kept with the segment's entry in the index."""
    flip(store, 1)
    await scrub(store)
    store.accept_damage(TP, 4)
    run = await scrub(store)
    assert [row["accepted"] for row in run.damaged] == [True]
    assert told(store) == ([], [5])
    store.close()
    again = open_store(store.data, clock=ManualClock())
    scrubber = a_scrubber(again)
    scrubber._remember_damage()
    assert told(again) == ([], [5])
    scrubber.stop()
    await scrub(again)
    assert told(again) == ([], [5])
    again.close()


async def test_new_damage_in_the_same_segment_is_reported(store):
    """Only the ranges that were known are accepted."""
    flip(store, 1)
    await scrub(store)
    store.accept_damage(TP, 4)
    flip(store, 3)
    await scrub(store)
    assert told(store) == ([7], [5])
    flip(store, 2, base=0)
    await scrub(store)
    assert told(store) == ([2, 7], [5])


async def test_a_restored_segment_that_is_damaged_again_is_reported(store):
    """The acceptance ends with the damage it was about."""
    before = flip(store, 1)
    await scrub(store)
    store.accept_damage(TP, 4)
    (store.data / str(TP) / f"{4:020}.log").write_bytes(before)
    await scrub(store)
    assert told(store) == ([], [])
    flip(store, 1)
    await scrub(store)
    assert told(store) == ([5], [])


async def test_a_file_that_was_accepted_as_another_hides_no_damaged_batch(store):
    """A wrong sha256 is about all offsets of the segment; a bad checksum among them is news."""
    entry = store.catalog.segments(TP).get(4)
    store.catalog.put_segments(TP, [replace(entry, sha256="0" * 64)])
    await scrub(store)
    store.accept_damage(TP, 4)
    assert told(store) == ([], [4])
    flip(store, 1)
    await scrub(store)
    assert told(store) == ([5], [])


async def test_only_known_damage_can_be_accepted(store):
    """A sound segment, and one that is not there, are refused by name."""
    flip(store, 1)
    await scrub(store)
    for base in (0, 2, 8, 99):
        with pytest.raises(UnknownSegment, match=f"segment {base};"):
            store.accept_damage(TP, base)
    assert told(store) == ([5], [])
