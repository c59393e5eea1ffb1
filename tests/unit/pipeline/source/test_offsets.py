"""Start and end offsets, limits per trigger, and data loss of a query."""

import pytest

from cordwood.errors import InvalidOption, OffsetOutOfRange, UnknownTopic
from cordwood.model import TopicPartition
from cordwood.pipeline.source.offsets import (
    Bounds,
    Range,
    encode_offsets,
    is_too_few,
    is_volatile,
    parse_offsets,
    plan_limit,
    plan_partitions,
    plan_ranges,
    resolve,
)
from cordwood.pipeline.source.options import AtOffsets, AtTimes, Edge, TopicSelection

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = {T0: Bounds(10, 20), T1: Bounds(0, 5)}
TOPICS = {"t": [0, 1], "u": [0]}


def found(position, *, starting=True, no_match_is_latest=False, times=None):
    return resolve(
        position,
        BOUNDS,
        lambda tp, ms: (times or {}).get((tp, ms)),
        starting=starting,
        no_match_is_latest=no_match_is_latest,
    )


def test_edges_are_the_bounds():
    """Earliest is the log start offset, and latest is the high watermark."""
    assert found(Edge.EARLIEST) == {T0: 10, T1: 0}
    assert found(Edge.LATEST) == {T0: 20, T1: 5}
    assert found(AtOffsets({T0: -2, T1: -1})) == {T0: 10, T1: 5}


@pytest.mark.parametrize("offset", [9, 21])
def test_an_offset_the_log_does_not_hold_is_out_of_range(offset):
    """An offset outside the log is refused, and the error has the valid range."""
    with pytest.raises(OffsetOutOfRange, match="10 to 20"):
        found(AtOffsets({T0: offset, T1: 0}))


def test_every_partition_must_be_named():
    """Offsets must name every subscribed partition and no other, as in Spark's Kafka source."""
    with pytest.raises(InvalidOption, match="t-1 missing"):
        found(AtOffsets({T0: 12}))
    with pytest.raises(InvalidOption, match="u-7, not subscribed"):
        found(AtOffsets({T0: 12, T1: 0, TopicPartition("u", 7): 1}))


def test_a_time_after_the_last_record_follows_the_strategy():
    """A start time after the last record is an error unless the strategy is ``latest``.

    An end time after the last record means the end of the log.
    """
    times = {(T0, 5): 13}
    with pytest.raises(OffsetOutOfRange, match="startingOffsetsByTimestampStrategy"):
        found(AtTimes(5), times=times)
    assert found(AtTimes(5), times=times, no_match_is_latest=True) == {T0: 13, T1: 5}
    assert found(AtTimes(5), times=times, starting=False) == {T0: 13, T1: 5}


def test_only_what_can_move_is_volatile():
    """A position is volatile if it may resolve to ``latest``."""
    assert is_volatile(Edge.LATEST, no_match_is_latest=False)
    assert is_volatile(AtOffsets({T0: -1}), no_match_is_latest=False)
    assert is_volatile(AtTimes(5), no_match_is_latest=True)
    assert not is_volatile(Edge.EARLIEST, no_match_is_latest=True)
    assert not is_volatile(AtOffsets({T0: 3}), no_match_is_latest=False)


def test_subscriptions_name_partitions():
    """A subscription is by topic name, full-match pattern or partition.

    Unknown topics are refused.
    """
    assert plan_partitions(TopicSelection(topics=("t",)), TOPICS) == [T0, T1]
    assert plan_partitions(TopicSelection(pattern="t|u"), TOPICS) == [
        T0,
        T1,
        TopicPartition("u", 0),
    ]
    assert plan_partitions(TopicSelection(pattern="[a-s]"), TOPICS) == []
    assert plan_partitions(TopicSelection(partitions=(T1,)), TOPICS) == [T1]
    with pytest.raises(UnknownTopic, match="no topic tt; did you mean t"):
        plan_partitions(TopicSelection(topics=("tt",)), TOPICS)
    with pytest.raises(UnknownTopic, match="no partition 9"):
        plan_partitions(TopicSelection(partitions=(TopicPartition("t", 9),)), TOPICS)


def test_a_limit_is_shared_in_proportion_and_starves_nobody():
    """A limit is shared in proportion to the pending records, with at least one per partition."""
    assert plan_limit({T0: 0, T1: 0}, {T0: 90, T1: 10}, 10) == {T0: 9, T1: 1}
    assert plan_limit({T0: 0, T1: 0}, {T0: 1000, T1: 1}, 10) == {T0: 9, T1: 1}
    assert plan_limit({T0: 5, T1: 5}, {T0: 5, T1: 5}, 10) == {T0: 5, T1: 5}


def test_too_few_counts_what_waits_in_all_partitions():
    """``minOffsetsPerTrigger`` is compared with the pending records of all partitions together."""
    assert is_too_few({T0: 0, T1: 0}, {T0: 2, T1: 2}, 5)
    assert not is_too_few({T0: 0, T1: 0}, {T0: 2, T1: 3}, 5)


def test_ranges_cover_exactly_what_is_new():
    """A new partition is read from its start, and an unchanged one is not read."""
    ranges, losses = plan_ranges({T0: 20}, {T0: 20, T1: 5}, BOUNDS)
    assert ranges == [Range(T1, 0, 5)]
    assert losses == []


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        ({T0: 3}, {T0: 20}, "offsets 3 to 10 were reclaimed"),
        ({T0: 12}, {T0: 30}, "the log ends at 20, before 30"),
        ({T0: 18}, {T0: 12}, "its end offset decreased from 18 to 12"),
        ({T0: 12}, {}, "the partition no longer exists"),
        ({}, {TopicPartition("gone", 0): 3}, "the partition no longer exists"),
    ],
)
def test_what_cannot_be_read_any_more_is_a_loss(start, end, reason):
    """Offsets that cannot be read any more are reported as a loss with a reason."""
    _, losses = plan_ranges(start, end, BOUNDS)
    assert [loss.reason for loss in losses] == [reason]


def test_offsets_round_trip_through_a_checkpoint():
    """Offsets are stored in a checkpoint in the format of Spark's Kafka source."""
    offsets = {T1: 4, T0: 3}
    assert encode_offsets(offsets) == {"t": {"0": 3, "1": 4}}
    assert parse_offsets(encode_offsets(offsets)) == offsets
