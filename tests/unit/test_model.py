"""The shared value types can be compared and hashed, and are immutable."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from cordwood.model import (
    Codec,
    Header,
    Record,
    SegmentInfo,
    SegmentState,
    TimestampType,
    TopicPartition,
    is_topic_name,
)


@pytest.mark.parametrize("name", ["a", "orders.eu-1_x", "A" * 249, "..."])
def test_kafka_topic_names_are_topic_names(name: str):
    """Every name that Kafka allows is a valid topic name."""
    assert is_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "A" * 250, "a/b", "a b", "ä", "a\n", "../x", "a\0", "a|b"]
)
def test_name_that_could_leave_its_directory_is_no_topic_name(name: str):
    """A name that is unsafe as a directory name is not a valid topic name."""
    assert not is_topic_name(name)


def test_partition_is_called_as_its_directory():
    """A partition's name is the topic, a dash and the number, as in Kafka's layout."""
    assert str(TopicPartition("a-b", 12)) == "a-b-12"


def test_codec_numbers_are_those_of_batch_attributes():
    """Codec and timestamp type numbers are those of Kafka's batch attributes."""
    numbers = {codec.name: codec.value for codec in Codec}
    assert numbers == {"NONE": 0, "GZIP": 1, "SNAPPY": 2, "LZ4": 3, "ZSTD": 4}
    assert (TimestampType.CREATE.value, TimestampType.APPEND.value) == (0, 1)


def test_tombstone_and_empty_value_are_different_records():
    """A null value is a tombstone and differs from an empty value."""
    assert Record(0, 1, b"k", None) != Record(0, 1, b"k", b"")
    assert Record(0, 1, b"k", b"v", (Header("h", None),)) == Record(
        0, 1, b"k", b"v", (Header("h", None),)
    )


def test_segment_info_is_a_copy_nobody_can_change():
    """``SegmentInfo`` is immutable and hashable."""
    info: Any = SegmentInfo(
        base_offset=0,
        end_offset=10,
        size_bytes=100,
        records=10,
        first_ms=1,
        newest_ms=2,
        created_ms=1,
        state=SegmentState.SEALED,
    )
    with pytest.raises(FrozenInstanceError):
        info.records = 11
    assert hash(info) == hash(info)


def test_segment_states_are_stored_as_plain_words():
    """Segment states are stored as these words, so they must not be renamed."""
    words = [str(state) for state in SegmentState]
    assert words == ["active", "sealed", "reclaimed", "replaced"]
