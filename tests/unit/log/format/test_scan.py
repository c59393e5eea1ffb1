"""How the batches of a file end, and what may be called torn."""

from __future__ import annotations

import pytest

from cordwood.log.format.scan import BatchWalk, End, find_batch, read_from, scan
from support.logs import a_batch


def a_log(*batches: bytearray, base_offset: int = 0) -> bytes:
    """Batches with consecutive offsets, as the partition would have written them."""
    out = bytearray()
    for batch in batches:
        count = int.from_bytes(batch[23:27], "big") + 1
        out += base_offset.to_bytes(8, "big") + batch[8:]
        base_offset += count
    return bytes(out)


THREE = [a_batch(b"a" * 40, b"b"), a_batch(b"c" * 700), a_batch(b"d", b"e", b"f")]
LOG = a_log(*THREE)
LAST = len(LOG) - len(THREE[2])  # where the last batch begins


def test_whole_batches_end_clean():
    """Everything is valid, and the headers are those of the batches."""
    found = scan(LOG)
    assert (found.end, found.valid_bytes, found.problem) == (End.CLEAN, len(LOG), "")
    assert [header.base_offset for header in found.headers] == [0, 2, 3]


def test_nothing_ends_clean():
    """An empty file is how a segment begins."""
    assert scan(b"").end is End.CLEAN


@pytest.mark.parametrize("cut", [1, 7, 8, 11, 12, 16, 17, 60, 61, 62])
def test_a_cut_last_batch_is_torn(cut):
    """However little of it is there."""
    found = scan(LOG[: LAST + cut])
    assert (found.end, found.valid_bytes) == (End.TORN, LAST)
    assert found.problem


def test_a_zero_tail_is_torn():
    """A filesystem may have grown the file without writing it."""
    for zeros in (1, 60, 61, 5000):
        found = scan(LOG + bytes(zeros))
        assert (found.end, found.valid_bytes) == (End.TORN, len(LOG))


@pytest.mark.parametrize("cut", [1, 9, 14, 30, 61, 70])
def test_a_batch_that_goes_over_into_zeros_is_torn(cut):
    """Its first block was written, the next only allocated."""
    for end in (len(LOG), len(LOG) + 3000):
        found = scan(LOG[: LAST + cut] + bytes(end - LAST - cut))
        assert (found.end, found.valid_bytes) == (End.TORN, LAST)


def test_a_bad_last_batch_is_torn():
    """Its blocks were on their way when the power went; nothing whole comes after it."""
    data = bytearray(LOG)
    data[-1] ^= 0xFF
    found = scan(data)
    assert (found.end, found.valid_bytes) == (End.TORN, LAST)


def test_a_bad_batch_before_a_whole_one_is_corrupt():
    """What follows was written later, so this one was whole once."""
    data = bytearray(LOG)
    data[100] ^= 0xFF
    assert scan(data).end is End.CORRUPT


def test_a_damaged_length_before_a_whole_batch_is_corrupt():
    """It looks torn: the batch seems to reach past the end of the file."""
    data = bytearray(LOG)
    data[8] = 0x7F
    found = scan(data)
    assert (found.end, found.valid_bytes) == (End.CORRUPT, 0)


def test_foreign_bytes_are_corrupt():
    """A tail that does not begin as our next batch would was not written by us."""
    assert scan(b"hello, world\n" * 20).end is End.CORRUPT
    assert scan(LOG + b"hello, world\n" * 20).end is End.CORRUPT


def test_a_batch_with_an_offset_of_the_past_is_corrupt():
    """Offsets lie outside the checksum; a batch that goes back is not the next one."""
    found = scan(LOG + bytes(THREE[0]))
    assert (found.end, found.valid_bytes) == (End.CORRUPT, len(LOG))
    assert "offset 0, expected 6" in found.problem


def test_damage_below_what_was_synced_is_corrupt():
    """Even at the very end: it was on the device, so no append was torn there."""
    data = bytearray(LOG)
    data[-1] ^= 0xFF
    assert scan(data, durable_bytes=len(LOG)).end is End.CORRUPT
    assert scan(LOG[:-1], durable_bytes=LAST).end is End.TORN


def test_a_segment_may_begin_at_any_offset_and_have_gaps():
    """Compaction leaves gaps; only going back is wrong."""
    log = a_log(THREE[0], base_offset=100) + a_log(THREE[1], base_offset=5000)
    assert scan(log, 100).end is End.CLEAN
    assert scan(log, 50).end is End.CLEAN
    assert scan(log, 101).valid_bytes == 0


def test_a_walk_without_checksums_reads_headers_only():
    """Damage in the records is not its business."""
    data = bytearray(LOG)
    data[100] ^= 0xFF
    walk = BatchWalk(read_from(data), len(data), 0, verify=False)
    assert len(list(walk)) == 3
    assert not walk.problem


def test_a_walk_crosses_chunks(monkeypatch):
    """Batches and headers that straddle two reads are read whole."""
    log = a_log(*[a_batch(b"x" * (i % 90)) for i in range(300)])
    for size in (61, 62, 100, 1000):
        monkeypatch.setattr("cordwood.log.format.scan.CHUNK_BYTES", size)
        walk = BatchWalk(read_from(log), len(log), 0)
        assert len(list(walk)) == 300
        assert walk.next_offset == 300


def test_a_batch_is_found_wherever_it_lies(monkeypatch):
    """Also across the border of two reads."""
    monkeypatch.setattr("cordwood.log.format.scan.CHUNK_BYTES", 100)
    whole = a_log(THREE[0], base_offset=7)
    for before in range(150):
        data = b"\x02" * before + whole + b"\x02" * 50
        assert find_batch(read_from(data), 0, len(data), 5) == before
    assert find_batch(read_from(whole), 0, len(whole), 8) is None
    assert find_batch(read_from(whole), 1, len(whole), 5) is None
