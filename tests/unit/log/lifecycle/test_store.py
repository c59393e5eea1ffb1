"""Topics and partitions of one data directory: create, alter, delete and reopen."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from cordwood.config import TopicConfig
from cordwood.decide.retention import Drop, Reason, RetentionPlan, plan_retention
from cordwood.errors import (
    ConfigError,
    CorruptionError,
    DirectoryInUse,
    DiskFull,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    PartitionOffline,
    TopicExists,
    UnknownFormat,
    UnknownTopic,
)
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.directory import deleted_name, foreign_names
from cordwood.metadata.keys import Cursor, ReaderPartition, Topic
from cordwood.model import SegmentState, TopicPartition
from support.clock import ManualClock
from support.metadata import revision
from support.stores import TP, append, append_sealed, open_store, values_in


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "data")
    yield opened
    opened.close()


def restarted(store, **options):
    """Close the store cleanly and open it again; the caller closes the result."""
    store.close()
    return open_store(store.data, **options)


# --- the directory ------------------------------------------------------------------------------


def test_a_second_process_learns_which_process_holds_the_directory(store):
    """A second process fails with one line that names the process ID of the lock holder."""
    script = "import sys; from support.stores import *; open_store(Path(sys.argv[1]))"
    environ = os.environ | {"PYTHONPATH": "tests"}
    done = subprocess.run(
        [sys.executable, "-c", script, store.data],
        check=False,
        capture_output=True,
        text=True,
        env=environ,
    )
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert "DirectoryInUse" in last
    assert f"in use by process {os.getpid()};" in last
    with pytest.raises(DirectoryInUse):
        open_store(store.data)


def test_the_lock_ends_with_its_holder(store):
    """A lock file left by a closed store does not lock the directory."""
    again = restarted(store)
    again.close()
    assert (store.data / "lock").exists()


@pytest.mark.parametrize("text", ["0\n", "2\n", "", "1.5", "\xff"])
def test_another_format_is_refused_with_both_versions(store, text):
    """Any other format version is refused, older or newer."""
    store.close()
    (store.data / "format-version").write_text(text, encoding="latin-1")
    with pytest.raises(UnknownFormat, match="reads 1"):
        open_store(store.data)


def test_a_catalog_without_a_format_is_refused(store):
    """A catalog without a format-version file is refused."""
    store.close()
    (store.data / "format-version").unlink()
    with pytest.raises(UnknownFormat, match="no format-version"):
        open_store(store.data)


def test_a_refused_directory_is_not_left_locked(store):
    """A directory that was refused is unlocked and opens in the same process once it is fixed."""
    store.close()
    (store.data / "format-version").write_text("9\n")
    with pytest.raises(UnknownFormat):
        open_store(store.data)
    (store.data / "format-version").write_text("1\n")
    open_store(store.data).close()


def test_a_data_directory_is_made_with_those_above_it(tmp_path):
    """Opening creates the data directory and its missing parent directories."""
    open_store(tmp_path / "a" / "b" / "c").close()
    assert (tmp_path / "a" / "b" / "c" / "meta.db").exists()


def test_a_file_in_the_place_of_the_directory_is_a_config_error(tmp_path):
    """The error names the ``--data`` setting if the path is a file."""
    (tmp_path / "data").write_text("mine")
    with pytest.raises(ConfigError, match="--data"):
        open_store(tmp_path / "data")


def test_foreign_files_are_reported_and_left_alone(store, caplog):
    """Start-up logs unknown files and directories and never changes them."""
    store.create_topic("t", 1)
    store.close()
    (store.data / "notes.txt").write_text("mine")
    (store.data / "old-0").mkdir()
    (store.data / "old-0" / "00000000000000000000.log").write_bytes(b"records")
    caplog.set_level(logging.WARNING, "cordwood.log")
    again = open_store(store.data)
    assert {"notes.txt", "old-0"} == {r.args[0] for r in caplog.records}
    with pytest.raises(TopicExists, match="old-0 exists but belongs to no topic"):
        again.create_topic("old", 2)
    assert (store.data / "old-0" / "00000000000000000000.log").read_bytes() == b"records"
    assert not (store.data / "old-1").exists()
    again.create_topic("new", 1)
    again.close()


def test_nothing_of_ours_is_foreign(store):
    """Every name that the store itself uses is recognised."""
    store.create_topic("t", 2)
    (store.data / "staging").mkdir()
    (store.data / "archive").mkdir()
    (store.data / deleted_name(TP, store.topic("t").id)).mkdir()
    assert foreign_names(store.data, store.metadata.cluster.topics.values()) == []


def test_a_foreign_file_in_a_partition_is_left_alone(store):
    """An unknown file in a partition's directory stays, and the records are readable."""
    store.create_topic("t", 1)
    append(store.partition(TP), "a")
    store.close()
    (store.data / "t-0" / "README").write_text("hello")
    again = open_store(store.data)
    assert values_in(again.partition(TP)) == {0: "a"}
    assert (store.data / "t-0" / "README").read_text() == "hello"
    again.close()


