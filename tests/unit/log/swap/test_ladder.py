"""Swaps: staged segments replace live segments completely or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

from cordwood.errors import (
    DiskFull,
    InvalidManifest,
    PartitionOffline,
    StaleManifest,
    UnavailableError,
    UnknownTopic,
)
from cordwood.log.files.disk import Files
from cordwood.log.format.layout import CLEANED, SWAP
from cordwood.log.swap.ladder import recover_swaps
from cordwood.log.write.partition_files import PartitionFiles
from cordwood.model import SegmentState
from support.crash import FailingFiles
from support.stores import TP, a_batch, append, append_sealed, open_store, stage, values_in

BEFORE = {0: "a", 1: "b", 2: "a", 3: "c", 4: "b", 5: "d", 6: "z"}
AFTER = {2: "a", 3: "c", 4: "b", 5: "d", 6: "z"}


@pytest.fixture
def files():
    return FailingFiles()


@pytest.fixture
def store(tmp_path, files):
    opened = open_store(tmp_path / "data", files)
    a_log(opened)
    yield opened
    opened.close()


def a_log(store) -> None:
    """Create three sealed segments of two records each, and one record in the active segment."""
    store.create_topic("t", 1)
    append_sealed(store, "ab", "ac", "bd")
    append(store.partition(TP), "z")


def stage_compaction(store, job: str = "job-1", **changes):
    """Stage the compaction of all three sealed segments: one segment with gaps."""
    batches = [a_batch({2: "a", 3: "c"}), a_batch({4: "b", 5: "d"})]
    return stage(store, job, [0, 2, 4], {0: batches}, **changes)


def swap(store, job: str = "job-1") -> None:
    store.segments.apply_job(store.segments.verify_job(job))


def bases(store):
    return [info.base_offset for info in store.partition(TP).segments()]


def suffixed(store):
    names = [path.name for path in (store.data / "t-0").iterdir()]
    return [name for name in names if name.endswith((CLEANED, SWAP))]


def test_staged_segments_take_the_place_of_live_ones(store):
    """A swap replaces segments, keeps offsets, records the old segments and removes staging."""
    store.segments.hash_sealed()
    assert values_in(store.partition(TP)) == BEFORE
    staging = stage_compaction(store)
    swap(store)
    assert values_in(store.partition(TP)) == AFTER
    assert bases(store) == [0, 6]
    assert suffixed(store) == []
    assert not staging.exists()
    (entry,) = store.metadata.cluster.segments(TP).entries()
    assert (entry.base_offset, entry.end_offset, entry.records) == (0, 6, 4)
    past = [e for _, e in store.metadata.cluster.replaced_segments(TP)]
    assert [(e.base_offset, e.state) for e in past] == [
        (b, SegmentState.REPLACED) for b in (0, 2, 4)
    ]
    assert store.metadata.cluster.swaps == {}
    append(store.partition(TP), "y")
    store.close()
    again = open_store(store.data)
    assert values_in(again.partition(TP)) == AFTER | {7: "y"}
    assert bases(again) == [0, 6]
    again.close()


def test_one_segment_may_become_several(store):
    """A swap may replace segments in the middle of the log by more segments, with gaps."""
    segments = {2: [a_batch({2: "a"})], 3: [a_batch({3: "c"})], 4: [a_batch({5: "d"})]}
    stage(store, "job-1", [2, 4], segments)
    swap(store)
    assert bases(store) == [0, 2, 3, 4, 6]
    assert values_in(store.partition(TP)) == {o: v for o, v in BEFORE.items() if o != 4}


def test_a_segment_may_be_emptied(store):
    """Reads skip an emptied segment, also after a restart."""
    stage(store, "job-1", [0, 2, 4], {0: [], 2: [], 4: [a_batch({5: "d"})]})
    swap(store)
    assert values_in(store.partition(TP)) == {5: "d", 6: "z"}
    store.close()
    again = open_store(store.data)
    assert values_in(again.partition(TP)) == {5: "d", 6: "z"}
    again.close()


def test_a_reader_in_the_old_file_goes_on(store):
    """Replaced files stay until the delete delay has passed; reads continue."""
    partition = store.partition(TP)
    assert partition.read(0, 1).data
    stage_compaction(store)
    swap(store)
    assert partition.read(0, 1 << 20).next_offset > 0
    assert list((store.data / "t-0").glob("*.deleted"))
    partition.purge_deleted(10**15)
    assert not list((store.data / "t-0").glob("*.deleted"))
    assert values_in(partition) == AFTER


def test_the_same_job_is_applied_once(store):
    """A job cannot be applied twice: its staging is gone and its manifest is stale."""
    stage_compaction(store)
    verified = store.segments.verify_job("job-1")
    store.segments.apply_job(verified)
    with pytest.raises(StaleManifest):
        store.segments.apply_job(verified)
    with pytest.raises(InvalidManifest, match="not staged"):
        store.segments.verify_job("job-1")
    assert values_in(store.partition(TP)) == AFTER
    assert store.metadata.cluster.swaps == {}


def test_of_two_jobs_on_the_same_segments_the_second_is_stale(store):
    """Of two jobs on the same segments, the first is applied and the second is stale."""
    stage_compaction(store, "job-1")
    stage_compaction(store, "job-2")
    first, second = store.segments.verify_job("job-1"), store.segments.verify_job("job-2")
    store.segments.apply_job(first)
    with pytest.raises(StaleManifest):
        store.segments.apply_job(second)
    assert suffixed(store) == []


def test_a_job_of_a_deleted_topic_is_refused(store):
    """A job is refused if its topic was deleted, also if the topic was created again."""
    stage_compaction(store)
    verified = store.segments.verify_job("job-1")
    store.delete_topic("t")
    with pytest.raises(UnknownTopic):
        store.segments.apply_job(verified)
    a_log(store)
    with pytest.raises(StaleManifest, match="created again"):
        store.segments.apply_job(verified)
    assert values_in(store.partition(TP)) == BEFORE


@pytest.mark.parametrize("accident", ["byte", "short", "missing", "sum", "count", "end", "crc"])
def test_staged_files_that_are_not_as_stated_are_refused(store, accident):
    """Staged files that differ from their manifest are rejected before anything is renamed."""
    staging = stage_compaction(store)
    log = staging / "00000000000000000000.log"
    manifest = json.loads((staging / "manifest.json").read_text())
    segment = manifest["segments"][0]
    data = bytearray(log.read_bytes())
    if accident == "byte":
        data[80] ^= 1
    elif accident == "short":
        del data[-1]
    elif accident == "sum":
        segment["files"][0]["sha256"] = "00"
    elif accident == "count":
        segment["records"] += 1
    elif accident == "end":
        shutil.rmtree(staging)
        stage(store, "job-1", [0, 2, 4], {0: [a_batch({2: "a", 3: "c"})]})
    elif accident == "crc":
        data[-1] ^= 1
        segment["files"][0]["sha256"] = hashlib.sha256(data).hexdigest()
    if accident == "missing":
        log.unlink()
    elif accident != "end":
        log.write_bytes(data)
        (staging / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidManifest):
        store.segments.verify_job("job-1")
    assert values_in(store.partition(TP)) == BEFORE


@pytest.mark.parametrize("job", ["..", "", "a/b", ".hidden"])
def test_a_job_name_stays_in_staging(store, job):
    """A job name cannot be a path outside the staging directory."""
    with pytest.raises(InvalidManifest, match="job name"):
        store.segments.verify_job(job)


def test_a_manifest_of_another_job_is_refused(store):
    """A manifest is refused if its job name differs from its directory's name."""
    stage_compaction(store, job="job-1")
    (store.data / "staging" / "job-1").rename(store.data / "staging" / "job-2")
    with pytest.raises(InvalidManifest, match="manifest of job job-1"):
        store.segments.verify_job("job-2")


