"""How filters that Spark pushes down narrow the ranges to read."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from cordwood.model import TopicPartition
from cordwood.pipeline.source.filters import Pushed, floor_ms
from cordwood.pipeline.source.offsets import Range

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def condition(kind, column, *value):
    fields = {"attribute": (column,)}
    if value:
        fields["value"] = value[0]
    return type(kind, (), fields)()


@pytest.mark.parametrize(
    ("kind", "value", "left"),
    [
        ("EqualTo", 5, (5, 6)),
        ("GreaterThan", 5, (6, 10)),
        ("GreaterThanOrEqual", 5, (5, 10)),
        ("LessThan", 5, (0, 5)),
        ("LessThanOrEqual", 5, (0, 6)),
    ],
)
def test_offset_bounds_are_carried_out_exactly(kind, value, left):
    """A bound on offsets is applied exactly, so Spark need not check it again."""
    pushed = Pushed()
    assert pushed.take(condition(kind, "offset", value))
    assert pushed.narrow([Range(T0, 0, 10)]) == [Range(T0, *left)]


def test_a_set_of_offsets_narrows_but_is_checked_again():
    """A set of offsets narrows the range, but Spark still checks each row."""
    pushed = Pushed()
    assert not pushed.take(condition("In", "offset", (7, 3)))
    assert pushed.narrow([Range(T0, 0, 10)]) == [Range(T0, 3, 8)]


def test_filters_add_up():
    """All filters apply together."""
    pushed = Pushed()
    assert pushed.take(condition("GreaterThan", "offset", 3))
    assert pushed.take(condition("LessThan", "offset", 6))
    assert pushed.take(condition("EqualTo", "partition", 1))
    assert pushed.narrow([Range(T0, 0, 10), Range(T1, 0, 10)]) == [Range(T1, 4, 6)]


def test_topics_and_partitions_choose():
    """Topics are selected by equality or by set. Contradictory filters select nothing."""
    pushed = Pushed()
    assert pushed.take(condition("In", "topic", ("t", None)))
    assert pushed.is_wanted(T0)
    assert pushed.take(condition("EqualTo", "topic", "u"))
    assert not pushed.is_wanted(T0)


def test_a_lower_time_bound_is_noted_and_left_to_spark():
    """A lower bound on timestamps moves the start, but Spark still checks each row.

    Timestamps may be out of order.
    """
    pushed = Pushed()
    assert not pushed.take(
        condition("GreaterThan", "timestamp", datetime(1970, 1, 1, 0, 0, 1, 1999, tzinfo=UTC))
    )
    assert pushed.since_ms == 1001
    assert not pushed.take(condition("LessThan", "timestamp", datetime(1980, 1, 1, tzinfo=UTC)))
    assert pushed.since_ms == 1001


@pytest.mark.parametrize(
    "unknown",
    [
        condition("EqualTo", "key", b"x"),
        condition("LessThan", "partition", 3),
        condition("EqualTo", "offset", None),
        type("Not", (), {"child": condition("EqualTo", "offset", 3)})(),
    ],
)
def test_what_is_not_understood_stays_with_spark(unknown):
    """A filter that is not supported is left to Spark and narrows nothing."""
    pushed = Pushed()
    assert not pushed.take(unknown)
    assert pushed == Pushed()


def test_times_before_the_epoch_and_in_other_zones_round_down():
    """Timestamps are rounded down to milliseconds, because rounding up could skip a record."""
    assert floor_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == -1
    assert floor_ms(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
