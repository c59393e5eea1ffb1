"""When the active segment is rolled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.config import KEEP_ALL, TopicConfig
from cordwood.decide.roll import (
    OFFSETS_PER_SEGMENT_MAX,
    RollReason,
    jitter_ms,
    plan_capacity,
    plan_roll,
)
from support.stacks import NOW_MS, a_segment

CONFIG = TopicConfig(segment_bytes=1000, segment_ms=60_000, segment_entries=50)


def test_a_segment_is_cut_before_it_passes_its_size():
    """A batch that would exceed segment.bytes rolls the segment; one that fits does not."""
    active = a_segment(size_bytes=900)
    assert plan_roll(active, 100, 1, CONFIG, NOW_MS) is None
    assert plan_roll(active, 101, 1, CONFIG, NOW_MS) is RollReason.SIZE


def test_a_segment_is_cut_before_it_passes_its_entries():
    """segment.entries counts the records of the segment and of the incoming batch."""
    active = a_segment(end=49)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is None
    assert plan_roll(active, 1, 2, CONFIG, NOW_MS) is RollReason.ENTRIES


def test_a_full_segment_is_cut_without_another_append():
    """A segment with segment.entries records is rolled without an incoming batch."""
    assert plan_roll(a_segment(end=50), 0, 0, CONFIG, NOW_MS) is RollReason.ENTRIES


def test_an_idle_segment_is_cut_by_age():
    """A segment is rolled by age without an append."""
    assert plan_roll(a_segment(age_ms=59_999), 0, 0, CONFIG, NOW_MS) is None
    assert plan_roll(a_segment(age_ms=60_000), 0, 0, CONFIG, NOW_MS) is RollReason.AGE


def test_a_compacted_topic_is_cut_in_time_to_compact():
    """For compacted topics, max.compaction.lag.ms also limits the age of the active segment."""
    lagged = replace(CONFIG, max_compaction_lag_ms=10_000)
    active = a_segment(age_ms=10_000)
    assert plan_roll(active, 0, 0, lagged, NOW_MS) is None
    compacted = replace(lagged, cleanup_policy=frozenset({"compact"}))
    assert plan_roll(active, 0, 0, compacted, NOW_MS) is RollReason.AGE


@pytest.mark.parametrize("size_bytes", [1, 10**9])
def test_an_empty_segment_is_never_cut(size_bytes):
    """An empty segment is never rolled, whatever its age and whatever the incoming batch."""
    empty = a_segment(end=0, size_bytes=0, age_ms=10**9)
    assert plan_roll(empty, size_bytes, 10**6, CONFIG, NOW_MS) is None


def test_backfilled_old_records_do_not_cut_at_every_append():
    """A segment of old records counts its age from its creation."""
    active = replace(a_segment(age_ms=10**10), created_ms=NOW_MS - 1000)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is None


def test_a_future_timestamp_does_not_keep_a_segment_open():
    """With timestamps in the future, the age counts from the segment's creation."""
    active = replace(a_segment(age_ms=-(10**10)), created_ms=NOW_MS - 60_000)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is RollReason.AGE


def test_records_without_timestamps_age_from_the_opening():
    """With timestamps of -1, the age counts from the segment's creation."""
    active = replace(a_segment(), first_ms=-1, created_ms=NOW_MS - 60_000)
    assert plan_roll(active, 1, 1, CONFIG, NOW_MS) is RollReason.AGE


def test_a_segment_is_cut_before_its_index_overflows():
    """A segment is rolled before an offset relative to its base exceeds a signed int32."""
    endless = TopicConfig(segment_entries=2**40, segment_ms=KEEP_ALL)
    active = a_segment(end=OFFSETS_PER_SEGMENT_MAX, records=3)
    assert plan_roll(active, 1, 0, endless, NOW_MS) is None
    assert plan_roll(active, 1, 1, endless, NOW_MS) is RollReason.OFFSETS


@pytest.mark.parametrize("size_bytes", [1, 400, 1000, 1200])
@pytest.mark.parametrize("end", [1, 49, 50, 60])
def test_the_remaining_bytes_fit_without_a_cut(size_bytes, end):
    """The capacity is exact: one more byte or record makes ``plan_roll`` return a reason."""
    active = a_segment(end=end, size_bytes=size_bytes)
    directory = plan_capacity(active, CONFIG)
    for extra_bytes in (-1, 0, 1):
        for extra in (-1, 0, 1):
            incoming, records = directory.size_bytes + extra_bytes, directory.records + extra
            if incoming > 0 and records > 0:
                is_cut = plan_roll(active, incoming, records, CONFIG, NOW_MS) is not None
                assert is_cut == (extra_bytes > 0 or extra > 0)


def test_the_remaining_bytes_respect_the_limits_of_the_index():
    """The capacity counts offsets relative to the base, not the records left by compaction."""
    endless = replace(CONFIG, segment_bytes=KEEP_ALL, segment_entries=KEEP_ALL)
    active = a_segment(end=OFFSETS_PER_SEGMENT_MAX - 3)
    assert plan_capacity(active, endless).records == 3


def test_an_empty_segment_promises_no_remaining_bytes():
    """An empty segment has a capacity of zero, since its first append fits at any size."""
    assert plan_capacity(a_segment(end=0, size_bytes=0), CONFIG) == (0, 0)


def test_a_segment_is_cut_when_its_index_is_full():
    """A segment whose larger index cannot take another entry is rolled."""
    config = replace(CONFIG, segment_bytes=10**6, segment_index_bytes=36)
    for index_bytes, reason in ((24, None), (25, RollReason.INDEX), (36, RollReason.INDEX)):
        active = replace(a_segment(size_bytes=10**5), index_bytes=index_bytes)
        assert plan_roll(active, 1, 1, config, NOW_MS) is reason


def test_a_segment_without_index_entries_takes_appends_whatever_the_limit():
    """A segment.index.bytes below the size of one entry does not refuse the first entry."""
    config = replace(CONFIG, segment_bytes=10**6, segment_index_bytes=4)
    assert plan_roll(a_segment(size_bytes=10**5), 1, 1, config, NOW_MS) is None


def test_jitter_lets_segments_age_differently_but_never_longer():
    """segment.jitter.ms shortens segment.ms by an amount that differs between segments."""
    config = replace(CONFIG, segment_jitter_ms=10_000)
    ages = set()
    for spread in range(0, 10**6, 997):
        active = a_segment(age_ms=0)
        jitter = jitter_ms(replace(active, spread=spread), config)
        assert 0 <= jitter < 10_000
        ages.add(jitter)
        old = replace(a_segment(age_ms=60_000 - jitter), spread=spread)
        young = replace(a_segment(age_ms=60_000 - jitter - 1), spread=spread)
        assert plan_roll(old, 0, 0, config, NOW_MS) is RollReason.AGE
        assert plan_roll(young, 0, 0, config, NOW_MS) is None
    assert len(ages) > 100


def test_jitter_longer_than_the_age_never_reaches_it():
    """A jitter longer than segment.ms is limited to it."""
    config = replace(CONFIG, segment_ms=10, segment_jitter_ms=10**6)
    assert jitter_ms(replace(a_segment(), spread=10**9 + 9), config) == 9
