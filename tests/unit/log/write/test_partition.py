"""A partition: appends, reads, time lookups, rolls, drops, truncations and disk errors."""

from __future__ import annotations

import threading
from dataclasses import replace
from uuid import UUID

import pytest

from cordwood.batch.header import parse_header
from cordwood.batch.records import encode_marker
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.errors import (
    CorruptionError,
    DiskFull,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionOffline,
    UnavailableError,
)
from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.layout import parse_metadata
from cordwood.log.read.segment import Retired
from cordwood.log.read.survey import survey
from cordwood.log.write.partition import Partition
from cordwood.model import Aborted, TimestampType
from support.clock import ManualClock
from support.crash import CrashFiles, FailingFiles, FullDisk
from support.logs import (
    NOW_MS,
    TP,
    a_batch,
    append,
    append_data,
    headers_of,
    open_partition,
    read_all,
    records_in,
    values_of,
)

SMALL = TopicConfig(index_interval_bytes=100, file_delete_delay_ms=1000)


def fill(partition: Partition, batches: int, *, roll_every: int = 0, per_batch: int = 3) -> None:
    """Append ``batches`` of numbered values; the record at offset o has the time ``NOW_MS + o``."""
    for i in range(batches):
        base = partition.log_end_offset
        offsets = range(base, base + per_batch)
        append(
            partition,
            *[b"v%d" % o for o in offsets],
            times_ms=[NOW_MS + o for o in offsets],
        )
        if roll_every and (i + 1) % roll_every == 0:
            partition.roll(RollReason.DEMAND)


# --- append and read --------------------------------------------------------------------------


def test_offsets_are_contiguous_and_values_come_back(tmp_path):
    """Offsets and values are the same across batches, segments and a reopening."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 20, roll_every=3)
    expected = {o: b"v%d" % o for o in range(60)}
    assert values_of(partition) == expected
    assert values_of(partition, max_bytes=1) == expected
    partition.close()
    reopened = open_partition(tmp_path, SMALL)
    assert values_of(reopened) == expected
    assert append(reopened, b"x").base_offset == 60


def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path):
    """A read never splits a batch; the reader skips the records before its offset."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 20)
    for offset in range(60):
        found = partition.read(offset, 1)
        assert found.first_offset == offset // 3 * 3
        assert found.next_offset == found.first_offset + 3
        assert [r.offset for r in records_in(found.data)] == list(
            range(found.first_offset, found.next_offset)
        )


def test_a_read_returns_whole_batches_up_to_its_size(tmp_path):
    """A read returns at least one whole batch, and otherwise at most the requested bytes."""
    partition = open_partition(tmp_path)
    fill(partition, 10)
    one = len(partition.read(0, 1).data)
    assert len(partition.read(0, 3 * one).data) == 3 * one
    assert len(partition.read(0, 3 * one - 1).data) == 2 * one
    append(partition, b"x" * 5000)
    assert len(partition.read(30, 10).data) > 5000


def test_what_is_not_published_cannot_be_read(tmp_path):
    """Records above the high watermark cannot be read, even when synced or in a sealed segment."""
    partition = open_partition(tmp_path, SMALL)
    append(partition, b"seen")
    append(partition, b"unseen", publish=False)
    assert (partition.high_watermark, partition.log_end_offset) == (1, 2)
    assert values_of(partition) == {0: b"seen"}
    assert partition.read(1, 1000).data == b""
    partition.roll(RollReason.DEMAND)
    append(partition, b"later", publish=False)
    assert values_of(partition) == {0: b"seen"}
    assert partition.read(1, 1000).data == b""
    assert partition.find_time(NOW_MS + 1) is None
    partition.sync()
    assert values_of(partition) == {0: b"seen"}
    partition.publish()
    assert values_of(partition) == {0: b"seen", 1: b"unseen", 2: b"later"}


