"""When the active segment is sealed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.config import KEEP_ALL, TopicConfig
from cordwood.decide.roll import OFFSETS_PER_SEGMENT_MAX, RollReason, plan_capacity, plan_roll
from support.stacks import NOW_MS, a_segment

CONFIG = TopicConfig(segment_bytes=1000, segment_ms=60_000, segment_entries=50)


def test_a_segment_is_cut_before_it_passes_its_size():
    """The batch that would pass segment.bytes opens the next segment; one that fits stays."""
    active = a_segment(size_bytes=900)
    assert plan_roll(active, 100, 1, CONFIG, NOW_MS) is None
    assert plan_roll(active, 101, 1, CONFIG, NOW_MS) is RollReason.SIZE


def test_a_segment_is_cut_before_it_passes_its_entries():
    """segment.entries counts records, incoming ones included."""
    active = a_segment(end=49)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is None
    assert plan_roll(active, 1, 2, CONFIG, NOW_MS) is RollReason.ENTRIES


def test_a_full_segment_is_cut_without_another_append():
    """Once it holds segment.entries records the monitor seals it, with nothing incoming."""
    assert plan_roll(a_segment(end=50), 0, 0, CONFIG, NOW_MS) is RollReason.ENTRIES


def test_an_idle_segment_is_cut_by_age():
    """Time alone cuts: no append is needed."""
    assert plan_roll(a_segment(age_ms=59_999), 0, 0, CONFIG, NOW_MS) is None
    assert plan_roll(a_segment(age_ms=60_000), 0, 0, CONFIG, NOW_MS) is RollReason.AGE


def test_a_compacted_topic_is_cut_in_time_to_compact():
    """max.compaction.lag.ms caps the age, only where there is compaction."""
    lagged = replace(CONFIG, max_compaction_lag_ms=10_000)
    active = a_segment(age_ms=10_000)
    assert plan_roll(active, 0, 0, lagged, NOW_MS) is None
    compacted = replace(lagged, cleanup_policy=frozenset({"compact"}))
    assert plan_roll(active, 0, 0, compacted, NOW_MS) is RollReason.AGE


@pytest.mark.parametrize("size_bytes", [1, 10**9])
def test_an_empty_segment_is_never_cut(size_bytes):
    """However old it is and however large the batch that comes."""
    empty = a_segment(end=0, size_bytes=0, age_ms=10**9)
    assert plan_roll(empty, size_bytes, 10**6, CONFIG, NOW_MS) is None


def test_backfilled_old_records_do_not_cut_at_every_append():
    """A segment opened a second ago is a second old, whatever its producers wrote in it."""
    active = replace(a_segment(age_ms=10**10), created_ms=NOW_MS - 1000)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is None


def test_a_future_timestamp_does_not_keep_a_segment_open():
    """The age then counts from when the segment was opened."""
    active = replace(a_segment(age_ms=-(10**10)), created_ms=NOW_MS - 60_000)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is RollReason.AGE


def test_records_without_timestamps_age_from_the_opening():
    """-1 is no time; the segment still ages."""
    active = replace(a_segment(), first_ms=-1, created_ms=NOW_MS - 60_000)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is RollReason.AGE


def test_a_segment_is_cut_before_its_index_overflows():
    """Offsets relative to the base must fit a signed int32, even with few records left in it."""
    endless = TopicConfig(segment_entries=2**40, segment_ms=KEEP_ALL)
    active = a_segment(end=OFFSETS_PER_SEGMENT_MAX, records=3)
    assert plan_roll(active, 1, 0, endless, NOW_MS) is None
    assert plan_roll(active, 1, 1, endless, NOW_MS) is RollReason.OFFSETS


@pytest.mark.parametrize("size_bytes", [1, 400, 1000, 1200])
@pytest.mark.parametrize("end", [1, 49, 50, 60])
def test_the_room_left_is_what_can_come_without_a_cut(size_bytes, end):
    """One more byte or record than there is room for, and there is a reason to cut."""
    active = a_segment(end=end, size_bytes=size_bytes)
    room = plan_capacity(active, CONFIG)
    for extra_bytes in (-1, 0, 1):
        for extra in (-1, 0, 1):
            incoming, records = room.size_bytes + extra_bytes, room.records + extra
            if incoming > 0 and records > 0:
                is_cut = plan_roll(active, incoming, records, CONFIG, NOW_MS) is not None
                assert is_cut == (extra_bytes > 0 or extra > 0)


def test_the_room_left_heeds_what_an_index_can_express():
    """Offsets past the base, not records: compaction may have taken those."""
    endless = replace(CONFIG, segment_bytes=KEEP_ALL, segment_entries=KEEP_ALL)
    active = a_segment(end=OFFSETS_PER_SEGMENT_MAX - 3)
    assert plan_capacity(active, endless).records == 3


def test_an_empty_segment_promises_no_room():
    """Its first append fits, however large; what fits beside it is asked after that."""
    assert plan_capacity(a_segment(end=0, size_bytes=0), CONFIG) == (0, 0)
