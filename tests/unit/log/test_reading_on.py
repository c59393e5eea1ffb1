"""One read covers as many segments as its byte limit allows, and skips those without records."""

from __future__ import annotations

import pytest

from cordwood.decide.roll import RollReason
from cordwood.errors import CorruptionError
from cordwood.log.read.snapshot import SEGMENTS_PER_READ_MAX
from support.logs import (
    an_empty_batch,
    append,
    append_data,
    headers_of,
    open_partition,
    read_all,
    records_in,
)


@pytest.fixture
def partition(tmp_path):
    return open_partition(tmp_path)


def seal(partition, *values):
    """Append each value as a batch, or one empty batch without values, then seal the segment."""
    for value in values:
        append(partition, value)
    if not values:
        append_data(partition, an_empty_batch())
    partition.roll(RollReason.DEMAND)


def values_read(partition, offset, max_bytes=1 << 20):
    found = partition.read(offset, max_bytes)
    return [record.value for record in records_in(found.data) if record.offset >= offset]


def test_one_read_takes_from_many_segments(partition):
    """A log of small segments needs one read, not one per segment."""
    for number in range(20):
        seal(partition, b"%d" % number)
    append(partition, b"active")
    assert values_read(partition, 0) == [*(b"%d" % number for number in range(20)), b"active"]
    assert partition.read(0, 1 << 20).next_offset == 21


def test_a_read_takes_no_more_bytes_than_it_may_and_one_batch_at_least(partition):
    """A read keeps to its byte limit, but always returns the first batch, whatever its size."""
    seal(partition, b"x" * 100)
    seal(partition, b"y" * 100)
    one = len(partition.read(0, 1).data)
    assert values_read(partition, 0, 1) == [b"x" * 100]
    assert values_read(partition, 0, 2 * one - 1) == [b"x" * 100]
    assert values_read(partition, 0, 2 * one) == [b"x" * 100, b"y" * 100]


def test_a_read_stops_where_a_segment_is_not_read_to_its_end(partition):
    """A read continues in the next segment only after it has returned all of this one."""
    seal(partition, b"a", b"b" * 500)
    seal(partition, b"c")
    assert values_read(partition, 0, 300) == [b"a"]
    assert [record.offset for record in read_all(partition, 300)] == [0, 1, 2]


def test_segments_without_records_are_passed_over(partition):
    """A read skips any number of segments without records and returns the next record."""
    seal(partition, b"first")
    for _ in range(3 * SEGMENTS_PER_READ_MAX):
        seal(partition)
    seal(partition, b"last")
    found = partition.read(1, 1 << 20)
    assert [record.value for record in records_in(found.data)] == [b"last"]
    assert len(headers_of(found.data)) == 1


def test_an_empty_batch_marks_the_end_of_a_range(partition):
    """If no records follow, a read returns an empty batch that ends at the high watermark.

    A client that receives no batch at all would request the same offset again and again.
    """
    seal(partition, b"first")
    for _ in range(5):
        seal(partition)
    found = partition.read(1, 1 << 20)
    assert (records_in(found.data), found.next_offset) == ([], partition.high_watermark)
    assert headers_of(found.data)[-1].last_offset == partition.high_watermark - 1


def test_a_read_goes_through_a_bounded_number_of_segments(partition):
    """One read opens at most ``SEGMENTS_PER_READ_MAX`` segment files."""
    for _ in range(SEGMENTS_PER_READ_MAX + 5):
        seal(partition, b"v")
    assert len(values_read(partition, 0)) == SEGMENTS_PER_READ_MAX


def test_a_damaged_segment_does_not_withhold_the_sound_ones_before_it(partition):
    """A read returns the sound segments before a damaged one; the next read raises the error."""
    seal(partition, b"sound")
    seal(partition, b"damaged")
    path = partition.directory / f"{1:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert values_read(partition, 0) == [b"sound"]
    with pytest.raises(CorruptionError, match="checksum"):
        partition.read(1, 1 << 20)


def test_what_a_read_would_wait_for_includes_the_next_segments(disk_path, monkeypatch):
    """``is_resident`` is false if the read would wait for the disk in a later segment."""
    partition = open_partition(disk_path)
    seal(partition, b"a", b"b")
    seal(partition, b"c")
    following = partition.read(0, 1).next_offset
    assert partition.is_resident(following, 1 << 20)
    second = partition._read_state.segments[1]
    asked = []

    def cold(segment, *arguments):
        asked.append(segment.base_offset)
        return None if segment is second else 70

    monkeypatch.setattr("cordwood.log.read.segment.Segment.resident_bytes", cold)
    assert not partition.is_resident(following, 1 << 20)
    assert asked == [0, 2]