def test_reads_outside_the_log_are_out_of_range(tmp_path):
    """A read below the log start or past the high watermark fails; a read at it returns no data."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 4)
    found = partition.read(12, 100)
    assert (found.data, found.next_offset) == (b"", 12)
    for offset in (-1, 13, 10**12):
        with pytest.raises(OffsetOutOfRange, match="high watermark 12"):
            partition.read(offset, 100)
    partition.advance_start(5)
    with pytest.raises(OffsetOutOfRange, match="log start 5"):
        partition.read(4, 100)
    assert read_all(partition)[0].offset == 5


def test_a_read_stops_at_its_end_offset(tmp_path):
    """A read returns no batch that begins at or after ``end_offset``, as read_committed needs."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 4)
    assert partition.read(0, 10_000, end_offset=6).next_offset == 6
    found = partition.read(6, 10_000, end_offset=6)
    assert (found.data, found.next_offset) == (b"", 6)


def test_appends_get_their_offset_and_term_patched_in(tmp_path):
    """An append changes only the base offset and the leader epoch of a batch."""
    partition = open_partition(tmp_path, leader_epoch=7)
    append(partition, b"a", b"b")
    sent = a_batch(b"c")
    before = bytes(sent)
    append_data(partition, sent)
    stored = partition.read(2, 1000).data
    assert parse_header(stored)[:3] == (2, len(before) - 12, 7)
    assert stored[16:] == before[16:]


def test_one_append_of_many_batches_is_one_write(tmp_path):
    """An append of several batches makes one write, and each batch gets its own offsets."""
    files = FailingFiles()
    partition = open_partition(tmp_path, files=files)
    append(partition, b"0")
    files.seen.clear()
    data = a_batch(b"1", b"2") + a_batch(b"3") + a_batch(b"4", b"5")
    appended = partition.append(data, headers_of(data))
    assert files.seen == ["write"]
    assert (appended.base_offset, appended.last_offset) == (1, 5)
    partition.publish()
    assert list(values_of(partition)) == [0, 1, 2, 3, 4, 5]


def test_append_time_topics_stamp_what_arrives(tmp_path):
    """With LogAppendTime, records get the broker's time, and the append returns that time."""
    clock = ManualClock(NOW_MS)
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    partition = open_partition(tmp_path, config, clock=clock)
    clock.advance(500)
    appended = append(partition, b"a", times_ms=[5])
    assert appended.append_ms == NOW_MS + 500
    stored = partition.read(0, 1000).data
    assert parse_header(stored).timestamp_type is TimestampType.APPEND
    assert records_in(stored)[0].timestamp_ms == NOW_MS + 500


# --- gaps -------------------------------------------------------------------------------------


def compact(partition: Partition, base_offset: int, keep: set[int]) -> None:
    """Replace one sealed segment by those of its batches that hold an offset in ``keep``."""
    info = next(s for s in partition.segments() if s.base_offset == base_offset)
    source = partition.directory / f"{base_offset:020d}.log"
    out, position, data = b"", 0, source.read_bytes()
    for header in headers_of(data):
        if keep & set(range(header.base_offset, header.end_offset)):
            out += data[position : position + header.size_bytes]
        position += header.size_bytes
    assert position == info.size_bytes
    (partition.directory / f"{base_offset:020d}.log.swap").write_bytes(out)
    partition.replace([base_offset], [base_offset])


def test_a_reader_is_never_stuck_in_a_gap(tmp_path):
    """A read at an offset that compaction removed returns the next batch, in a later segment.

    Rivven has a defect here: a reader at such an offset never receives data again.
    """
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 12, roll_every=3)  # segments 0, 9, 18, 27; active 36
    append(partition, b"live")
    compact(partition, 0, {0, 1, 2})
    compact(partition, 9, set())
    compact(partition, 18, set())
    for opened in (partition, None):
        log = opened or open_partition(tmp_path, SMALL)
        for offset in range(3, 28):
            found = log.read(offset, 1)
            assert found.first_offset == 27, offset
        assert list(values_of(log)) == [0, 1, 2, *range(27, 37)]
        assert [s.records for s in log.segments()] == [3, 0, 0, 9, 1]
        assert [s.end_offset for s in log.segments()] == [9, 18, 27, 36, 37]
        if opened:
            partition.close()


