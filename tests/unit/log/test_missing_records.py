"""A start detects that acknowledged records are missing, whichever files remain."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest

from cordwood.batch.header import check_batches
from cordwood.batch.records import encode_batch
from cordwood.errors import (
    CorruptionError,
    PartitionOffline,
    RequestError,
    UnavailableError,
)
from cordwood.log.format.layout import SEGMENT_FACTS
from cordwood.log.format.segment_stats import SegmentStats
from cordwood.log.recovery.missing import missing_files, remedy
from cordwood.log.write.commit import Append
from cordwood.log.write.partition import Appended
from cordwood.log.write.writer import Writer
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import Record
from support.event_loops import ImmediateLoop
from support.stores import TP, append, append_sealed, open_store, values_in

LOG_0 = "00000000000000000000.log"
LOG_2 = "00000000000000000002.log"


def acknowledged(store, *values, durability="fsync"):
    """Append one value after the other as the broker does; return when all are acknowledged."""
    writer = Writer(durability, record_ends=store.partition_directories.recovery_points.record)
    writer.start(ImmediateLoop())
    try:
        for value in values:
            records = [Record(0, 1000, value[:1].encode(), value.encode())]
            data = bytearray(encode_batch(records))
            headers, done = check_batches(data, 1 << 20), Future()
            writer.submit(Append(store.partition(TP), data, headers, 1, done.set_result))
            assert isinstance(done.result(timeout=60), Appended)
    finally:
        writer.close()


def killed(store) -> Path:
    """A copy of the directory as it is now, as a killed process would leave it."""
    left = store.data.with_name("left")
    shutil.copytree(store.data, left)
    return left


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "data")
    opened.create_topic("t", 1)
    yield opened
    opened.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("accident", ["log", "directory", "emptied"])
def test_a_first_segment_that_vanished_takes_its_partition_offline(store, accident, durability):
    """The loss is detected in the first leader epoch, with no segment sealed or indexed."""
    acknowledged(store, "a", durability=durability)
    left = killed(store)
    if accident == "log":
        (left / "t-0" / LOG_0).unlink()
    elif accident == "directory":
        shutil.rmtree(left / "t-0")
    else:
        (left / "t-0" / LOG_0).write_bytes(b"")
    before = list(left.glob("t-0/*.log"))
    options = {
        "log": "has no .log file",
        "directory": "its directory .* is missing",
        "emptied": "ends at",
    }
    for _ in range(2):  # a start must keep the evidence for the next start
        again = open_store(left)
        remedy = f"{options[accident]}.*`cordwood topic accept-loss t 0`"
        with pytest.raises(PartitionOffline, match=remedy):
            again.partition(TP)
        again.close()
        assert list(left.glob("t-0/*.log")) == before, "no new log is begun"


def test_a_directory_that_was_there_before_and_is_gone_is_missed_though_it_was_empty(store):
    """After the first leader epoch a missing directory takes the partition offline.

    An earlier start created the directory, so it was removed, and unknown records may be lost.
    """
    store.close()
    open_store(store.data).close()
    shutil.rmtree(store.data / "t-0")
    again = open_store(store.data)
    with pytest.raises(PartitionOffline, match=r"its directory .* is missing"):
        again.partition(TP)
    again.close()


def test_a_segment_sealed_by_an_append_and_not_yet_indexed_is_missed(store):
    """A missing segment is detected although the catalog does not list it yet."""
    store.alter_topic("t", {"segment.bytes": "100"})
    acknowledged(store, "a" * 60, "b" * 60, "c" * 60)
    assert len(store.partition(TP).segments()) == 3
    assert store.metadata.cluster.segments(TP).entries() == []
    for name in ("00000000000000000000", "00000000000000000001", "00000000000000000002"):
        left = killed(store)
        (left / "t-0" / f"{name}.log").unlink()
        again = open_store(left)
        assert list(again.offline) == [TP], name
        again.close()
        shutil.rmtree(left)


def test_a_first_sealed_segment_without_any_checkpoint_is_missed(store):
    """The catalog stores the log start, so a log that begins later is known to lack records."""
    store.alter_topic("t", {"segment.bytes": "100"})
    acknowledged(store, "a" * 60, "b" * 60)
    left = killed(store)
    (left / "t-0" / LOG_0).unlink()
    (left / "t-0" / SEGMENT_FACTS).unlink()
    again = open_store(left)
    with pytest.raises(PartitionOffline, match="starts at offset 1, but the log starts at 0"):
        again.partition(TP)
    again.close()


def test_a_log_cut_between_two_batches_after_a_clean_stop_is_missed(store):
    """The catalog stores the log end, so lost batches are detected without the checkpoint."""
    append(store.partition(TP), "a")
    size_bytes = (store.data / "t-0" / LOG_0).stat().st_size
    append(store.partition(TP), "b")
    store.close()
    with (store.data / "t-0" / LOG_0).open("r+b") as file:
        file.truncate(size_bytes)
    (store.data / "t-0" / SEGMENT_FACTS).unlink()
    again = open_store(store.data)
    with pytest.raises(PartitionOffline, match=r"ends at offset 1, .* up to offset 1 were written"):
        again.partition(TP)
    again.close()


def test_what_was_never_known_to_be_written_is_not_missed(store):
    """A crash before the first acknowledgement leaves a new partition, not a lost one."""
    left = killed(store)
    shutil.rmtree(left / "t-0")
    again = open_store(left)
    assert again.offline == {}
    again.close()


def test_the_end_is_noted_once_a_segment_and_not_once_an_append(store):
    """The recovery point is written once per start and per roll, not for every append."""
    noted: list[int] = []
    put = store.metadata.cluster.put_recovery_points
    store.metadata.cluster.put_recovery_points = lambda points: (
        noted.append(points[TP]),
        put(points),
    )
    acknowledged(store, *"abcdef")
    assert noted == [1]


def test_an_end_that_could_not_be_noted_is_noted_with_the_next_append(store, caplog):
    """If writing the recovery point fails, the append still succeeds and the failure is logged."""
    put, failures = store.metadata.cluster.put_recovery_points, ["meta.db is busy"]

    def fail_once(points):
        if failures:
            raise UnavailableError(failures.pop())
        put(points)

    store.metadata.cluster.put_recovery_points = fail_once
    acknowledged(store, "a", "b")
    assert "recovery_point.not_written" in caplog.text
    assert store.metadata.cluster.recovery_point(TP) == 2


def test_a_deleted_topic_takes_its_recovery_points_along(store):
    """A new topic with the name of a deleted one starts empty and online."""
    acknowledged(store, "a")
    store.delete_topic("t")
    store.create_topic("t", 1)
    store.close()
    again = open_store(store.data)
    assert again.offline == {}
    assert again.partition(TP).log_end_offset == 0
    again.close()


# --- accepting the loss -------------------------------------------------------------------------


def test_an_accepted_loss_goes_on_where_the_log_is_known_to_have_been(store):
    """After an accepted loss no offset is used twice, and a restart finds the log sound."""
    acknowledged(store, "a", "b")
    reader = ReaderPartition("r", *TP)
    store.metadata.readers.commit_cursors(
        {reader: Cursor(2), reader._replace(reader="x"): Cursor(2**62)}
    )
    left = killed(store)
    shutil.rmtree(left / "t-0")
    again = open_store(left)
    accepted = again.accept_loss(TP)
    assert accepted == (2, 2, 2)
    append(again.partition(TP), "c")
    assert values_in(again.partition(TP)) == {2: "c"}
    again.close()
    third = open_store(left)
    assert values_in(third.partition(TP)) == {2: "c"}
    third.close()


def test_an_accepted_loss_keeps_all_that_is_left(store):
    """The remaining records are served at their offsets, around a gap and a missing end."""
    append_sealed(store, "ab", "cd", "ef")
    append(store.partition(TP), "g")
    store.close()
    for name in (LOG_2, "00000000000000000006.log"):
        (store.data / "t-0" / name).unlink()
    again = open_store(store.data)
    assert list(again.offline) == [TP]
    accepted = again.accept_loss(TP)
    assert accepted == (0, 6, 7)
    append(again.partition(TP), "h")
    expected = {0: "a", 1: "b", 4: "e", 5: "f", 7: "h"}
    assert values_in(again.partition(TP)) == expected
    again.close()
    third = open_store(store.data)
    assert values_in(third.partition(TP)) == expected
    third.close()


def test_a_damaged_partition_is_not_accepted(store):
    """Damaged records still exist and a copy may repair them, so no loss can be accepted."""
    append_sealed(store, "ab")
    append(store.partition(TP), "c")
    store.close()
    (store.data / "t-0" / LOG_2).write_bytes(b"garbage" * 100)
    again = open_store(store.data)
    with pytest.raises(CorruptionError, match="nothing was truncated"):
        again.accept_loss(TP)
    assert list(again.offline) == [TP]
    again.close()


def test_a_partition_that_serves_has_no_loss_to_accept(store):
    """``accept_loss`` on an online partition is refused and changes nothing."""
    append(store.partition(TP), "a")
    with pytest.raises(RequestError, match="t-0 is online"):
        store.accept_loss(TP)
    assert values_in(store.partition(TP)) == {0: "a"}


# --- pure functions -----------------------------------------------------------------------------


def test_a_file_before_all_others_may_have_been_dropped():
    """A segment counts as missing if it held records and an older segment still has its file.

    Without any file, every segment with records from the log start on is missing.
    """
    lines = {
        base: SegmentStats.blank(base, 0)._replace(end_offset=base + 10, size_bytes=size)
        for base, size in {0: 5, 10: 5, 20: 5, 30: 0}.items()
    }
    assert [line.base_offset for line in missing_files(lines, {10}, 0)] == [20]
    assert [line.base_offset for line in missing_files(lines, {0, 20}, 0)] == [10]
    assert [line.base_offset for line in missing_files(lines, (), 10)] == [10, 20]
    assert missing_files(lines, {10, 20}, 0) == []


def test_the_remedy_names_the_partition_it_is_for():
    """The remedy ends with a command that can be copied and run."""
    assert remedy("a-b-3").endswith("`cordwood topic accept-loss a-b 3`")