# --- topics -------------------------------------------------------------------------------------


def test_a_topic_is_as_it_was_after_a_restart(store):
    """A restart keeps a topic's partitions, ID, settings and records."""
    live = store.create_topic("t", 2, {"retention.ms": "5", "cleanup.policy": "compact,delete"})
    append(store.partition(TP), "a", "b")
    topic_id, config = live.id, live.config
    again = restarted(store)
    assert (again.topic("t").id, again.topic("t").config) == (topic_id, config)
    assert again.topic("t").partition_count == 2
    assert values_in(again.partition(TP)) == {0: "a", 1: "b"}
    assert config.retention_ms == 5
    again.close()


@pytest.mark.parametrize(
    ("name", "partitions", "config", "error"),
    [
        ("", 1, {}, InvalidTopic),
        ("..", 1, {}, InvalidTopic),
        ("a/b", 1, {}, InvalidTopic),
        ("x" * 250, 1, {}, InvalidTopic),
        ("t", 0, {}, InvalidPartitions),
        ("t", 10_001, {}, InvalidPartitions),
        ("t", 1, {"retention.ms": "soon"}, InvalidConfig),
        ("t", 1, {"retention.ms": "1", "retention.mss": "1"}, InvalidConfig),
    ],
)
def test_a_topic_that_cannot_be_leaves_nothing(store, name, partitions, config, error):
    """Invalid arguments are rejected before anything is created."""
    with pytest.raises(error):
        store.create_topic(name, partitions, config)
    assert store.topics == {}
    assert store.metadata.cluster.topics == {}
    assert not list(store.data.glob("*-[0-9]*"))


def test_a_topic_with_the_longest_name_comes_and_goes(store):
    """A topic with the longest allowed name can be created and deleted."""
    store.create_topic("x" * 249, 2)
    store.delete_topic("x" * 249)
    assert not list(store.data.glob("xxx*"))


def test_a_topic_is_created_once(store):
    """Creating a topic that exists fails and changes nothing."""
    store.create_topic("t", 1)
    with pytest.raises(TopicExists):
        store.create_topic("t", 3)
    assert store.topic("t").partition_count == 1


def test_a_deleted_topic_is_really_gone(store):
    """Deleting a topic removes its files, cursors, readers and index; a new one starts empty."""
    store.create_topic("t", 2)
    append_sealed(store, "ab", "cd")
    store.metadata.readers.commit_cursors({ReaderPartition("r", "t", 0): Cursor(3)})
    store.metadata.readers.register_reader("t", "r", 0)
    store.segments.advance_start(TP, 1)
    before = store.topic("t").id
    store.delete_topic("t")
    assert [p.name for p in store.data.iterdir() if p.is_dir()] == []
    with pytest.raises(UnknownTopic):
        store.partition(TP)
    again = store.create_topic("t", 1)
    assert again.id != before
    assert values_in(store.partition(TP)) == {}
    assert store.partition(TP).log_end_offset == 0
    assert store.partition(TP).log_start_offset == 0
    assert store.metadata.cluster.segments(TP).entries() == []
    assert store.metadata.readers.registered("t") == {}
    assert store.metadata.readers.cursors() == {}


