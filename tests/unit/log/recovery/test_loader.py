"""Opening a partition: each state of the directory that the table in ``recovery`` lists."""

from __future__ import annotations

import struct

import pytest

from cordwood.batch.records import encode_marker
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.errors import CorruptionError
from cordwood.log.format.scan import End
from cordwood.log.write.partition import Partition
from support.crash import FailingFiles
from support.logs import NOW_MS, append, append_data, open_partition, values_of

CONFIG = TopicConfig(index_interval_bytes=100)
OFFSETS = struct.Struct(">ii")
ACTIVE, SEALED = f"{18:020d}", f"{9:020d}"


@pytest.fixture
def log(tmp_path) -> Partition:
    """Sealed segments at 0 and 9 and an active one at 18, of nine records each; not closed."""
    return build(tmp_path)


def build(root) -> Partition:
    partition = open_partition(root, CONFIG)
    for i in range(9):
        append(partition, b"v%d" % (3 * i), b"v%d" % (3 * i + 1), b"v%d" % (3 * i + 2))
        if i in {2, 5}:
            partition.roll(RollReason.DEMAND)
    return partition


ALL = {o: b"v%d" % o for o in range(27)}


# --- no files -----------------------------------------------------------------------------------


def test_a_missing_directory_is_created_at_the_log_start(tmp_path):
    """A new directory starts at the given log start, so offsets never go back."""
    partition = open_partition(tmp_path, CONFIG, log_start_offset=500)
    assert (partition.log_start_offset, partition.log_end_offset) == (500, 500)
    assert append(partition, b"a").base_offset == 500


def test_an_untouched_log_opens_clean(log, tmp_path):
    """Opening scans the whole active segment, rebuilds nothing and continues the offsets."""
    reopened = open_partition(tmp_path, CONFIG)
    found = reopened.recovery
    assert (found.end, found.next_offset, found.cut_bytes) == (End.CLEAN, 27, 0)
    assert found.scanned_bytes == log.segments()[-1].size_bytes
    assert (found.rebuilt, found.notes) == ([], [])
    assert values_of(reopened) == ALL


def test_sealed_segments_are_not_read_at_open(log, tmp_path):
    """Opening takes statistics of sealed segments from the checkpoint and reads none of them."""
    path = log.directory / f"{SEALED}.log"
    path.write_bytes(b"\xee" * path.stat().st_size)
    reopened = open_partition(tmp_path, CONFIG)
    assert reopened.segments()[1].records == 9
    assert reopened.read(20, 100).data


# --- the active segment -------------------------------------------------------------------------


def test_a_torn_tail_is_copied_and_cut(log, tmp_path):
    """A torn tail is copied to a separate file and cut; its offset is assigned again."""
    path = log.directory / f"{ACTIVE}.log"
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    reopened = open_partition(tmp_path, CONFIG)
    found = reopened.recovery
    assert (found.end, found.next_offset) == (End.TORN, 24)
    whole = reopened.segments()[-1].size_bytes
    assert found.cut_bytes == len(data) - 5 - whole
    assert found.torn_copy == log.directory / f"{ACTIVE}.log.torn-{NOW_MS}"
    assert found.torn_copy.read_bytes() == data[whole:-5]
    assert values_of(reopened) == {o: v for o, v in ALL.items() if o < 24}
    assert append(reopened, b"again").base_offset == 24
    later = open_partition(tmp_path, CONFIG)
    assert (later.recovery.end, later.recovery.notes) == (End.CLEAN, [])


def test_a_zero_filled_tail_is_cut(log, tmp_path):
    """A zero-filled tail is cut without a copy."""
    path = log.directory / f"{ACTIVE}.log"
    size_bytes = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(10_000))
    reopened = open_partition(tmp_path, CONFIG)
    assert (reopened.recovery.end, reopened.recovery.cut_bytes) == (End.TORN, 10_000)
    assert reopened.recovery.torn_copy is None
    assert path.stat().st_size == size_bytes
    assert values_of(reopened) == ALL


def test_a_zero_filled_active_segment_is_emptied(log, tmp_path):
    """A zero-filled active segment is truncated to zero records."""
    path = log.directory / f"{ACTIVE}.log"
    path.write_bytes(bytes(path.stat().st_size))
    reopened = open_partition(tmp_path, CONFIG)
    assert (reopened.recovery.end, reopened.log_end_offset) == (End.TORN, 18)


