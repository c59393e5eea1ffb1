"""Stop after every file effect of what the store does, lose power in several ways, start again.

Whatever the moment, a change has happened whole or not at all, everything acknowledged is there,
and nothing is left lying about. A failure prints the crash point by name.
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
from cordwood.log.lifecycle.directory import doomed_directories, foreign_names
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
    """A store with a topic to change, one to leave alone, and a job that waits for the gate."""
    store = open_store(path)
    store.create_topic("kept", 1)
    append(store.partition(KEPT), "k")
    store.create_topic("t", 1)
    append_sealed(store, "ab", "ac", "bd")
    append(store.partition(TP), "z")
    store.hash_sealed()
    batches = {0: [a_batch({2: "a", 3: "c"})], 4: [a_batch({4: "b", 5: "d"})]}
    stage(store, "job-1", [0, 2, 4], batches)
    store.close()
    open_store(path).close()  # everything has been through one restart
    return path


@pytest.fixture
def tmp_path(tmp_path) -> Iterator[Path]:
    """In memory if possible: what survives is for ``CrashFiles`` to say, not for the disk."""
    shared = Path("/dev/shm")
    root = shared if shared.is_dir() and os.access(shared, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=root) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    return a_template(tmp_path_factory.mktemp("template") / "data")


def crashing(root: Path) -> CrashFiles:
    """Files of ``root``, but for SQLite's: what those lose is tested by cutting its log."""
    files = CrashFiles(root)
    for table in (files._live, files._names):
        for path in [p for p in table if p.name.startswith("meta.db")]:
            del table[path]
    return files


def crash_everywhere(
    template: Path, tmp_path: Path, power: Power | None, story: Story, check: Callable[[Store], str]
) -> set[str]:
    """Run the story with a crash after 0, 1, 2 … effects; which outcomes the checks saw."""
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
    """What the end of a process does for it: nothing but closing descriptors."""
    store.catalog.close()
    store.lock.close()


def look(root: Path, check: Callable[[Store], str]) -> str:
    """Open what the crash left; check it and its neighbour, and that a second start agrees."""
    store = open_store(root)
    outcome = check(store)
    assert store.offline == {}
    assert values_in(store.partition(KEPT)) == {0: "k"}
    assert foreign_names(root, store.catalog.topics.values()) == []
    assert doomed_directories(root) == []
    assert_tidy(store)
    store.close()
    again = open_store(root)
    assert check(again) == outcome
    again.close()
    return outcome


def assert_tidy(store: Store) -> None:
    """Index and files say the same, and no swap or deletion is under way."""
    assert store.catalog.swaps == {}
    assert store.catalog.deleting == {}
    for topic in store.topics:
        for partition in store.partitions(topic):
            index = store.catalog.segments(partition.tp).entries()
            sealed = [(e.base_offset, e.size_bytes) for e in index if e.state == "sealed"]
            live = [(i.base_offset, i.size_bytes) for i in partition.segments()[:-1]]
            assert sealed == live
            names = [parse_file_name(path.name) for path in partition.directory.iterdir()]
            assert not [name for name in names if name and name.suffix in {CLEANED, SWAP}]


# --- stories --------------------------------------------------------------------------------


@pytest.mark.parametrize("power", MODES)
def test_a_topic_is_created_whole_or_not_at_all(template, tmp_path, power):
    """Half a topic never exists, and its name is free or taken."""

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
    """Its records are all there, or the next topic of that name starts empty."""

    def check(store: Store) -> str:
        if "t" in store.topics:
            assert values_in(store.partition(TP)) == BEFORE
            return "there"
        assert not list(store.data.glob("t-*"))
        assert store.catalog.segments(TP).entries() == []
        return "gone"

    seen = crash_everywhere(template, tmp_path, power, lambda s: s.delete_topic("t"), check)
    assert seen == {"gone"}


@pytest.mark.parametrize("power", MODES)
def test_a_recreated_topic_starts_empty(template, tmp_path, power):
    """Delete and create in one go: nothing of the old one comes back under the new one's name."""

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
    """And the first one keeps its records."""

    def check(store: Store) -> str:
        assert values_in(store.partition(TP)) == BEFORE
        assert store.topic("t").partition_count == 3
        return "added"

    seen = crash_everywhere(template, tmp_path, power, lambda s: s.add_partitions("t", 3), check)
    assert seen == {"added"}


@pytest.mark.parametrize("power", MODES)
def test_a_reclaim_begun_is_finished(template, tmp_path, power):
    """Once the intention is recorded the records are gone, and indexed as reclaimed."""

    def story(store: Store) -> None:
        partition = store.partition(TP)
        drops = tuple(Drop(info, Reason.AGE) for info in partition.segments()[:2])
        store.reclaim(partition, RetentionPlan(drops, ()))
        partition.purge_deleted(10**15)

    def check(store: Store) -> str:
        partition = store.partition(TP)
        assert partition.log_start_offset == 4
        assert values_in(partition) == {4: "b", 5: "d", 6: "z"}
        states = [entry.state for entry in store.catalog.segments(TP).entries()]
        assert states == [SegmentState.RECLAIMED] * 2 + [SegmentState.SEALED]
        return "reclaimed"

    assert crash_everywhere(template, tmp_path, power, story, check) == {"reclaimed"}


@pytest.mark.parametrize("power", MODES)
def test_a_swap_holds_whole_or_not_at_all(template, tmp_path, power):
    """Readers find the old records or the new ones, never a mixture, and the index agrees."""

    def story(store: Store) -> None:
        store.apply_job(store.verify_job("job-1"))

    def check(store: Store) -> str:
        found = values_in(store.partition(TP))
        bases = [info.base_offset for info in store.partition(TP).segments()]
        assert (found, bases) in ((BEFORE, [0, 2, 4, 6]), (COMPACTED, [0, 4, 6]))
        return "old" if found == BEFORE else "new"

    assert crash_everywhere(template, tmp_path, power, story, check) == {"old", "new"}


@pytest.mark.parametrize("power", MODES)
def test_a_first_start_can_be_repeated(tmp_path, power):
    """A directory whose making was interrupted opens the next time."""
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
    """A crash during the start that finishes a swap, and another start finishes it all the same."""
    half_done = tmp_path / "half"
    shutil.copytree(template, half_done)
    files = crashing(half_done)
    store = open_store(half_done, files)
    job = store.verify_job("job-1")
    files.after = len(files.effects) + effects_until_new(template, tmp_path)
    with pytest.raises(Crash):
        store.apply_job(job)
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
    """How many effects of the swap leave it just past its commit point, files half renamed."""
    root = tmp_path / "measured"
    shutil.copytree(template, root)
    files = CrashFiles(root)
    store = open_store(root, files)
    job = store.verify_job("job-1")
    start = len(files.effects)
    store.apply_job(job)
    names = [effect.path.name for effect in files.effects[start:]]
    store.close()
    return next(i for i, name in enumerate(names) if name.endswith(".deleted")) + 2
