"""The segment reader that the broker and Spark share, tested on files alone."""

from __future__ import annotations

import pytest

from cordwood.errors import CorruptionError
from cordwood.log.format.layout import FileKind
from cordwood.log.format.producers import encode_aborted
from cordwood.log.read.segment_reader import SegmentReader
from cordwood.model import Aborted, TopicPartition
from support.datadir import START_MS, HandMade, make_data_directory, records


@pytest.fixture
def log(tmp_path):
    """A sealed segment with offsets [0, 40) in batches of five, and an active one with [40, 50)."""
    made = HandMade(make_data_directory(tmp_path / "data"), TopicPartition("t", 0))
    made.append(*(records(start, start + 5) for start in range(0, 40, 5)))
    made.cut()
    made.append(records(40, 45), records(45, 50))
    yield made
    made.close()


def batches(segment: SegmentReader) -> list[tuple[int, int]]:
    """Position and last offset of every batch."""
    with segment.reading() as fd:
        walk = segment.batches(fd, 0, segment.size_bytes)
        return [(located.position, located.header.last_offset) for located in walk]


def without_index(log, segment):
    log.path(segment.base_offset, FileKind.INDEX).unlink()


def with_wrong_index(log, segment):
    path = log.path(segment.base_offset, FileKind.INDEX)
    path.write_bytes(path.read_bytes().replace(b"\x01", b"\x02"))


def with_index_of_half_an_entry(log, segment):
    path = log.path(segment.base_offset, FileKind.TIMEINDEX)
    path.write_bytes(path.read_bytes()[:-5])


def as_it_is(log, segment):
    pass


@pytest.mark.parametrize(
    "prepare", [as_it_is, without_index, with_wrong_index, with_index_of_half_an_entry]
)
def test_every_offset_and_time_is_found_whatever_the_index_is(log, prepare):
    """A missing or wrong index makes a lookup slower but never changes its result."""
    segment = SegmentReader(log.directory, 0)
    expected = batches(segment)
    prepare(log, segment)
    with segment.reading() as fd:
        for offset in range(40):
            position = segment.locate(fd, offset, segment.size_bytes)
            assert position == next(at for at, last in expected if last >= offset)
    for offset in range(40):
        with segment.reading() as fd:
            time_ms = START_MS + 1000 * offset - 1
            match = segment.first_at_time(fd, time_ms, 0, 40, segment.size_bytes)
        assert match is not None
        assert match.record.offset == offset


def test_a_time_lookup_stays_in_its_range(log):
    """Records before ``start`` and from ``end`` on are ignored."""
    segment = SegmentReader(log.directory, 0)
    with segment.reading() as fd:
        size_bytes = segment.size_bytes
        match = segment.first_at_time(fd, START_MS, 7, 40, size_bytes)
        assert match is not None
        assert match.record.offset == 7
        assert segment.first_at_time(fd, START_MS + 12_000, 0, 12, size_bytes) is None
        assert segment.first_at_time(fd, START_MS + 60_000, 0, 40, size_bytes) is None


def test_the_active_segment_needs_no_index_files(log):
    """The active segment has no index files, so the reader walks it from its start."""
    segment = SegmentReader(log.directory, 40)
    with segment.reading() as fd:
        assert segment.locate(fd, 47, segment.size_bytes) == batches(segment)[1][0]
        assert segment.locate(fd, 50, segment.size_bytes) is None


def test_damage_is_reported_with_file_and_position(log):
    """The reader raises an error that names the position of the damaged batch."""
    segment = SegmentReader(log.directory, 40)
    position = batches(segment)[1][0]
    data = bytearray(log.path(40).read_bytes())
    data[position + 16] = 7
    log.path(40).write_bytes(data)
    with segment.reading() as fd, pytest.raises(CorruptionError, match=f"position {position}"):
        segment.locate(fd, 47, segment.size_bytes)


def test_a_run_ends_before_the_end_offset_and_has_at_least_one_batch(log):
    """A run has at least one batch, whatever the byte limit.

    It holds only batches that begin before the end offset. Without any such batch the result is
    None.
    """
    segment = SegmentReader(log.directory, 0)
    positions = [at for at, _ in batches(segment)]
    with segment.reading() as fd:
        size_bytes = segment.size_bytes
        for max_bytes in (1, positions[1], positions[2] - 1):
            run = segment.take(fd, 0, max_bytes, 40, limit=size_bytes)
            assert run is not None
            assert (len(run.data), run.first_offset, run.next_offset) == (positions[1], 0, 5)
        run = segment.take(fd, positions[1], size_bytes, 12, limit=size_bytes)
        assert run is not None
        assert (run.first_offset, run.next_offset) == (5, 15)
        assert segment.take(fd, positions[3], size_bytes, 15, limit=size_bytes) is None


def test_aborted_transactions_come_from_the_transaction_index(log):
    """A damaged index raises an error that names the file; it never gives an empty result."""
    segment = SegmentReader(log.directory, 0)
    entries = [Aborted(7, 1, 5, 6), Aborted(8, 2, 9, 10)]
    log.path(0, FileKind.TXNINDEX).write_bytes(encode_aborted(entries))
    assert segment.read_aborted() == entries
    log.path(0, FileKind.TXNINDEX).write_bytes(encode_aborted(entries)[:-1])
    with pytest.raises(CorruptionError, match="txnindex"):
        segment.read_aborted()