@pytest.mark.parametrize("effect", ["rename", "sync_dir"])
def test_an_error_before_the_new_segments_count_is_undone(store, files, effect):
    """An error before the swap is committed is undone; the old log serves, and a retry works."""
    stage_compaction(store)
    verified = store.segments.verify_job("job-1")
    files.refused.add(effect)
    with pytest.raises(UnavailableError):
        store.segments.apply_job(verified)
    files.refused.clear()
    assert values_in(store.partition(TP)) == BEFORE
    assert store.metadata.cluster.swaps == {}
    shutil.rmtree(store.data / "staging" / "job-1", ignore_errors=True)
    stage_compaction(store)
    swap(store)
    assert suffixed(store) == []
    assert values_in(store.partition(TP)) == AFTER


def test_an_error_after_that_takes_the_partition_offline_until_the_next_start(store, monkeypatch):
    """An error after that takes the partition offline, and the next start completes the swap."""
    stage_compaction(store)
    verified = store.segments.verify_job("job-1")

    def fails(*_):
        raise DiskFull("no space")

    monkeypatch.setattr(PartitionFiles, "swap_names", fails)
    with pytest.raises(PartitionOffline, match="job-1"):
        store.segments.apply_job(verified)
    with pytest.raises(PartitionOffline):
        store.partition(TP)
    store.close()
    again = open_store(store.data)
    assert values_in(again.partition(TP)) == AFTER
    assert [e.base_offset for e in again.metadata.cluster.segments(TP).entries()] == [0]
    assert again.metadata.cluster.swaps == {}
    again.close()


