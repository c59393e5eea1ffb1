"""Reading segment files while the broker appends, reclaims and swaps them."""

import os

import pytest

from cordwood.batch.header import parse_header
from cordwood.batch.records import decode_batch
from cordwood.errors import CorruptionError, DataLoss
from cordwood.log.format.layout import FileKind
from cordwood.model import TopicPartition
from cordwood.pipeline.source.segment_files import (
    StartHint,
    list_segments,
    read_chunks,
)
from support.datadir import HandMade, make_data_directory, records

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path):
    """Create offsets 0 to 60 in three segments of four batches. The last segment is active."""
    made = HandMade(make_data_directory(tmp_path / "data"), TP)
    for base in (0, 20, 40):
        made.append(*(records(start, start + 5) for start in range(base, base + 20, 5)))
        if base < 40:
            made.cut()
    yield made
    made.close()


def offsets(chunks, start, end):
    """Decode the chunks and return the offsets inside the range."""
    found = []
    for chunk in chunks:
        position = 0
        while position < len(chunk.data):
            header = parse_header(chunk.data, position)
            batch = decode_batch(chunk.data, position)
            found += [r.offset for r in batch if r.offset >= chunk.start_offset]
            position += header.size_bytes
    return [offset for offset in found if start <= offset < end]


def read(log, start, end, *, fail=True, hint=None, chunk_bytes=300):
    chunks = read_chunks(
        log.directory, start, end, fail_on_data_loss=fail, hint=hint, chunk_bytes=chunk_bytes
    )
    return offsets(chunks, start, end)


@pytest.mark.parametrize("chunk_bytes", [1, 61, 300, 1 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 60), (7, 33), (20, 40), (39, 41), (59, 60), (5, 5)])
def test_a_range_is_read_whole_and_once(log, start, end, chunk_bytes):
    """Every record of a range is read exactly once, for any chunk size and any range."""
    assert read(log, start, end, chunk_bytes=chunk_bytes) == list(range(start, end))


def test_nothing_is_read_past_the_end_even_if_it_is_garbage(log):
    """Bytes past the end of the range are not parsed, because they may be half written."""
    with log.active.open("ab") as file:
        file.write(b"\0" * 80 + b"half a batch")
    assert read(log, 40, 60) == list(range(40, 60))


def test_a_gap_left_by_compaction_is_skipped(tmp_path):
    """Gaps left by compaction are skipped: in a batch, between batches and between segments."""
    log = HandMade(make_data_directory(tmp_path), TP)
    log.append(records(0, 2) + records(3, 4), records(8, 10))
    log.cut()
    log.append(records(30, 31))
    assert read(log, 0, 31) == [0, 1, 3, 8, 9, 30]


def test_the_index_saves_reading_what_comes_before(log, monkeypatch):
    """A read in the middle of a segment starts at an index entry, not at the start of the file."""
    positions = []
    pread, inode = os.pread, log.path(0).stat().st_ino

    def spy(fd, length, position):
        if os.fstat(fd).st_ino == inode:
            positions.append(position)
        return pread(fd, length, position)

    monkeypatch.setattr(os, "pread", spy)
    assert read(log, 16, 20) == list(range(16, 20))
    assert min(positions) > 0


def test_a_wrong_index_is_not_believed(log):
    """With a damaged index, the read is slower but returns every record."""
    path = log.path(0, FileKind.INDEX)
    data = bytearray(path.read_bytes())
    for position in range(7, len(data), 8):
        data[position] ^= 0x15
    path.write_bytes(data)
    assert read(log, 16, 20) == list(range(16, 20))


@pytest.mark.parametrize("position", [0, 17, 10_000])
def test_a_wrong_hint_is_not_believed(log, position):
    """A wrong start hint is ignored, because files may have been swapped since."""
    assert read(log, 47, 60, hint=StartHint(45, 40, position)) == list(range(47, 60))


