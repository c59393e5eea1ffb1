"""Stop the store after every file effect, lose power in several ways, and start again.

Each change is complete or did not happen, everything acknowledged is there, and no temporary files
remain. A failure prints the name of the crash point.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordwood.decide.retention import Drop, Reason, RetentionPlan
from cordwood.log.format.layout import CLEANED, SWAP, parse_file_name
from cordwood.log.lifecycle.directory import deleted_directories, foreign_names
from cordwood.log.lifecycle.store import Store
from cordwood.model import SegmentState, TopicPartition
from support.crash import Crash, CrashFiles, Power
from support.stores import TP, a_batch, append, append_sealed, open_store, stage, values_in

MODES = [None, *Power]  # None: the process is killed, the page cache stays
KEPT = TopicPartition("kept", 0)
BEFORE = {0: "a", 1: "b", 2: "a", 3: "c", 4: "b", 5: "d", 6: "z"}
COMPACTED = {2: "a", 3: "c", 4: "b", 5: "d", 6: "z"}

Story = Callable[[Store], None]


def a_template(path: Path) -> Path:
    """Create a store with a topic to change, one to leave alone, and a job ready for its swap."""
    store = open_store(path)
    store.create_topic("kept", 1)
    append(store.partition(KEPT), "k")
    store.create_topic("t", 1)
    append_sealed(store, "ab", "ac", "bd")
    append(store.partition(TP), "z")
    store.segments.hash_sealed()
    batches = {0: [a_batch({2: "a", 3: "c"})], 4: [a_batch({4: "b", 5: "d"})]}
    stage(store, "job-1", [0, 2, 4], batches)
    store.close()
    open_store(path).close()  # everything has gone through one restart
    return path


@pytest.fixture
def tmp_path(tmp_path) -> Iterator[Path]:
    """Use memory if possible: ``CrashFiles`` decides what survives, not the real disk."""
    shared = Path("/dev/shm")
    root = shared if shared.is_dir() and os.access(shared, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=root) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    return a_template(tmp_path_factory.mktemp("template") / "data")


def crashing(root: Path) -> CrashFiles:
    """Return crash files for ``root`` without SQLite's, whose losses other tests cover."""
    files = CrashFiles(root)
    for table in (files._live, files._names):
        for path in [p for p in table if p.name.startswith("meta.db")]:
            del table[path]
    return files


def crash_everywhere(
    template: Path, tmp_path: Path, power: Power | None, story: Story, check: Callable[[Store], str]
) -> set[str]:
    """Run the story with a crash after 0, 1, 2 … effects, and return the outcomes seen."""
    outcomes = set()
    for effects in range(500):
        root = tmp_path / f"at{effects}"
        shutil.copytree(template, root)
        files = crashing(root)
        store = open_store(root, files)
        files.after = len(files.effects) + effects
        try:
            story(store)
        except Crash:
            die(store)
        else:
            files.after = None
            store.close()
            assert effects, "the story has no effect to stop after"
            return outcomes
        if power is not None:
            files.power_off(power)
        try:
            outcomes.add(look(root, check))
        except BaseException as error:
            error.add_note(f"crashed at {files.point}, {power}, effects {files.effects[-8:]}")
            raise
        shutil.rmtree(root)
    raise AssertionError("the story does not end")


def die(store: Store) -> None:
    """End the process: only close its descriptors."""
    store.metadata.close()
    store.directory.lock.close()


def look(root: Path, check: Callable[[Store], str]) -> str:
    """Open the data after a crash, check it, and check that a second start agrees."""
    store = open_store(root)
    outcome = check(store)
    assert store.offline == {}
    assert values_in(store.partition(KEPT)) == {0: "k"}
    assert foreign_names(root, store.metadata.cluster.topics.values()) == []
    assert deleted_directories(root) == []
    assert_tidy(store)
    store.close()
    again = open_store(root)
    assert check(again) == outcome
    again.close()
    return outcome


def assert_tidy(store: Store) -> None:
    """The segment index matches the files, and no swap or deletion is pending."""
    assert store.metadata.cluster.swaps == {}
    assert store.metadata.cluster.deleting == {}
    for topic in store.topics:
        for partition in store.partitions(topic):
            index = store.metadata.cluster.segments(partition.tp).entries()
            sealed = [(e.base_offset, e.size_bytes) for e in index if e.state == "sealed"]
            live = [(i.base_offset, i.size_bytes) for i in partition.segments()[:-1]]
            assert sealed == live
            names = [parse_file_name(path.name) for path in partition.directory.iterdir()]
            assert not [name for name in names if name and name.suffix in {CLEANED, SWAP}]


# --- operations that crash ------------------------------------------------------------------


@pytest.mark.parametrize("power", MODES)
def test_a_topic_is_created_whole_or_not_at_all(template, tmp_path, power):
    """A topic never exists in part, and its name is either free or taken."""

    def check(store: Store) -> str:
        if "new" not in store.topics:
            assert not list(store.data.glob("new-*"))
            return "absent"
        assert store.topic("new").config.retention_ms == 5
        assert [values_in(p) for p in store.partitions("new")] == [{}, {}]
        return "there"

    def story(store: Store) -> None:
        store.create_topic("new", 2, {"retention.ms": "5"})

    assert crash_everywhere(template, tmp_path, power, story, check) == {"there"}


@pytest.mark.parametrize("power", MODES)
def test_what_is_written_to_a_new_topic_stays(template, tmp_path, power):
    """Once a record is acknowledged, its topic's directory is durable too."""
    acked: list[str] = []

    def story(store: Store) -> None:
        acked.clear()
        store.create_topic("new", 1)
        for letter in "xy":
            append(store.partition(TopicPartition("new", 0)), letter)
            acked.append(letter)

    def check(store: Store) -> str:
        found = list(values_in(store.partition(TopicPartition("new", 0))).values())
        assert found[: len(acked)] == acked
        return "kept"

    crash_everywhere(template, tmp_path, power, story, check)