def test_an_empty_active_segment_is_fine(log, tmp_path):
    """An empty active segment is valid."""
    (log.directory / f"{ACTIVE}.log").write_bytes(b"")
    reopened = open_partition(tmp_path, CONFIG)
    assert (reopened.recovery.end, reopened.log_end_offset) == (End.CLEAN, 18)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:40] + b"\xff" + data[41:],  # a flipped byte, with whole batches after it
        lambda data: data[:8] + b"\x7f" + data[9:],  # a length past the end of the file
        lambda data: b"not a log at all\n" * 40,
        lambda data: data + b"GET / HTTP/1.1\r\n" * 8,
    ],
    ids=["byte", "length", "foreign", "foreign tail"],
)
def test_damage_in_the_active_segment_cuts_nothing(log, tmp_path, damage):
    """Damage in the active segment fails the open; the error names the file, which is unchanged."""
    path = log.directory / f"{ACTIVE}.log"
    wrong = damage(path.read_bytes())
    path.write_bytes(wrong)
    with pytest.raises(CorruptionError, match=rf"{ACTIVE}.log.*nothing was truncated"):
        open_partition(tmp_path, CONFIG)
    assert path.read_bytes() == wrong


def test_after_a_clean_close_a_bad_tail_is_corruption(log, tmp_path):
    """After a clean close everything was synced, so a bad tail is corruption and not torn."""
    log.close()
    path = log.directory / f"{ACTIVE}.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptionError, match="does not match its checksum"):
        open_partition(tmp_path, CONFIG)
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match=r"had .* when it was closed"):
        open_partition(tmp_path, CONFIG)
    path.write_bytes(data)
    assert values_of(open_partition(tmp_path, CONFIG)) == ALL


def test_what_recovery_found_is_synced_before_it_is_served(log, tmp_path):
    """Recovery syncs the log before it is served, since the bytes may only be in the page cache."""
    files = FailingFiles()
    open_partition(tmp_path, CONFIG, files=files)
    assert "sync_data" in files.seen


# --- sealed segments ----------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1, 100])
def test_a_shortened_sealed_segment_is_corruption(log, tmp_path, left):
    """A sealed segment that is too short is corruption; the error names the file and both sizes."""
    path = log.directory / f"{SEALED}.log"
    size_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(
        CorruptionError, match=f"{SEALED}.log has {left} bytes, but had {size_bytes}"
    ):
        open_partition(tmp_path, CONFIG)


def test_a_sealed_segment_with_bytes_behind_it_is_corruption(log, tmp_path):
    """A sealed segment with extra bytes at its end is corruption."""
    path = log.directory / f"{SEALED}.log"
    path.write_bytes(path.read_bytes() + bytes(100))
    with pytest.raises(CorruptionError, match="restore"):
        open_partition(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("damage", "sound_end"),
    [
        (lambda data: bytes(len(data)), 9),
        (lambda data: (b"foreign " * len(data))[: len(data)], 9),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), 15),  # the batches before it are sound
    ],
    ids=["zeros", "foreign", "byte"],
)
def test_damage_in_a_sealed_segment_is_reported_when_a_read_meets_it(
    log, tmp_path, damage, sound_end
):
    """A read of a damaged batch fails with file and position; the sound parts are served."""
    path = log.directory / f"{SEALED}.log"
    path.write_bytes(damage(path.read_bytes()))
    reopened = open_partition(tmp_path, CONFIG)
    with pytest.raises(CorruptionError, match=rf"{SEALED}.log: .*position \d+"):
        reopened.read(15, 10_000)
    assert reopened.read(0, 10_000).next_offset == sound_end
    assert reopened.read(18, 10_000).next_offset == 27
    append(reopened, b"goes on")


@pytest.mark.parametrize("claimed", [-1, 0, 9, 17, 18, 10**15])
def test_an_offset_out_of_place_is_corruption_and_not_a_gap(log, tmp_path, claimed):
    """Checksums do not cover offsets, so a wrong base offset is corruption and not a gap."""
    path = log.directory / f"{SEALED}.log"
    data = path.read_bytes()
    second = 12 + int.from_bytes(data[8:12], "big")
    path.write_bytes(data[:second] + claimed.to_bytes(8, "big", signed=True) + data[second + 8 :])
    reopened = open_partition(tmp_path, CONFIG)
    with pytest.raises(CorruptionError, match=f"position {second}"):
        reopened.read(12, 1)