def test_a_segment_reclaimed_before_the_read_is_still_served(log):
    """A segment reclaimed after planning is still read from its ``.deleted`` file."""
    log.reclaim(0)
    assert read(log, 3, 45) == list(range(3, 45))


def test_a_segment_that_is_gone_is_a_loss(log):
    """A missing segment raises ``DataLoss``. With ``failOnDataLoss`` off, the read skips it."""
    log.reclaim(0, purge=True)
    with pytest.raises(DataLoss, match=r"offsets 3 to 20 of t-0 were reclaimed"):
        read(log, 3, 45)
    assert read(log, 3, 45, fail=False) == list(range(20, 45))


def test_a_hole_among_reclaimed_segments_is_a_loss_not_a_gap(log):
    """A purged segment between others is a loss and is not mistaken for a compaction gap."""
    log.reclaim(0)
    log.reclaim(20, purge=True)
    with pytest.raises(DataLoss, match="offsets 20 to 40"):
        read(log, 3, 45)
    assert read(log, 3, 45, fail=False) == [*range(3, 20), *range(40, 45)]


def test_a_swap_under_the_reader_loses_and_repeats_nothing(log):
    """No record is lost or repeated if segments are swapped while the first one is read."""
    chunks = read_chunks(log.directory, 0, 60, fail_on_data_loss=True, chunk_bytes=300)
    first = next(chunks)
    log.stage(0, records(0, 40))
    log.swap_in(0, replaced=[0, 20])
    assert offsets([first, *chunks], 0, 60) == list(range(60))


@pytest.mark.parametrize("renamed", [[], [20], [0, 20]])
def test_a_swap_half_way_covers_every_offset(log, renamed):
    """In the middle of a swap, the replacement is read in place of the renamed files."""
    log.stage(0, records(0, 40))
    for base in renamed:
        log._rename(base, ".deleted")
    assert read(log, 0, 60) == list(range(60))


def test_a_cut_after_the_directory_was_listed_is_followed(log):
    """A read continues in a segment that was created after the directory was listed."""
    chunks = read_chunks(log.directory, 40, 70, fail_on_data_loss=True, chunk_bytes=300)
    first = next(chunks)
    log.cut()
    log.append(records(60, 70))
    assert offsets([first, *chunks], 40, 70) == list(range(40, 70))


def test_a_log_shorter_than_promised_is_an_error(log):
    """A log that ends before the requested offset raises ``CorruptionError``."""
    with pytest.raises(CorruptionError, match=r"ends at offset 60, but offset 61 was expected"):
        read(log, 50, 61)


def test_bytes_that_are_no_batch_are_an_error(log):
    """A damaged batch length in a sealed segment raises ``CorruptionError``."""
    path = log.path(20)
    data = bytearray(path.read_bytes())
    data[8:12] = b"\0\0\0\1"
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        read(log, 0, 60)


def test_listing_prefers_what_replaces(log):
    """A ``.swap`` file replaces the segment of the same name. Other suffixes are not listed."""
    log.stage(20, records(20, 40))
    log.path(0, suffix=".cleaned").touch()
    log.path(0, suffix=".torn-5").touch()
    assert [(s.base_offset, s.suffix) for s in list_segments(log.directory)] == [
        (0, ""),
        (20, ".swap"),
        (40, ""),
    ]


def test_a_batch_past_the_end_is_not_taken_when_a_gap_lies_before_it(tmp_path):
    """If the range ends within a gap, the batch after the gap is not returned."""
    log = HandMade(make_data_directory(tmp_path), TP)
    log.append(records(0, 3), records(8, 9))
    for chunk_bytes in (1, 1000):
        chunks = list(
            read_chunks(log.directory, 0, 5, fail_on_data_loss=True, chunk_bytes=chunk_bytes)
        )
        assert [chunk.end_offset for chunk in chunks] == [3]
        assert offsets(chunks, 0, 9) == [0, 1, 2]
        assert read(log, 0, 9, chunk_bytes=chunk_bytes) == [0, 1, 2, 8]
    log.close()