def test_a_reader_is_not_stuck_before_an_empty_end(tmp_path):
    """If all sealed segments are empty and so is the active one, a read moves to the log end."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 3, roll_every=3)
    compact(partition, 0, set())
    found = partition.read(0, 1000)
    assert (found.data, found.next_offset) == (b"", 9)
    assert partition.find_time(0) is None
    assert partition.find_max_time() is None


def test_counts_after_compaction_survive_a_restart_without_a_scan(tmp_path):
    """Record counts of compacted segments survive a restart without a scan."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 6, roll_every=3)
    compact(partition, 0, {3})
    before = partition.segments()
    partition.close()
    reopened = open_partition(tmp_path, SMALL)
    assert reopened.segments() == before
    assert before[0].records == 3
    assert reopened.recovery.scanned_bytes == 0


# --- time -------------------------------------------------------------------------------------


def test_a_time_is_found_to_the_record(tmp_path):
    """A time lookup returns the first record at or after the time, in any batch and segment."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 40, roll_every=7)
    for offset in range(120):
        found = partition.find_time(NOW_MS + offset)
        assert found is not None
        assert found[:2] == (NOW_MS + offset, offset)
    assert partition.find_time(0)[1] == 0
    assert partition.find_time(NOW_MS + 120) is None
    assert partition.find_max_time()[:2] == (NOW_MS + 119, 119)


def test_times_that_jump_back_and_forth_are_found(tmp_path):
    """With unordered timestamps, a lookup returns the first match in offset order."""
    partition = open_partition(tmp_path, SMALL)
    times = [(i * 7919) % 1000 for i in range(300)]
    for i in range(0, 300, 3):
        append(partition, b"a", b"b", b"c", times_ms=times[i : i + 3])
        if i % 60 == 0:
            partition.roll(RollReason.DEMAND)
    for wanted in range(0, 1000, 7):
        expected = next((o for o, t in enumerate(times) if t >= wanted), None)
        found = partition.find_time(wanted)
        assert (None if found is None else found.offset) == expected, wanted
    best = max(times)
    assert partition.find_max_time()[:2] == (best, times.index(best))


def test_records_below_the_log_start_are_not_found_by_time(tmp_path):
    """Time lookups ignore records below the log start, also inside a batch that spans the start."""
    partition = open_partition(tmp_path, SMALL)
    append(partition, b"a", b"b", b"c", times_ms=[900, 800, 100])
    append(partition, b"d", b"e", times_ms=[300, 200])
    partition.advance_start(2)
    assert partition.find_time(0)[1] == 2
    assert partition.find_time(150)[1] == 3
    assert partition.find_time(500) is None
    assert partition.find_max_time()[:2] == (300, 3)
    partition.advance_start(4)
    assert partition.find_max_time()[:2] == (200, 4)


def test_a_time_is_looked_for_while_nothing_is_published(tmp_path):
    """A time lookup ignores written and indexed batches until they are published."""
    config = TopicConfig(index_interval_bytes=0)
    partition = open_partition(tmp_path, config)
    for seal in (False, True):
        append(partition, b"a", times_ms=[NOW_MS])
        partition.advance_start(partition.high_watermark)
        append(partition, b"b", times_ms=[NOW_MS + 5], publish=False)
        if seal:
            partition.roll(RollReason.DEMAND)
        assert partition.find_time(0) is None
        assert partition.find_max_time() is None
        partition.publish()
        assert partition.find_time(0)[:2] == (NOW_MS + 5, partition.high_watermark - 1)
    assert partition.recovery.rebuilt == []


def test_a_time_lookup_does_not_walk_the_segment(tmp_path, monkeypatch):
    """One early record with a high timestamp does not make later time lookups linear."""
    partition = open_partition(tmp_path, TopicConfig(index_interval_bytes=500))
    append(partition, b"x", times_ms=[NOW_MS + 50])
    for _ in range(300):
        append(partition, b"y" * 100, times_ms=[NOW_MS])
    append(partition, b"z", times_ms=[NOW_MS + 60])
    headers = 0
    segment = partition._read_state.active
    real = type(segment).batches

    def counted(self, fd, position, limit):
        nonlocal headers
        for located in real(self, fd, position, limit):
            headers += 1
            yield located

    monkeypatch.setattr(type(segment), "batches", counted)
    assert partition.find_time(NOW_MS + 60)[1] == 301
    assert headers < 20


# --- roll -------------------------------------------------------------------------------------


def test_the_segment_is_cut_before_the_batch_that_would_pass_its_size(tmp_path):
    """The partition rolls at a batch boundary, before a batch would exceed segment_bytes."""
    size_bytes = len(a_batch(b"value"))
    partition = open_partition(tmp_path, TopicConfig(segment_bytes=3 * size_bytes))
    for _ in range(7):
        append(partition, b"value")
    sealed, more, active = partition.segments()
    assert (sealed.base_offset, sealed.end_offset, sealed.records) == (0, 3, 3)
    assert sealed.size_bytes == 3 * size_bytes
    assert (more.base_offset, active.base_offset, active.records) == (3, 6, 1)


def test_an_empty_segment_is_not_cut(tmp_path):
    """Rolling an empty segment does nothing."""
    partition = open_partition(tmp_path)
    assert partition.roll(RollReason.DEMAND) is None
    append(partition, b"a")
    assert partition.roll(RollReason.DEMAND).records == 1
    assert partition.roll(RollReason.DEMAND) is None
    assert len(partition.segments()) == 2


def test_the_log_file_never_has_padding(tmp_path):
    """The log file ends with its last batch, because Kafka's tools reject trailing zeros."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 5)
    path = partition.directory / f"{0:020d}.log"
    assert path.stat().st_size == partition.segments()[0].size_bytes
    partition.close()
    assert path.stat().st_size == partition.segments()[0].size_bytes