def test_deleting_an_unknown_topic_says_so(store):
    """The error names the unknown topic."""
    with pytest.raises(UnknownTopic, match="nope"):
        store.delete_topic("nope")


def test_settings_change_all_or_none_and_at_once(store):
    """One invalid setting rejects the whole change; valid ones apply to open partitions at once."""
    store.create_topic("t", 2, {"retention.ms": "7"})
    with pytest.raises(InvalidConfig):
        store.alter_topic("t", {"segment.bytes": "100", "segment.ms": "never"})
    assert store.partition(TP).config.segment_bytes == TopicConfig().segment_bytes
    store.alter_topic("t", {"segment.bytes": "100", "retention.ms": None})
    for partition in store.partitions("t"):
        assert partition.config.segment_bytes == 100
        assert partition.config.retention_ms == TopicConfig().retention_ms
    again = restarted(store)
    assert again.partition(TP).config.segment_bytes == 100
    assert again.partition(TP).config.retention_ms == TopicConfig().retention_ms
    again.close()


def test_an_unknown_setting_cannot_be_unset(store):
    """The error names an unknown setting, also if its new value is None."""
    store.create_topic("t", 1)
    with pytest.raises(InvalidConfig, match=r"retention\.mss"):
        store.alter_topic("t", {"retention.mss": None})


def test_partitions_are_added_and_never_taken_away(store):
    """Partitions can be added but not removed; new ones start empty and survive a restart."""
    store.create_topic("t", 1)
    append(store.partition(TP), "a")
    for count in (0, 1):
        with pytest.raises(InvalidPartitions):
            store.add_partitions("t", count)
    store.add_partitions("t", 3)
    append(store.partition(TopicPartition("t", 2)), "z")
    again = restarted(store)
    assert [p.log_end_offset for p in again.partitions("t")] == [1, 0, 1]
    again.close()


def test_a_partition_that_is_not_there_is_unknown(store):
    """The error names the partitions that exist."""
    store.create_topic("t", 2)
    for number in (-1, 2):
        with pytest.raises(UnknownTopic, match="0 to 1"):
            store.partition(TopicPartition("t", number))


def test_a_full_disk_while_creating_leaves_no_topic(tmp_path):
    """A full disk fails the creation and leaves no files; the topic can be created later."""

    class FullFiles(Files):
        is_full = False

        def mkdir(self, path):
            if self.is_full and path.name == "t-1":
                raise DiskFull("no space")
            super().mkdir(path)

    files = FullFiles()
    store = open_store(tmp_path / "data", files)
    files.is_full = True
    with pytest.raises(DiskFull):
        store.create_topic("t", 2)
    assert not list(store.data.glob("t-*"))
    files.is_full = False
    store.create_topic("t", 2)
    store.close()


# --- leader epochs and recovery -----------------------------------------------------------------