def test_a_sealed_segment_of_another_log_is_corruption(log, tmp_path):
    """A sealed segment whose offsets overlap the next segment is corruption."""
    (log.directory / "segment-facts-checkpoint").unlink()
    (log.directory / f"{SEALED}.log").write_bytes((log.directory / f"{ACTIVE}.log").read_bytes())
    with pytest.raises(CorruptionError, match="one of the two files is from elsewhere"):
        open_partition(tmp_path, CONFIG)


def test_an_empty_sealed_segment_without_stats_is_accepted_and_reported(log, tmp_path):
    """Opening accepts and notes an empty sealed segment, because compaction can empty one."""
    (log.directory / "segment-facts-checkpoint").unlink()
    (log.directory / f"{SEALED}.log").write_bytes(b"")
    reopened = open_partition(tmp_path, CONFIG)
    assert any("sealed and empty" in note for note in reopened.recovery.notes)
    assert sorted(values_of(reopened)) == [*range(9), *range(18, 27)]


# --- files that can be rebuilt ------------------------------------------------------------------


def stored(log: Partition) -> dict[str, bytes]:
    """Return the files, except those that record the progress of the active segment."""
    skipped = {"marks", "segment-facts-checkpoint"}
    return {p.name: p.read_bytes() for p in log.directory.iterdir() if p.name not in skipped}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_rebuilt(log, tmp_path, suffix):
    """A missing index is rebuilt byte for byte, and recovery reports it."""
    before = stored(log)
    (log.directory / f"{SEALED}{suffix}").unlink()
    reopened = open_partition(tmp_path, CONFIG)
    assert f"{SEALED}{suffix}" in reopened.recovery.rebuilt
    assert stored(reopened) == before
    assert values_of(reopened) == ALL
    assert open_partition(tmp_path, CONFIG).recovery.rebuilt == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: bytes(len(data)),
        lambda data: b"\x7f" * len(data),
        lambda data: data[24:48] + data[24:],
        lambda data: data[:-4] + b"\x7f\xff\xff\xff",
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + bytes(5000),
        lambda data: None,
    ],
    ids=["zeros", "ones", "not growing", "behind", "empty", "odd", "long", "gone while open"],
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_wrong_index_is_noticed_when_it_is_used(tmp_path, suffix, damage):
    """Reads and time lookups are correct with a damaged index, and the next roll rewrites it."""
    partition = open_partition(tmp_path, CONFIG)
    for offset in range(60):
        append(partition, b"v", times_ms=[NOW_MS + offset])
    partition.roll(RollReason.DEMAND)
    append(partition, b"active", times_ms=[NOW_MS + 60])
    path = partition.directory / f"{0:020d}{suffix}"
    good = path.read_bytes()
    reopened = open_partition(tmp_path, CONFIG)
    wrong = damage(good)
    path.unlink()
    if wrong is not None:
        path.write_bytes(wrong)
    for offset in range(60):
        assert reopened.read(offset, 1).first_offset == offset
        assert reopened.find_time(NOW_MS + offset).offset == offset
    reopened.roll(RollReason.DEMAND)
    assert path.read_bytes() == good
    assert path.name in reopened.recovery.rebuilt


def test_an_index_entry_that_points_into_a_batch_is_noticed(tmp_path):
    """An index entry that points into a batch is detected, and the index is rewritten."""
    partition = open_partition(tmp_path, CONFIG)
    for offset in range(60):
        append(partition, b"v", times_ms=[NOW_MS + offset])
    partition.roll(RollReason.DEMAND)
    path = partition.directory / f"{0:020d}.index"
    good = path.read_bytes()
    for shift in (1, -1, 61):
        entries = [
            offset.to_bytes(4, "big") + (position + shift).to_bytes(4, "big")
            for offset, position in OFFSETS.iter_unpack(good)
        ]
        path.write_bytes(b"".join(entries))
        reopened = open_partition(tmp_path, CONFIG)
        for offset in reversed(range(60)):  # forwards, a read continues without the index
            assert reopened.read(offset, 1).first_offset == offset
        reopened.close()
        assert path.read_bytes() == good