# --- producers --------------------------------------------------------------------------------


def test_a_retried_append_answers_with_its_first_offsets(tmp_path):
    """A retried append returns its first offsets and stores nothing, also after a restart."""
    fields = {"producer_id": 5, "producer_epoch": 0}
    partition = open_partition(tmp_path)
    append(partition, b"a", b"b", base_sequence=0, **fields)
    append(partition, b"c", base_sequence=2, **fields)
    again = append(partition, b"a", b"b", base_sequence=0, **fields)
    assert (again.base_offset, again.last_offset, again.is_duplicate) == (0, 1, True)
    partition.close()
    reopened = open_partition(tmp_path)
    assert append(reopened, b"c", base_sequence=2, **fields).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        append(reopened, b"d", base_sequence=9, **fields)
    assert list(values_of(reopened)) == [0, 1, 2]


def test_producers_are_known_after_a_roll_and_a_crash(tmp_path):
    """After a crash, producer state comes from the last snapshot and the active segment."""
    fields = {"producer_id": 5, "producer_epoch": 3}
    partition = open_partition(tmp_path)
    append(partition, b"a", base_sequence=0, **fields)
    append(partition, b"other", producer_id=6, producer_epoch=0, base_sequence=0)
    partition.roll(RollReason.DEMAND)
    append(partition, b"b", base_sequence=1, **fields)
    reopened = open_partition(tmp_path)  # not closed: a crash
    assert reopened.producers.last_sequence(5, 3) == 1
    assert reopened.producers.last_sequence(6, 0) == 0
    assert append(reopened, b"c", base_sequence=2, **fields).base_offset == 3


