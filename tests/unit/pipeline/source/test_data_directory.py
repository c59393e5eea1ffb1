"""Reading a data directory: topics, bounds, lookup by time, and pieces to read."""

import pytest

from cordwood.errors import NotDataDirectory, UnknownFormat
from cordwood.log.format.layout import FORMAT
from cordwood.model import TopicPartition
from cordwood.pipeline.source.data_directory import SegmentFileLog
from cordwood.pipeline.source.offsets import Bounds, Range
from cordwood.pipeline.source.segment_files import StartHint
from support.datadir import START_MS, HandMade, held, make_data_directory, records

TP = TopicPartition("t", 0)


@pytest.fixture
def data(tmp_path):
    return make_data_directory(tmp_path / "data")


@pytest.fixture
def log(data):
    made = HandMade(data, TP)
    for base in (0, 20, 40):
        made.append(*(records(start, start + 5) for start in range(base, base + 20, 5)))
        if base < 40:
            made.cut()
    yield made
    made.close()


def bounds(data):
    return SegmentFileLog(str(data)).bounds([TP])[TP]


def test_a_path_that_is_no_data_directory_is_refused(tmp_path):
    """A path that is not a data directory is refused, and the error says which path to use."""
    with pytest.raises(NotDataDirectory, match="cordwood serve --data"):
        SegmentFileLog(str(tmp_path))
    with pytest.raises(NotDataDirectory, match="is not a cordwood data directory"):
        SegmentFileLog(str(tmp_path / "nowhere"))


def test_a_newer_format_is_refused(data):
    """A data directory of a newer format version is refused."""
    (data / FORMAT).write_text("2\n")
    with pytest.raises(UnknownFormat, match="has format '2', but this cordwood reads 1"):
        SegmentFileLog(str(data))


def test_topics_are_the_partition_directories(data):
    """Topics come from the names of partition directories. Other directories are ignored."""
    for name in ("t-0", "t-1", "a-b-10", "staging", "t-01", "t-1.4f2-delete"):
        (data / name).mkdir()
    assert SegmentFileLog(str(data)).topics() == {"a-b": [10], "t": [0, 1]}


def test_a_directory_without_marks_ends_where_its_valid_bytes_end(data, log):
    """Without published offsets, the log ends after the last valid batch.

    A torn tail is not read.
    """
    assert bounds(data) == Bounds(0, 60)
    with log.active.open("ab") as file:
        file.write(b"torn")
    assert bounds(data) == Bounds(0, 60)


def test_nobody_reads_past_the_published_high_watermark_of_a_running_broker(data, log):
    """While a broker runs, nothing is read past the high watermark that it published."""
    log.publish()
    log.append(records(60, 65))
    with held(data):
        assert bounds(data) == Bounds(0, 60)
        log.publish()
        assert bounds(data) == Bounds(0, 65)


def test_what_a_killed_broker_left_is_readable_once_nobody_holds_the_lock(data, log):
    """Once no broker holds the lock, all valid batches can be read, as recovery would keep them."""
    log.publish()
    log.append(records(60, 65))
    assert bounds(data) == Bounds(0, 65)


def test_a_segment_cut_before_its_publish_is_not_read_while_a_broker_runs(data, log):
    """While a broker runs, a new segment past the published high watermark is not read."""
    log.publish()
    log.cut()
    log.append(records(60, 65))
    with held(data):
        assert bounds(data) == Bounds(0, 60)
    assert bounds(data) == Bounds(0, 65)


def test_the_published_log_start_counts(data, log):
    """The log starts at the published log start, or at the first segment if that is later."""
    log.publish(log_start=7)
    assert bounds(data) == Bounds(7, 60)
    log.reclaim(0)
    log.publish(log_start=7)
    assert bounds(data) == Bounds(20, 60)


def test_a_partition_that_is_gone_has_no_bounds(data):
    """A partition that does not exist is left out of the result."""
    assert SegmentFileLog(str(data)).bounds([TP]) == {}


@pytest.mark.parametrize("offset", [0, 3, 20, 33, 59])
def test_a_time_is_found_to_the_record(data, log, offset):
    """A time is found to the exact record, in sealed and in active segments."""
    directory = SegmentFileLog(str(data))
    assert directory.find_time(TP, START_MS + 1000 * offset) == offset
    assert directory.find_time(TP, START_MS + 1000 * offset - 999) == offset


def test_a_time_past_the_last_record_or_the_high_watermark_is_not_found(data, log):
    """A time after the last record, or after the high watermark, is not found."""
    directory = SegmentFileLog(str(data))
    assert directory.find_time(TP, START_MS + 60_000) is None
    log.publish()
    log.append(records(60, 65))
    with held(data):
        assert directory.find_time(TP, START_MS + 60_000) is None


def test_times_out_of_order_are_found_by_offset_order(data):
    """Timestamps may be out of order. The first offset that is not older than the time is found."""
    log = HandMade(data, TP)
    jumbled = [
        record.__class__(record.offset, START_MS + ms, record.key, record.value)
        for record, ms in zip(records(0, 6), [5, 1, 9, 2, 9, 7], strict=True)
    ]
    log.append(jumbled[:2], jumbled[2:4], jumbled[4:])
    log.cut()
    assert SegmentFileLog(str(data)).find_time(TP, START_MS + 6) == 2


@pytest.mark.parametrize("split_bytes", [1, 200, 10_000])
def test_pieces_cover_the_range_and_follow_segments(data, log, split_bytes):
    """Pieces cover the range without gaps and end at segments. Large segments are cut further."""
    pieces = SegmentFileLog(str(data)).pieces(Range(TP, 3, 57), split_bytes)
    assert [piece.start for piece in pieces] == [3, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == 57
    assert {20, 40} <= {piece.start for piece in pieces}
    assert (len(pieces) > 3) == (split_bytes < 10_000)


@pytest.mark.parametrize("split_bytes", [1, 200])
def test_pieces_of_a_part_of_a_segment_stay_within_it(data, log, split_bytes):
    """Pieces of a part of a segment stay within the range and count no byte of the file twice."""
    (first, *_) = sorted(data.glob("t-0/*.log"))
    pieces = SegmentFileLog(str(data)).pieces(Range(TP, 3, 12), split_bytes)
    assert len(pieces) > 1
    assert [piece.start for piece in pieces] == [3, *(piece.end for piece in pieces[:-1])]
    assert all(piece.start < piece.end <= 12 for piece in pieces)
    assert sum(piece.size_bytes for piece in pieces) < first.stat().st_size
    assert all(piece.size_bytes >= split_bytes for piece in pieces[:-1])
    whole = SegmentFileLog(str(data)).pieces(Range(TP, 0, 20), split_bytes)
    assert sum(piece.size_bytes for piece in whole) <= first.stat().st_size


def test_a_stream_continues_from_its_last_offsets(data, log):
    """The position of the last high watermark is the hint where the next read starts."""
    directory = SegmentFileLog(str(data))
    log.publish()
    size_bytes = log.active.stat().st_size
    directory.bounds([TP])
    log.append(records(60, 65))
    log.publish()
    directory.bounds([TP])
    assert directory.hint(TP, 60) == StartHint(60, 40, size_bytes)
    assert directory.hint(TP, 62) == StartHint(60, 40, size_bytes)
    assert directory.hint(TP, 59) is None
