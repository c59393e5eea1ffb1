"""The scrub finds damage before a reader does, reports it, and remembers it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cordwood.broker.scrub import Scrubber
from cordwood.config import DAY_MS, BrokerConfig, changed
from cordwood.errors import DamagedRecords, RequestError
from cordwood.log.health.registry import Condition
from cordwood.model import TopicPartition
from support.clock import ManualClock
from support.stores import TP, append, append_sealed, open_store

WAIT_S = 30


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(tmp_path, clock):
    """A store with three hashed sealed segments of four batches each, and an active segment."""
    opened = open_store(tmp_path / "data", clock=clock)
    opened.create_topic("t", 1)
    append_sealed(opened, "abcd", "efgh", "ijkl")
    append(opened.partition(TP), "m")
    opened.segments.hash_sealed()
    yield opened
    opened.close()


@pytest.fixture
def scrubber(store, clock):
    made = Scrubber(changed(BrokerConfig(), {"scrub.bytes.per.second": 0}), store, clock)
    yield made
    made.stop()


def flip(store, base=4, at=-1):
    """Change one byte of a sealed segment; return the file's original bytes."""
    path = store.data / str(TP) / f"{base:020}.log"
    before = path.read_bytes()
    data = bytearray(before)
    data[at] ^= 1
    path.write_bytes(data)
    return before


async def scrub(scrubber, topic=None):
    """Run a scrub on demand and wait until it ends."""
    run = await scrubber.scrub_now(topic)
    await scrubber._demanded
    assert not run.is_running
    return run


def scrubbed(store):
    return {e.base_offset: e.scrub for e in store.metadata.cluster.segments(TP).entries()}


async def test_a_sound_log_is_read_whole_and_when_is_remembered(store, scrubber, clock):
    """Each sealed segment is read once, and the time is stored. The active segment is not read."""
    run = await scrub(scrubber)
    sizes = [segment.size_bytes for segment in store.partition(TP).segments()[:-1]]
    assert (run.segments, run.size_bytes, run.damaged) == (3, sum(sizes), [])
    assert {each.at_ms for each in scrubbed(store).values()} == {clock.now_ms()}
    assert store.health.troubled() == []


async def test_damage_is_reported_with_its_offsets_and_refused_from_then_on(store, scrubber):
    """A scrub reports damage by offset before any read. Later reads of those offsets fail."""
    flip(store)
    run = await scrub(scrubber, "t")
    assert [(row.partition, row.start_offset, row.end_offset) for row in run.damaged] == [
        ("t-0", 7, 8)
    ]
    assert [r.start_offset for r in store.health.damage(TP)] == [7]
    assert [len(each.damage) for each in scrubbed(store).values()] == [0, 1, 0]
    with pytest.raises(DamagedRecords):
        store.partition(TP).read(7, 1)
    assert store.partition(TP).read(4, 1000).next_offset == 7
    assert store.partition(TP).read(8, 1000).next_offset == 13
    assert store.health.damage_found == 1


async def test_a_byte_no_checksum_covers_is_found_by_the_files_sum(store, scrubber):
    """A changed leader epoch leaves all batch checksums valid, but the file's sha256 differs."""
    flip(store, at=15)
    await scrub(scrubber)
    (found,) = store.health.damage(TP)
    assert (found.start_offset, found.end_offset) == (4, 8)
    assert "sha256" in found.problem


async def test_a_segment_restored_from_a_copy_is_well_again(store, scrubber):
    """A scrub clears the damage without a restart, even if readers hold the damaged file open."""
    whole = flip(store)
    partition = store.partition(TP)
    with pytest.raises(DamagedRecords):
        partition.read(7, 1)
    path = store.data / str(TP) / f"{4:020}.log"
    path.unlink()
    path.write_bytes(whole)
    await scrub(scrubber)
    assert store.health.troubled() == []
    assert partition.read(7, 1).first_offset == 7