def test_a_refused_append_changes_nothing(tmp_path):
    """A rejected append changes neither the file nor the next offset.

    This holds also if only a later batch of the append is bad.
    """
    partition = open_partition(tmp_path)
    fields = {"producer_id": 5, "producer_epoch": 0}
    append(partition, b"a", base_sequence=0, **fields)
    size_bytes = partition.size_bytes
    data = a_batch(b"b", base_sequence=1, **fields) + a_batch(b"c", base_sequence=7, **fields)
    with pytest.raises(OutOfOrderSequence):
        append_data(partition, data)
    assert (partition.log_end_offset, partition.size_bytes) == (1, size_bytes)


def a_marker(commit: bool, producer_id: int = 5) -> bytearray:
    return bytearray(
        encode_marker(
            commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=NOW_MS,
        )
    )


def test_aborted_transactions_are_reported_across_segments_and_restarts(tmp_path):
    """Aborted transactions are returned for a range of offsets, across segments and restarts."""
    partition = open_partition(tmp_path, SMALL)
    fields = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    append(partition, b"plain")
    append(partition, b"t0", base_sequence=0, **fields)
    assert (partition.last_stable_offset, partition.high_watermark) == (1, 2)
    partition.roll(RollReason.DEMAND)
    append(partition, b"t1", base_sequence=1, **fields)
    append_data(partition, a_marker(commit=False))  # offset 3
    append(partition, b"t2", base_sequence=2, **fields)
    append_data(partition, a_marker(commit=True))  # offset 5
    append(partition, b"t3", base_sequence=3, **fields)
    append_data(partition, a_marker(commit=False))  # offset 7
    first, second = Aborted(5, 1, 3, 4), Aborted(5, 6, 7, 8)
    for close in (False, True):
        assert partition.last_stable_offset == 8
        assert partition.aborted(0, 8) == [first, second]
        assert partition.aborted(0, 1) == []
        assert partition.aborted(2, 6) == [first]
        assert partition.aborted(4, 8) == [second]
        if close:
            partition.roll(RollReason.DEMAND)
            partition.close()
        partition = open_partition(tmp_path, SMALL)
    assert partition.aborted(0, 8) == [first, second]


