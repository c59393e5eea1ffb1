"""Scanning a log file: when its end is clean, torn or corrupt."""

from __future__ import annotations

import pytest

from cordwood.log.format.scan import BatchWalk, End, find_batch
from support.logs import a_batch
from support.scans import read_from, scan


def a_log(*batches: bytearray, base_offset: int = 0) -> bytes:
    """Batches with consecutive offsets, as a partition writes them."""
    out = bytearray()
    for batch in batches:
        count = int.from_bytes(batch[23:27], "big") + 1
        out += base_offset.to_bytes(8, "big") + batch[8:]
        base_offset += count
    return bytes(out)


THREE = [a_batch(b"a" * 40, b"b"), a_batch(b"c" * 700), a_batch(b"d", b"e", b"f")]
LOG = a_log(*THREE)
LAST = len(LOG) - len(THREE[2])  # position of the last batch


def test_whole_batches_end_clean():
    """All bytes are valid, and the scan returns the header of every batch."""
    found = scan(LOG)
    assert (found.end, found.valid_bytes, found.problem) == (End.CLEAN, len(LOG), "")
    assert [header.base_offset for header in found.headers] == [0, 2, 3]


def test_nothing_ends_clean():
    """An empty file is clean, because a new segment is empty."""
    assert scan(b"").end is End.CLEAN


@pytest.mark.parametrize("cut", [1, 7, 8, 11, 12, 16, 17, 60, 61, 62])
def test_a_cut_last_batch_is_torn(cut):
    """An incomplete last batch is torn, however few of its bytes are present."""
    found = scan(LOG[: LAST + cut])
    assert (found.end, found.valid_bytes) == (End.TORN, LAST)
    assert found.problem


def test_a_zero_tail_is_torn():
    """A tail of zeros is torn: the filesystem may extend a file without writing its data."""
    for zeros in (1, 60, 61, 5000):
        found = scan(LOG + bytes(zeros))
        assert (found.end, found.valid_bytes) == (End.TORN, len(LOG))


@pytest.mark.parametrize("cut", [1, 9, 14, 30, 61, 70])
def test_a_batch_that_goes_over_into_zeros_is_torn(cut):
    """A last batch that continues as zeros is torn: its later blocks were never written."""
    for end in (len(LOG), len(LOG) + 3000):
        found = scan(LOG[: LAST + cut] + bytes(end - LAST - cut))
        assert (found.end, found.valid_bytes) == (End.TORN, LAST)


def test_a_bad_last_batch_is_torn():
    """A last batch with a bad checksum is torn: a power failure interrupted its write."""
    data = bytearray(LOG)
    data[-1] ^= 0xFF
    found = scan(data)
    assert (found.end, found.valid_bytes) == (End.TORN, LAST)


def test_a_bad_batch_before_a_whole_one_is_corrupt():
    """A bad batch before a valid one is corrupt: it was complete when the next was written."""
    data = bytearray(LOG)
    data[100] ^= 0xFF
    assert scan(data).end is End.CORRUPT


def test_a_damaged_length_before_a_whole_batch_is_corrupt():
    """A damaged length looks torn, but a valid batch after it shows that it is corrupt."""
    data = bytearray(LOG)
    data[8] = 0x7F
    found = scan(data)
    assert (found.end, found.valid_bytes) == (End.CORRUPT, 0)


def test_foreign_bytes_are_corrupt():
    """Bytes that do not start like the next batch are corrupt, not torn."""
    assert scan(b"hello, world\n" * 20).end is End.CORRUPT
    assert scan(LOG + b"hello, world\n" * 20).end is End.CORRUPT


def test_a_batch_with_an_offset_of_the_past_is_corrupt():
    """A valid batch whose offset is below the next expected one is corrupt."""
    found = scan(LOG + bytes(THREE[0]))
    assert (found.end, found.valid_bytes) == (End.CORRUPT, len(LOG))
    assert "offset 0, expected 6" in found.problem


def test_damage_below_what_was_synced_is_corrupt():
    """Damage in bytes that were already synced is corrupt, even in the last batch."""
    data = bytearray(LOG)
    data[-1] ^= 0xFF
    assert scan(data, durable_bytes=len(LOG)).end is End.CORRUPT
    assert scan(LOG[:-1], durable_bytes=LAST).end is End.TORN


def test_a_segment_may_begin_at_any_offset_and_have_gaps():
    """Offsets may have gaps, as compaction leaves them, but may not decrease."""
    log = a_log(THREE[0], base_offset=100) + a_log(THREE[1], base_offset=5000)
    assert scan(log, 100).end is End.CLEAN
    assert scan(log, 50).end is End.CLEAN
    assert scan(log, 101).valid_bytes == 0


def test_a_walk_without_checksums_reads_headers_only():
    """Without ``verify``, damage in the records is not detected."""
    data = bytearray(LOG)
    data[100] ^= 0xFF
    walk = BatchWalk(read_from(data), len(data), 0, verify=False)
    assert len(list(walk)) == 3
    assert not walk.problem


def test_a_walk_crosses_chunks():
    """Batches and headers that straddle two reads are read completely."""
    log = a_log(*[a_batch(b"x" * (i % 90)) for i in range(300)])
    for size in (61, 62, 100, 1000):
        walk = BatchWalk(read_from(log), len(log), 0, chunk_bytes=size)
        assert len(list(walk)) == 300
        assert walk.next_offset == 300


def test_a_batch_is_found_wherever_it_lies():
    """``find_batch`` finds a batch at any position, also across two reads."""
    whole = a_log(THREE[0], base_offset=7)
    for before in range(150):
        data = b"\x02" * before + whole + b"\x02" * 50
        assert find_batch(read_from(data), 0, len(data), 5, chunk_bytes=100) == before
    assert find_batch(read_from(whole), 0, len(whole), 8) is None
    assert find_batch(read_from(whole), 1, len(whole), 5) is None