async def test_damage_outlives_a_restart_and_is_looked_at_again(tmp_path, clock):
    """Damage is reported again after a restart, until a scrub finds the file intact."""
    store = open_store(tmp_path / "d", clock=clock)
    store.create_topic("t", 1)
    append_sealed(store, "abcd", "efgh")
    store.segments.hash_sealed()
    whole = flip(store)
    config = changed(BrokerConfig(), {"scrub.bytes.per.second": 0})
    first = Scrubber(config, store, clock)
    await scrub(first)
    first.stop()
    store.close()
    again = open_store(tmp_path / "d", clock=clock)
    second = Scrubber(config, again, clock)
    second._remember_damage()
    assert [r.start_offset for r in again.health.damage(TP)] == [7]
    (again.data / str(TP) / f"{4:020}.log").write_bytes(whole)
    for target in second._due():
        second._scrub(target, second._pace(0))
    assert again.health.troubled() == []
    assert scrubbed(again)[4].damage == ()
    second.stop()
    again.close()


async def test_segments_come_when_due_the_one_not_read_for_longest_first(store, clock):
    """No segment is due before its interval has passed."""
    config = changed(BrokerConfig(), {"scrub.interval.ms": DAY_MS})
    scrubber = Scrubber(config, store, clock)
    due = scrubber._due()
    assert [target.entry.base_offset for target in due] == [0, 4, 8]
    for target in (due[1], due[0]):
        scrubber._scrub(target, scrubber._pace(scrubber._rate))
        clock.advance(1000)
    assert [target.entry.base_offset for target in scrubber._due()] == [8]
    clock.advance(DAY_MS)
    assert [target.entry.base_offset for target in scrubber._due()] == [8, 4, 0]
    scrubber.stop()


async def test_a_rate_of_zero_reads_only_what_somebody_found_damaged(store, scrubber):
    """A segment that a reader found damaged is scrubbed whole, so that all its damage is known."""
    assert scrubber._due() == []
    flip(store)
    flip(store, at=20)
    with pytest.raises(DamagedRecords):
        store.partition(TP).read(7, 1)
    (target,) = scrubber._due()
    scrubber._scrub(target, scrubber._pace(scrubber._rate))
    assert [r.start_offset for r in store.health.damage(TP)] == [4, 7]
    assert scrubber._due() == []


async def test_a_readers_find_wakes_the_background_scrub(store, scrubber):
    """When a reader finds damage, the background task scrubs that segment immediately."""
    running = asyncio.ensure_future(scrubber.run())
    loop = asyncio.get_running_loop()
    is_known = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, _):
            if len(store.health.damage(TP)) == 2:
                loop.call_soon_threadsafe(is_known.set)

    handler = Handler()
    logging.getLogger("cordwood.log").addHandler(handler)
    flip(store)
    flip(store, at=20)
    with pytest.raises(DamagedRecords):
        await loop.run_in_executor(None, store.partition(TP).read, 7, 1)
    async with asyncio.timeout(WAIT_S):
        await is_known.wait()
    logging.getLogger("cordwood.log").removeHandler(handler)
    running.cancel()


async def test_a_file_that_cannot_be_read_is_reported_and_keeps_no_other(store, scrubber):
    """The run continues with the other segments and lists the unreadable one as failed."""
    path = store.data / str(TP) / f"{4:020}.log"
    path.unlink()
    path.mkdir()
    run = await scrub(scrubber)
    assert (run.segments, list(run.failed)) == (3, ["t-0 segment 4"])
    path.rmdir()
    path.touch()


async def test_a_topic_deleted_meanwhile_is_no_failure(store, scrubber):
    """A segment deleted before its turn is skipped."""
    (first, *_) = list(scrubber._targets())
    store.delete_topic("t")
    scrubber._scrub(first, scrubber._pace(scrubber._rate))
    assert store.health.troubled() == []
    assert Condition.SCRUB_FAILED not in store.health.conditions(TopicPartition("t", 0))


async def test_a_second_run_on_demand_waits_for_the_first(store, scrubber):
    """A scrub on demand is refused while another one is running."""
    run = await scrubber.scrub_now(None)
    run.is_running = True
    with pytest.raises(RequestError, match="already running"):
        await scrubber.scrub_now(None)
    await scrubber._demanded


def test_the_pace_keeps_to_its_rate(store, clock):
    """The scrub waits between reads as long as the bytes read so far take at that rate."""
    scrubber = Scrubber(changed(BrokerConfig(), {"scrub.bytes.per.second": 1000}), store, clock)
    waits = []
    scrubber._stopping.wait = lambda seconds: waits.append(seconds) or False
    pace = scrubber._pace(scrubber._rate)
    for _ in range(3):
        pace(1000)
    assert [round(each) for each in waits] == [1, 2, 3]  # the clock does not advance
    scrubber.stop()