def test_an_undecided_transaction_survives_a_restart(tmp_path):
    """After a restart, the last stable offset is still the first offset of the open transaction."""
    partition = open_partition(tmp_path, SMALL)
    append(partition, b"plain")
    append(partition, b"t", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    partition.roll(RollReason.DEMAND)
    append(partition, b"plain")
    reopened = open_partition(tmp_path, SMALL)
    assert (reopened.last_stable_offset, reopened.high_watermark) == (1, 3)


# --- drop and readers ---------------------------------------------------------------------------


def test_dropped_segments_are_renamed_and_removed_later(tmp_path):
    """A drop advances the log start; the files stay until the delete delay has passed."""
    clock = ManualClock(NOW_MS)
    partition = open_partition(tmp_path, SMALL, clock=clock)
    fill(partition, 9, roll_every=3)
    dropped = partition.drop([0, 9])
    assert [s.base_offset for s in dropped] == [0, 9]
    assert partition.log_start_offset == 18
    assert list(values_of(partition)) == list(range(18, 27))
    names = {p.name for p in partition.directory.iterdir()}
    assert f"{0:020d}.log.deleted" in names
    assert f"{0:020d}.log" not in names
    assert partition.purge_deleted(clock.now_ms() + 999) == 0
    assert partition.purge_deleted(clock.now_ms() + 1000) == 7
    assert not [p for p in partition.directory.iterdir() if p.name.endswith(".deleted")]


def test_a_drop_renames_the_oldest_log_first_and_then_syncs_the_directory(tmp_path):
    """A drop renames the oldest segment first, so a crash leaves only the newer part of the log."""
    files = CrashFiles(tmp_path)
    partition = open_partition(tmp_path, SMALL, files=files)
    fill(partition, 6, roll_every=3)
    files.effects.clear()
    partition.drop([0, 9])
    names = [(effect.name, effect.path.name) for effect in files.effects]
    assert names[0] == ("rename", f"{0:020d}.log.deleted")
    assert names[3] == ("rename", f"{9:020d}.log.deleted")
    assert names[-1] == ("sync_dir", partition.directory.name)
    assert [name for name, _ in names].count("sync_dir") == 1


def test_leftovers_of_an_earlier_process_are_removed_at_open(tmp_path):
    """Opening removes dropped files, temporary files, and indexes without a log."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 6, roll_every=3)
    partition.drop([0])
    partition.close()
    directory = partition.directory
    (directory / "segment-facts-checkpoint.tmp").write_bytes(b"half")
    (directory / f"{3:020d}.index").write_bytes(bytes(8))
    (directory / f"{3:020d}.snapshot").write_bytes(b"x")
    reopened = open_partition(tmp_path, SMALL)
    names = {p.name for p in directory.iterdir()}
    assert not [n for n in names if n.endswith((".deleted", ".tmp"))]
    assert not [n for n in names if n.startswith(f"{3:020d}")]
    assert reopened.recovery.notes == []


def test_a_reader_in_a_dropped_file_reads_on(tmp_path):
    """A reader with the file open reads on; a reader that must open the file gets ``Retired``."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 9, roll_every=3)
    old_view = partition._read_state.view
    before = old_view.read(3, 1000, 9)  # opens the first file
    partition.drop([0, 9])
    assert old_view.read(3, 1000, 9) == before
    with pytest.raises(Retired):
        old_view.read(10, 1000, 18)
    with pytest.raises(OffsetOutOfRange):
        partition.read(10, 1000)


def test_readers_see_no_gap_repeat_or_error_while_segments_are_replaced(tmp_path):
    """Concurrent readers get every record once while all sealed segments are replaced."""
    partition = open_partition(tmp_path, SMALL, descriptors=FileCache(idle_max=2))
    fill(partition, 12, roll_every=3)
    expected = list(range(36))
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                found = [r.offset for r in read_all(partition, 200)]
            except Exception as error:  # noqa: BLE001
                wrong.append(error)
                return
            if found != expected:
                wrong.append(found)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(15):
        for base in (0, 9, 18, 27):
            compact(partition, base, set(expected))
        partition.purge_deleted(NOW_MS + 10_000)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong, wrong[0]


def test_open_files_are_bounded(tmp_path):
    """The number of open files stays at its maximum, however many segments are read."""
    descriptors = FileCache(idle_max=4)
    partition = open_partition(tmp_path, SMALL, descriptors=descriptors)
    fill(partition, 30, roll_every=1)
    assert len(read_all(partition)) == 90
    assert descriptors.open_count == 4
    partition.close()
    assert descriptors.open_count == 0


def test_a_closed_partition_answers_that_it_is_closed(tmp_path):
    """Reads and appends on a closed partition raise PartitionOffline; closing twice is no error."""
    partition = open_partition(tmp_path, SMALL)
    append(partition, b"a")
    partition.close()
    partition.close()
    with pytest.raises(PartitionOffline, match="closed"):
        append(partition, b"b")
    with pytest.raises(PartitionOffline):
        partition.read(0, 100)


# --- truncate -----------------------------------------------------------------------------------


def test_truncation_removes_whole_batches_and_later_segments(tmp_path):
    """Truncation removes the batch that holds the offset and everything after it."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 12, roll_every=3)
    partition.truncate_to(14)
    assert (partition.log_end_offset, partition.high_watermark) == (12, 12)
    assert list(values_of(partition)) == list(range(12))
    append(partition, b"new")
    assert values_of(partition)[12] == b"new"
    reopened = open_partition(tmp_path, SMALL)
    assert list(values_of(reopened)) == list(range(13))


def test_truncation_takes_producer_state_back(tmp_path):
    """Truncation also removes the truncated sequences and transactions from the producer state."""
    partition = open_partition(tmp_path, SMALL)
    fields = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    append(partition, b"a", base_sequence=0, **fields)
    append_data(partition, a_marker(commit=True))
    partition.roll(RollReason.DEMAND)
    append(partition, b"b", base_sequence=1, **fields)
    append_data(partition, a_marker(commit=False))
    partition.truncate_to(2)
    assert partition.producers.last_sequence(5, 0) == 0
    assert partition.aborted(0, 10) == []
    assert append(partition, b"b", base_sequence=1, **fields).base_offset == 2
    assert partition.last_stable_offset == 2


def test_a_reader_caught_by_a_truncation_reads_again(tmp_path):
    """A reader of a truncated segment discards what it read and gets ``Retired``."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 6)
    view = partition._read_state.view
    segment = view.segments[0]
    with segment.reading():  # a reader that started before the truncation
        partition.truncate_to(9)
        for offset in (0, 12):
            with pytest.raises(Retired):
                segment.read(offset, 10_000, 18, view.end_position)
    with pytest.raises(OffsetOutOfRange):
        partition.read(12, 1000)
    assert list(values_of(partition)) == list(range(9))


def test_truncation_below_the_log_start_is_refused(tmp_path):
    """Truncation below the log start fails; truncation past the log end does nothing."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 4)
    partition.truncate_to(99)
    assert partition.log_end_offset == 12
    partition.advance_start(6)
    with pytest.raises(OffsetOutOfRange):
        partition.truncate_to(5)


# --- leader epochs ------------------------------------------------------------------------------


def test_terms_are_remembered_with_their_first_offset(tmp_path):
    """The checkpoint stores the first offset of each leader epoch, so its end can be looked up."""
    for term in (3, 5):
        partition = open_partition(tmp_path, leader_epoch=term)
        append(partition, b"a", b"b")
        partition.close()
    text = (partition.directory / "leader-epoch-checkpoint").read_text()
    assert text == "0\n2\n3 0\n5 2\n"
    partition = open_partition(tmp_path, leader_epoch=6)
    assert partition.epoch_end(3) == (3, 2)
    assert partition.epoch_end(4) == (3, 2)
    assert partition.epoch_end(5) == (5, 4)
    assert partition.epoch_end(2) == (2, 0)
    assert partition.epoch_end(6) is None


def test_the_topics_id_is_written_beside_the_log(tmp_path):
    """The topic ID is written to ``partition.metadata`` in Kafka's format."""
    topic_id = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
    partition = open_partition(tmp_path, topic_id=topic_id)
    text = (partition.directory / "partition.metadata").read_bytes()
    assert text == b"version: 0\ntopic_id: EjRWeJCrze8SNFZ4kKvN7w"
    assert parse_metadata(text) == topic_id


# --- disk errors --------------------------------------------------------------------------------


def test_a_full_disk_changes_nothing_and_heals(tmp_path):
    """A failed write on a full disk is undone; reads go on, and appends succeed with free space."""
    disk = FullDisk(10**6)
    partition = open_partition(tmp_path, files=disk)
    append(partition, b"a")
    size_bytes = partition.size_bytes
    for left in (0, 1, 60):
        disk.left_bytes = left
        with pytest.raises(DiskFull, match="free space"):
            append(partition, b"b" * 100)
        path = partition.directory / f"{0:020d}.log"
        assert path.stat().st_size == size_bytes
        assert values_of(partition) == {0: b"a"}
        assert partition.log_end_offset == 1
    disk.left_bytes = 10**6
    append(partition, b"c")
    assert values_of(partition) == {0: b"a", 1: b"c"}
    partition.close()
    assert open_partition(tmp_path).recovery.cut_bytes == 0


def test_a_disk_too_full_to_roll_keeps_the_segment_active(tmp_path):
    """An append that needs a roll fails while the disk is full, and succeeds later."""
    disk = FullDisk(10**6)
    config = TopicConfig(segment_entries=2)
    partition = open_partition(tmp_path, config, files=disk)
    append(partition, b"a", b"b")
    disk.left_bytes = 3
    with pytest.raises(DiskFull):
        append(partition, b"c")
    assert len(partition.segments()) == 1
    disk.left_bytes = 10**6
    append(partition, b"c")
    assert len(partition.segments()) == 2
    assert values_of(partition) == {0: b"a", 1: b"b", 2: b"c"}


def test_an_io_error_on_a_write_is_undone(tmp_path):
    """A write that fails with an I/O error raises UnavailableError and changes nothing."""
    files = FailingFiles()
    partition = open_partition(tmp_path, files=files)
    append(partition, b"a")
    files.refused = {"write"}
    with pytest.raises(UnavailableError, match="Input/output error"):
        append(partition, b"b")
    files.refused = set()
    assert append(partition, b"c").base_offset == 1


def test_a_failed_sync_is_not_tried_again(tmp_path):
    """After a failed fsync the partition rejects writes.

    Published records stay readable, and unpublished ones are removed when the partition reopens.
    """
    files = FailingFiles()
    partition = open_partition(tmp_path, files=files)
    append(partition, b"a")
    append(partition, b"b", publish=False)
    files.refused = {"sync_data"}
    with pytest.raises(PartitionOffline, match="sync failed"):
        partition.sync()
    files.refused = set()
    files.seen.clear()
    with pytest.raises(PartitionOffline):
        partition.sync()
    with pytest.raises(PartitionOffline):
        append(partition, b"c")
    assert "sync_data" not in files.seen
    assert values_of(partition) == {0: b"a"}
    partition.close()
    assert values_of(open_partition(tmp_path)) == {0: b"a"}


def test_a_write_that_cannot_be_undone_takes_the_partition_offline(tmp_path):
    """If a failed write cannot be undone, the partition goes offline until it is reopened."""
    files = FailingFiles()
    partition = open_partition(tmp_path, files=files)
    append(partition, b"a")
    files.refused = {"write", "truncate"}
    with pytest.raises(PartitionOffline, match="could not be undone"):
        append(partition, b"b")
    files.refused = set()
    with pytest.raises(PartitionOffline):
        append(partition, b"c")
    assert values_of(open_partition(tmp_path)) == {0: b"a"}


# --- survey -------------------------------------------------------------------------------------


def test_a_survey_finds_what_the_partition_knew(tmp_path):
    """The statistics and indexes of a sealed segment can be rebuilt from its log file alone."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 12, roll_every=12)
    sealed = partition._read_state.segments[0]
    found, index = survey(
        sealed.path(), 0, interval_bytes=100, created_ms=sealed.created_ms, verify=True
    )
    assert found == sealed.stats()
    stem = partition.directory / f"{0:020d}"
    assert index.encode_offsets() == stem.with_suffix(".index").read_bytes()
    assert index.encode_times() == stem.with_suffix(".timeindex").read_bytes()


def test_a_survey_refuses_any_end_but_a_clean_one(tmp_path):
    """A survey of a sealed segment fails if the file has a torn or corrupt end."""
    partition = open_partition(tmp_path, SMALL)
    fill(partition, 3)
    path = partition.directory / f"{0:020d}.log"
    data = path.read_bytes()
    for wrong in (data[:-1], data + b"\0", data[:-1] + b"\xff"):
        path.write_bytes(wrong)
        with pytest.raises(CorruptionError, match="restore"):
            survey(path, 0, interval_bytes=100, created_ms=0, verify=True)


def test_settings_can_change_while_open(tmp_path):
    """Changed settings apply from the next append on."""
    partition = open_partition(tmp_path)
    append(partition, b"a", b"b")
    partition.config = replace(partition.config, segment_entries=2)
    append(partition, b"c")
    assert [s.base_offset for s in partition.segments()] == [0, 2]
    assert partition.tp == TP