@pytest.mark.parametrize("power", MODES)
def test_a_topic_is_deleted_whole_or_not_at_all(template, tmp_path, power):
    """All records of the topic are there, or the next topic of that name starts empty."""

    def check(store: Store) -> str:
        if "t" in store.topics:
            assert values_in(store.partition(TP)) == BEFORE
            return "there"
        assert not list(store.data.glob("t-*"))
        assert store.metadata.cluster.segments(TP).entries() == []
        return "gone"

    seen = crash_everywhere(template, tmp_path, power, lambda s: s.delete_topic("t"), check)
    assert seen == {"gone"}


@pytest.mark.parametrize("power", MODES)
def test_a_recreated_topic_starts_empty(template, tmp_path, power):
    """No record of the deleted topic appears in the new topic of the same name."""

    def story(store: Store) -> None:
        store.delete_topic("t")
        store.create_topic("t", 1)
        append(store.partition(TP), "new")

    def check(store: Store) -> str:
        if "t" not in store.topics:
            return "gone"
        found = values_in(store.partition(TP))
        assert found in ({}, {0: "new"})
        return "new"

    assert crash_everywhere(template, tmp_path, power, story, check) == {"gone", "new"}


@pytest.mark.parametrize("power", MODES)
def test_added_partitions_are_all_there_or_none(template, tmp_path, power):
    """The first partition keeps its records."""

    def check(store: Store) -> str:
        assert values_in(store.partition(TP)) == BEFORE
        assert store.topic("t").partition_count == 3
        return "added"

    seen = crash_everywhere(template, tmp_path, power, lambda s: s.add_partitions("t", 3), check)
    assert seen == {"added"}


@pytest.mark.parametrize("power", MODES)
def test_a_reclaim_begun_is_finished(template, tmp_path, power):
    """Once a reclaim is recorded, its records are gone and indexed as reclaimed."""

    def story(store: Store) -> None:
        partition = store.partition(TP)
        drops = tuple(Drop(info, Reason.AGE) for info in partition.segments()[:2])
        store.segments.reclaim(partition, RetentionPlan(drops, ()))
        partition.purge_deleted(10**15)

    def check(store: Store) -> str:
        partition = store.partition(TP)
        assert partition.log_start_offset == 4
        assert values_in(partition) == {4: "b", 5: "d", 6: "z"}
        states = [entry.state for entry in store.metadata.cluster.segments(TP).entries()]
        assert states == [SegmentState.RECLAIMED] * 2 + [SegmentState.SEALED]
        return "reclaimed"

    assert crash_everywhere(template, tmp_path, power, story, check) == {"reclaimed"}


@pytest.mark.parametrize("power", MODES)
def test_a_swap_holds_whole_or_not_at_all(template, tmp_path, power):
    """Readers see the old records or the new ones, never a mixture, and the index agrees."""

    def story(store: Store) -> None:
        store.segments.apply_job(store.segments.verify_job("job-1"))

    def check(store: Store) -> str:
        found = values_in(store.partition(TP))
        bases = [info.base_offset for info in store.partition(TP).segments()]
        assert (found, bases) in ((BEFORE, [0, 2, 4, 6]), (COMPACTED, [0, 4, 6]))
        return "old" if found == BEFORE else "new"

    assert crash_everywhere(template, tmp_path, power, story, check) == {"old", "new"}


@pytest.mark.parametrize("power", MODES)
def test_a_first_start_can_be_repeated(tmp_path, power):
    """A data directory whose creation was interrupted opens at the next start."""
    for effects in range(100):
        root = tmp_path / f"at{effects}"
        root.mkdir()
        files = CrashFiles(root, effects)
        try:
            store = open_store(root / "data", files)
            files.after = None
            store.close()
        except Crash:
            pass
        else:
            assert effects > 3
            return
        if power is not None:
            files.power_off(power)
        store = open_store(root / "data")
        store.create_topic("t", 1)
        append(store.partition(TP), "a")
        store.close()


@pytest.mark.parametrize("power", MODES)
def test_recovering_can_itself_be_interrupted(template, tmp_path, power):
    """If the start that finishes a swap crashes, another start finishes it."""
    half_done = tmp_path / "half"
    shutil.copytree(template, half_done)
    files = crashing(half_done)
    store = open_store(half_done, files)
    job = store.segments.verify_job("job-1")
    files.after = len(files.effects) + effects_until_new(template, tmp_path)
    with pytest.raises(Crash):
        store.segments.apply_job(job)
    die(store)
    for effects in range(200):
        root = tmp_path / f"again{effects}"
        shutil.copytree(half_done, root)
        files = crashing(root)
        files.after = effects
        try:
            store = open_store(root, files)
        except Crash:
            if power is not None:
                files.power_off(power)
        else:
            assert effects > 10
            files.after = None
            store.close()
            return
        store = open_store(root)
        assert values_in(store.partition(TP)) == COMPACTED
        assert_tidy(store)
        store.close()


def effects_until_new(template: Path, tmp_path: Path) -> int:
    """Return how many effects take the swap just past its commit point, with files half renamed."""
    root = tmp_path / "measured"
    shutil.copytree(template, root)
    files = CrashFiles(root)
    store = open_store(root, files)
    job = store.segments.verify_job("job-1")
    start = len(files.effects)
    store.segments.apply_job(job)
    names = [effect.path.name for effect in files.effects[start:]]
    store.close()
    return next(i for i, name in enumerate(names) if name.endswith(".deleted")) + 2