def test_all_sealed_files_but_the_logs_can_be_lost(log, tmp_path):
    """All files except the logs can be rebuilt from the logs."""
    log.close()
    before = stored(log)
    for path in log.directory.iterdir():
        if path.suffix != ".log":
            path.unlink()
    reopened = open_partition(tmp_path, CONFIG)
    assert values_of(reopened) == ALL
    assert [s.records for s in reopened.segments()] == [9, 9, 9]
    reopened.close()
    after = stored(reopened)
    for name in before:
        if name.endswith((".index", ".timeindex")):
            assert after[name] == before[name], name


def test_a_lost_snapshot_is_replayed_from_the_logs(tmp_path):
    """A lost or damaged producer snapshot is rebuilt from the logs."""
    partition = open_partition(tmp_path, CONFIG)
    fields = {"producer_id": 5, "producer_epoch": 1}
    append(partition, b"a", base_sequence=0, **fields)
    partition.roll(RollReason.DEMAND)
    append(partition, b"b", base_sequence=1, **fields)
    partition.roll(RollReason.DEMAND)
    for lost in ([2], [1, 2]):
        for offset in lost:
            path = partition.directory / f"{offset:020d}.snapshot"
            path.write_bytes(b"damaged")
        reopened = open_partition(tmp_path, CONFIG)
        assert reopened.producers.last_sequence(5, 1) == 1
        assert f"{2:020d}.snapshot" in reopened.recovery.rebuilt


def test_a_lost_transaction_index_is_replayed(tmp_path):
    """A lost or damaged transaction index is rebuilt with the same aborted ranges."""
    partition = open_partition(tmp_path, CONFIG)
    fields = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    marker = encode_marker(
        False, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
    )
    append(partition, b"a", base_sequence=0, **fields)
    partition.roll(RollReason.DEMAND)
    append_data(partition, bytearray(marker))
    partition.roll(RollReason.DEMAND)
    expected = partition.aborted(0, 2)
    assert len(expected) == 1
    path = partition.directory / f"{1:020d}.txnindex"
    good = path.read_bytes()
    for damage in (None, good[:-1], good + good):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        reopened = open_partition(tmp_path, CONFIG)
        assert reopened.recovery.rebuilt == [path.name]
        assert reopened.aborted(0, 2) == expected
        assert path.read_bytes() == good


def test_a_damaged_term_checkpoint_is_rebuilt(tmp_path):
    """A damaged leader epoch checkpoint is rebuilt from the active segment and reported."""
    partition = open_partition(tmp_path, CONFIG, leader_epoch=4)
    append(partition, b"a")
    path = partition.directory / "leader-epoch-checkpoint"
    path.write_text("0\n2\n4 0\n")
    reopened = open_partition(tmp_path, CONFIG, leader_epoch=5)
    assert reopened.recovery.rebuilt == [path.name]
    assert reopened.epoch_end(4) == (4, 1)


def test_files_that_are_not_ours_are_left_alone(log, tmp_path):
    """Unknown files are kept, and recovery lists them in its notes."""
    names = ["notes.txt", "123.log", f"{0:020d}.log.bak", "core"]
    for name in names:
        (log.directory / name).write_bytes(b"mine")
    (log.directory / "lost+found").mkdir()
    reopened = open_partition(tmp_path, CONFIG)
    assert len(reopened.recovery.notes) == 5
    assert all((log.directory / name).read_bytes() == b"mine" for name in names)
    assert values_of(reopened) == ALL


def test_the_age_of_the_active_segment_survives_a_crash(tmp_path):
    """The creation time of the active segment survives a crash, so rolls by age still happen."""
    partition = open_partition(tmp_path, CONFIG)
    append(partition, b"a")
    created_ms = partition.segments()[-1].created_ms
    assert created_ms == NOW_MS
    assert open_partition(tmp_path, CONFIG).segments()[-1].created_ms == NOW_MS


def test_the_log_start_of_the_catalog_is_kept(log, tmp_path):
    """The log start of the catalog is used, also inside a segment."""
    reopened = open_partition(tmp_path, CONFIG, log_start_offset=13)
    assert reopened.log_start_offset == 13
    assert min(values_of(reopened)) == 13
