"""Accepted damage is not a health problem. Reads of it still fail, and new damage is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.broker.health import damaged, partition_state, topic_problems
from cordwood.broker.scrub import Scrubber
from cordwood.config import BrokerConfig, changed
from cordwood.errors import DamagedRecords, UnknownSegment
from support.clock import ManualClock
from support.stores import TP, append_sealed, open_store

BATCHES = 4


@pytest.fixture
def store(tmp_path):
    """A store with two sealed segments of four one-record batches each."""
    opened = open_store(tmp_path / "data", clock=ManualClock())
    opened.create_topic("t", 1)
    append_sealed(opened, "abcd", "efgh")
    opened.segments.hash_sealed()
    yield opened
    opened.close()


def a_scrubber(store):
    settings = changed(BrokerConfig(), {"scrub.bytes.per.second": 0})
    return Scrubber(settings, store, ManualClock())


async def scrub(store):
    """Scrub every sealed segment and wait until the run ends."""
    scrubber = a_scrubber(store)
    try:
        run = await scrubber.scrub_now(None)
        await scrubber._demanded
    finally:
        scrubber.stop()
    return run


def flip(store, batch, base=4):
    """Change the last byte of one batch of a segment; return the file's original bytes."""
    path = store.data / str(TP) / f"{base:020}.log"
    before = path.read_bytes()
    data = bytearray(before)
    data[len(data) // BATCHES * (batch + 1) - 1] ^= 1
    path.write_bytes(data)
    return before


def open_and_accepted(store):
    """Return the start offsets of the damage that is a problem and of the accepted damage."""
    found = store.health.damaged(), store.health.accepted()
    return tuple([each.start_offset for each in ranges.get(TP, [])] for ranges in found)


async def test_accepted_damage_is_no_problem_and_stays_refused(store):
    """After acceptance the partition is online. Only reads of the damaged range still fail."""
    flip(store, 1)
    await scrub(store)
    assert list(damaged(store.health)) == ["t-0"]
    (accepted,) = store.segments.accept_damage(TP, 4)
    assert (accepted.start_offset, accepted.end_offset) == (5, 6)
    assert damaged(store.health) == {}
    assert partition_state(store.health, TP).state == "online"
    (row,) = topic_problems(store.health, "t")
    assert [each.accepted for each in row.damage] == [True]
    with pytest.raises(DamagedRecords):
        store.partition(TP).read(5, 1)
    assert store.partition(TP).read(6, 1).next_offset == 7


async def test_acceptance_outlives_a_scrub_and_a_restart(store):
    """The acceptance is stored with the segment's entry in the index."""
    flip(store, 1)
    await scrub(store)
    store.segments.accept_damage(TP, 4)
    run = await scrub(store)
    assert [row.accepted for row in run.damaged] == [True]
    assert open_and_accepted(store) == ([], [5])
    store.close()
    again = open_store(store.data, clock=ManualClock())
    scrubber = a_scrubber(again)
    scrubber._remember_damage()
    assert open_and_accepted(again) == ([], [5])
    scrubber.stop()
    await scrub(again)
    assert open_and_accepted(again) == ([], [5])
    again.close()


async def test_new_damage_in_the_same_segment_is_reported(store):
    """An acceptance covers only the ranges known at that time; later damage is a problem."""
    flip(store, 1)
    await scrub(store)
    store.segments.accept_damage(TP, 4)
    flip(store, 3)
    await scrub(store)
    assert open_and_accepted(store) == ([7], [5])
    flip(store, 2, base=0)
    await scrub(store)
    assert open_and_accepted(store) == ([2, 7], [5])


async def test_a_restored_segment_that_is_damaged_again_is_reported(store):
    """An acceptance ends when a scrub finds the file intact. The same damage later is a problem."""
    before = flip(store, 1)
    await scrub(store)
    store.segments.accept_damage(TP, 4)
    (store.data / str(TP) / f"{4:020}.log").write_bytes(before)
    await scrub(store)
    assert open_and_accepted(store) == ([], [])
    flip(store, 1)
    await scrub(store)
    assert open_and_accepted(store) == ([5], [])


async def test_a_file_that_was_accepted_as_another_hides_no_damaged_batch(store):
    """An accepted wrong sha256 of a segment does not hide a bad batch checksum in it."""
    entry = store.metadata.cluster.segments(TP).get(4)
    store.metadata.cluster.put_segments(TP, [replace(entry, sha256="0" * 64)])
    await scrub(store)
    store.segments.accept_damage(TP, 4)
    assert open_and_accepted(store) == ([], [4])
    flip(store, 1)
    await scrub(store)
    assert open_and_accepted(store) == ([5], [])


async def test_only_known_damage_can_be_accepted(store):
    """Accepting damage in an intact or missing segment fails and names the segment."""
    flip(store, 1)
    await scrub(store)
    for base in (0, 2, 8, 99):
        with pytest.raises(UnknownSegment, match=f"segment {base};"):
            store.segments.accept_damage(TP, base)
    assert open_and_accepted(store) == ([5], [])
