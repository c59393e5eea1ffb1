"""Kill the broker at every effect on disk while it compresses segments, and cut the power.

In every case each segment is the old one or the new one, every record is readable, and after the
restart the broker finishes the work and leaves no file behind.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest

from cordwood.batch.recoding import Recoding
from cordwood.model import Codec
from support.clock import ManualClock
from support.compaction import TP, Chance, CompactionHarness, data_records
from support.crash import Crash, CrashFiles, Power

CONFIG = {"cleanup.policy": "delete"}
ZSTD = Recoding(Codec.ZSTD, {})


def compress_all(harness) -> None:
    """Compress what has not been tried, as the broker's background task does."""
    cluster = harness.store.metadata.cluster
    for info in harness.partition.segments()[:-1]:
        if cluster.segments(TP).get(info.base_offset).compression is None:
            verified = harness.store.segments.compress(
                harness.partition, info, ZSTD, lambda size_bytes: None
            )
            if verified is not None:
                harness.store.segments.apply_job(verified)


def shown(harness):
    """Return the records and what a ``read_committed`` reader must skip."""
    return data_records(harness.batches()), harness.partition.aborted(0, 10_000)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Return data with lines, producers and an aborted transaction, and what readers see."""
    root = tmp_path_factory.mktemp("story")
    with CompactionHarness(root / "data", CONFIG) as harness:
        for at in range(30):
            harness.append((b"k%d" % at, b"a line of words and more words " * 3))
        harness.cut()
        chance = Chance(harness, 3)
        chance.run(25)
        harness.append((b"k", b"v"), producer_id=9, producer_epoch=0, base_sequence=0,
                       is_transactional=True)  # fmt: skip
        harness.marker(9, commit=False)
        harness.cut()
        clock, seen = harness.clock, shown(harness)
    assert seen[1], "the story has an aborted transaction"
    return root / "data", clock, seen


def reopened(data, clock: ManualClock, **options) -> CompactionHarness:
    return CompactionHarness(data, clock=clock, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("power", "step"), [(None, 1), (Power.DROP, 3), (Power.ZEROS, 7)])
def test_a_broker_killed_at_any_effect_has_the_old_segment_or_the_new(story, tmp_path, power, step):
    """After a kill or a power cut nothing is lost, and the compression is finished."""
    source, clock, seen = story
    data = tmp_path / "data"
    shutil.copytree(source, data)
    files = CrashFiles(tmp_path)
    with reopened(data, clock, files=files) as harness:
        begun = len(files.effects)
        compress_all(harness)
        total = len(files.effects) - begun
        assert shown(harness) == seen
    assert total > 30
    shutil.rmtree(data)
    for effect in range(0, total, step):
        shutil.copytree(source, data)
        _crash(tmp_path, clock, effect, power)
        with reopened(data, clock) as harness:
            assert shown(harness) == seen, f"killed before effect {effect}"
            assert not (data / "claimed").exists()
            compress_all(harness)
            assert shown(harness) == seen
            entries = harness.store.metadata.cluster.segments(TP).entries()
            assert [entry.compression.codec for entry in entries] == ["zstd"] * len(entries)
            sizes = [each.size_bytes for each in harness.partition.segments()[:-1]]
            assert [entry.size_bytes for entry in entries] == sizes
            assert harness.store.health.troubled() == []
        shutil.rmtree(data)


def _crash(tmp_path, clock: ManualClock, effect: int, power: Power | None) -> None:
    """Run a broker that is killed before this effect of its compression."""
    files = CrashFiles(tmp_path)
    for path in (tmp_path / "data").glob("meta.db*"):  # SQLite does its own fsync
        del files._live[path], files._names[path]
    harness = reopened(tmp_path / "data", clock, files=files)
    files.after = len(files.effects) + effect
    with pytest.raises(Crash):
        compress_all(harness)
    with suppress(Crash):
        harness.close()  # closes descriptors only: every further effect raises
    if power is not None:
        files.power_off(power)