def test_another_filesystem_is_copied_from(store, monkeypatch):
    """A swap copies staged files if the partition is on another filesystem."""
    stage_compaction(store)
    verified = store.segments.verify_job("job-1")
    monkeypatch.setattr("cordwood.log.swap.ladder._is_same_filesystem", lambda *_: False)
    store.segments.apply_job(verified)
    assert values_in(store.partition(TP)) == AFTER
    assert not (store.data / "staging" / "job-1").exists()


# --- Kafka's six crash points, from file names alone ------------------------------------------


@pytest.mark.parametrize("point", range(1, 7))
def test_names_alone_tell_which_log_holds(tmp_path, point):
    """After a crash, file names decide which log is live.

    The old log is live at points 1 (all .cleaned) and 2 (log .swap, index .cleaned). The new log is
    live from point 3 on (all .swap).
    """
    old = {0: b"old0", 5: b"old5"}
    for base, data in old.items():
        for kind in ("log", "index"):
            (tmp_path / f"{base:020d}.{kind}").write_bytes(data)
    name = f"{0:020d}"
    batch = a_batch({1: "n"}, last_offset=9)
    new = {"log": batch, "index": b"newindex"}
    suffixes = {
        1: {"log": ".cleaned", "index": ".cleaned"},
        2: {"log": ".swap", "index": ".cleaned"},
        3: {"log": ".swap", "index": ".swap"},
        4: {"log": ".swap", "index": ".swap"},
        5: {"log": "", "index": ".swap"},
        6: {"log": "", "index": ""},
    }[point]
    if point >= 4:
        for path in list(tmp_path.iterdir()):
            path.rename(path.with_name(path.name + ".deleted"))
    for kind, suffix in suffixes.items():
        (tmp_path / f"{name}.{kind}{suffix}").write_bytes(new[kind])
    assert recover_swaps(tmp_path, Files()) is (point < 6)
    live = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix in {".log", ".index"}}
    if point <= 2:
        assert live == {f"{b:020d}.{k}": d for b, d in old.items() for k in ("log", "index")}
    else:
        assert live == {f"{name}.log": batch, f"{name}.index": b"newindex"}
    assert not [p for p in tmp_path.iterdir() if p.name.endswith((".swap", ".cleaned"))]