def test_a_term_never_survives_a_restart(store):
    """Each start increments the leader epoch, and new batches carry it."""
    store.create_topic("t", 1)
    append(store.partition(TP), "a")
    assert store.partition(TP).leader_epoch == 0
    again = restarted(store)
    assert again.partition(TP).leader_epoch == 1
    append(again.partition(TP), "b")
    data = again.partition(TP).read(0, 1 << 20).data
    assert [data[12:16], data[len(data) // 2 :][12:16]] == [bytes(4), b"\0\0\0\1"]
    again.close()


def test_where_the_sequence_resumes_is_logged(store, caplog):
    """Start-up logs ``seq_resume``, the number of durable records of each partition."""
    store.create_topic("t", 2)
    append(store.partition(TP), *"abcde")
    caplog.set_level(logging.INFO, "cordwood.log")
    restarted(store).close()
    opened = [r.getMessage() for r in caplog.records if r.msg.startswith("partition.opened")]
    assert "partition=t-0 seq_resume=5" in opened[0]
    assert "partition=t-1 seq_resume=0" in opened[1]


@pytest.mark.parametrize("accident", ["corrupt", "missing directory", "missing segment", "cut"])
def test_a_damaged_partition_is_offline_and_the_rest_serves(store, accident):
    """A damaged partition is offline with a reason; others serve, and its topic can be deleted."""
    store.create_topic("t", 2)
    store.create_topic("other", 1)
    append_sealed(store, "ab", "cd", "ef")
    neighbour = TopicPartition("t", 1)
    append(store.partition(neighbour), "n")
    restarted(store).close()  # second leader epoch: all directories exist already
    path = store.data / "t-0"
    if accident == "corrupt":
        (path / "00000000000000000006.log").write_bytes(b"garbage" * 100)
    elif accident == "missing directory":
        shutil.rmtree(path)
    elif accident == "missing segment":
        (path / "00000000000000000002.log").unlink()
    else:
        sealed = path / "00000000000000000002.log"
        data = sealed.read_bytes()
        sealed.write_bytes(data[: len(data) // 2])
        (path / "segment-facts-checkpoint").unlink()
    again = open_store(store.data)
    with pytest.raises(PartitionOffline, match="t-0"):
        again.partition(TP)
    assert list(again.offline) == [TP]
    assert values_in(again.partition(neighbour)) == {0: "n"}
    assert [p.tp for p in again.partitions("t")] == [neighbour]
    again.alter_topic("t", {"retention.ms": "9"})
    again.delete_topic("t")
    assert again.offline == {}
    again.close()


def test_a_lost_active_segment_is_noticed(store):
    """A missing active segment takes the partition offline; the sealed one is not made active."""
    store.create_topic("t", 1)
    append_sealed(store, "ab")
    append(store.partition(TP), "c")
    store.close()
    (store.data / "t-0" / "00000000000000000002.log").unlink()
    again = open_store(store.data)
    with pytest.raises(PartitionOffline, match=r"2\.log is missing"):
        again.partition(TP)
    again.close()


def test_settings_of_another_program_take_only_their_topic_offline(store):
    """An unknown setting in the catalog takes only its topic offline, and the error names it."""
    store.metadata.cluster.create_topics([Topic("odd", store_id(), 1, {"no.such.setting": "1"}, 0)])
    store.create_topic("t", 1)
    again = restarted(store)
    with pytest.raises(PartitionOffline, match=r"no\.such\.setting"):
        again.partition(TopicPartition("odd", 0))
    append(again.partition(TP), "a")
    again.close()


def test_a_damaged_catalog_stops_the_start(store):
    """A damaged catalog stops start-up with an error that names the file."""
    store.close()
    for name in ("meta.db-wal", "meta.db-shm"):
        (store.data / name).unlink(missing_ok=True)
    (store.data / "meta.db").write_bytes(b"\x07" * 8192)
    with pytest.raises(CorruptionError, match=r"meta\.db"):
        open_store(store.data)


def test_all_terms_begin_in_one_transaction(store):
    """Start-up increments the leader epochs of all partitions in one transaction."""
    store.create_topic("many", 20)
    before = revision(store.directory.metadata_path)
    again = restarted(store)
    assert revision(again.directory.metadata_path) == before + 1
    assert len(again.partitions("many")) == 20
    again.close()


# --- segments -----------------------------------------------------------------------------------


def sealed_plan(store, count):
    """Return a plan that drops the oldest ``count`` segments."""
    infos = store.partition(TP).segments()[:count]
    return RetentionPlan(tuple(Drop(info, Reason.AGE) for info in infos), ())


def test_sealed_segments_are_indexed_with_their_sum(store):
    """The background job indexes all sealed segments with their SHA-256 hash."""
    store.create_topic("t", 1, {"segment.entries": "2"})
    for letter in "abcde":
        append(store.partition(TP), letter)
    assert store.segments.hash_sealed() == 2
    entries = store.metadata.cluster.segments(TP).entries()
    assert [(e.base_offset, e.end_offset, e.records) for e in entries] == [(0, 2, 2), (2, 4, 2)]
    assert all(len(entry.sha256) == 64 for entry in entries)
    assert store.segments.hash_sealed() == 0


def test_hashing_stops_on_request(store):
    """Hashing stops when the store shuts down."""
    store.create_topic("t", 1)
    append_sealed(store, "a", "b")
    assert store.segments.hash_sealed(lambda: True) == 0


def test_a_segment_replaced_while_it_is_hashed_keeps_the_new_sum(store, monkeypatch):
    """The hash of a segment that was replaced while it was hashed is discarded."""
    store.create_topic("t", 1)
    append_sealed(store, "a")
    entry = store.metadata.cluster.segments(TP).get(0)

    def meanwhile(*_):
        store.metadata.cluster.put_segments(TP, [replace(entry, sha256="new")])
        return type("Digest", (), {"hexdigest": lambda _: "old"})()

    monkeypatch.setattr(
        "cordwood.log.lifecycle.segment_index_writer.hashlib.file_digest", meanwhile, raising=True
    )
    assert store.segments.hash_sealed() == 0
    assert store.metadata.cluster.segments(TP).get(0).sha256 == "new"


def test_a_reclaimed_segment_is_gone_but_indexed(store):
    """A reclaimed segment cannot be read; the log starts after it, and its index entry stays."""
    store.create_topic("t", 1)
    append_sealed(store, "ab", "cd")
    store.segments.hash_sealed()
    store.segments.reclaim(store.partition(TP), sealed_plan(store, 1))
    again = restarted(store)
    partition = again.partition(TP)
    assert values_in(partition) == {2: "c", 3: "d"}
    assert partition.log_start_offset == 2
    with pytest.raises(OffsetOutOfRange):
        partition.read(1, 100)
    entry = again.metadata.cluster.segments(TP).find(1)
    assert (entry.state, entry.base_offset, entry.records) == (SegmentState.RECLAIMED, 0, 2)
    assert len(entry.sha256) == 64
    assert not list(store.data.glob("t-0/*00000.log*"))
    again.close()


def test_a_reclaim_of_segments_never_indexed_indexes_them(store):
    """Reclaiming segments that are not indexed yet adds them to the index."""
    store.create_topic("t", 1, {"segment.entries": "1"})
    for letter in "abc":
        append(store.partition(TP), letter)
    store.segments.reclaim(store.partition(TP), sealed_plan(store, 2))
    assert [e.state for e in store.metadata.cluster.segments(TP).entries()] == [
        SegmentState.RECLAIMED
    ] * 2


def test_a_stale_plan_drops_only_what_it_was_made_for(store):
    """A stale plan does not drop segments that it was not made for."""
    store.create_topic("t", 1)
    append_sealed(store, "ab", "cd")
    plan = sealed_plan(store, 2)
    store.segments.reclaim(store.partition(TP), sealed_plan(store, 1))
    store.segments.reclaim(store.partition(TP), plan)
    assert values_in(store.partition(TP)) == {2: "c", 3: "d"}


def test_plans_and_the_store_agree(store):
    """A plan that has been applied leaves the log start it planned, and the next plan is empty."""
    clock = ManualClock(10_000_000)
    store = restarted(store, clock=clock)
    store.create_topic("t", 1, {"retention.ms": "1000"})
    append_sealed(store, "ab", "cd")
    partition = store.partition(TP)

    def plan():
        *sealed, active = partition.segments()
        return plan_retention(
            sealed,
            active,
            {},
            log_start=partition.log_start_offset,
            config=partition.config,
            now_ms=clock.now_ms(),
        )

    first = plan()
    assert len(first.drops) == 2
    store.segments.reclaim(partition, first)
    assert partition.log_start_offset == first.log_start(0) == 4
    assert plan() == RetentionPlan((), ())
    store.close()


def test_deleted_records_stay_deleted(store):
    """The log start survives a restart, also inside a segment."""
    store.create_topic("t", 1)
    append_sealed(store, "abcd")
    assert store.segments.advance_start(TP, 3) == 3
    assert store.segments.advance_start(TP, 1) == 3
    with pytest.raises(OffsetOutOfRange):
        store.segments.advance_start(TP, 5)
    again = restarted(store)
    assert values_in(again.partition(TP)) == {3: "d"}
    again.close()


def store_id() -> str:
    return "00000000-0000-0000-0000-000000000001"
