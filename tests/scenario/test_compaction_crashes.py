"""Kill the job or the broker at every step of stage, verify, swap and delete.

In every case, no key's newest value is lost, no deleted or superseded value comes back, and the
next pass ends with the same log and removes the files that the killed pass left.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest

from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.errors import StaleManifest
from cordwood.pipeline.compact.compaction_pass import CompactionPass
from cordwood.protocol.api.compaction import BeginCompaction, FinishCompaction
from support.clock import ManualClock
from support.compaction import CompactionHarness, data_records, in_process
from support.crash import Crash, CrashFiles, Power
from support.stores import records_in

DAY_MS = 86_400_000
CONFIG = {"segment.bytes": "700", "delete.retention.ms": str(DAY_MS)}


class Killed(BaseException):
    """The process of the job was killed."""


def build(data) -> ManualClock:
    """Build full segments, some without any change between others with many, and a due tombstone.

    An incremental pass over them makes several swaps, lowest offsets first.
    """
    with CompactionHarness(data, CONFIG) as harness:
        for group in "abcde":
            harness.append(*[(b"%s%d" % (group.encode(), i), b"x" * 100) for i in range(5)])
            harness.cut()
        harness.append((b"c1", None), (b"f", b"y" * 400))
        harness.cut()
        harness.compact_well(demand=False)
        harness.clock.advance(DAY_MS)
        harness.append((b"a0", b"new"), (b"c2", b"new"), (b"e3", b"new"), (b"e4", None))
        harness.cut()
        return harness.clock


def visible(harness) -> dict[bytes, bytes]:
    """Return the values that a consumer has after reading from the start."""
    found = {r.key: r.value for r in records_in(harness.partition)}
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Return the data before compaction, the visible values, and the records after compaction."""
    root = tmp_path_factory.mktemp("story")
    clock = build(root / "data")
    shutil.copytree(root / "data", root / "copy")
    with CompactionHarness(root / "copy", clock=clock) as harness:
        shown = visible(harness)
        harness.compact_well(demand=False)
        jobs = len(harness.calls[-1].jobs)
        final = data_records(harness.batches())
        assert visible(harness) == shown
    assert jobs >= 3, "the story is about a pass of several swaps"
    return root / "data", clock, shown, final


def reopened(story, tmp_path, **options) -> CompactionHarness:
    data, clock, _, _ = story
    shutil.copytree(data, tmp_path / "data", dirs_exist_ok=True)
    return CompactionHarness(tmp_path / "data", clock=clock, **options)


def expect_whole(harness, story) -> None:
    """The visible values are right after a crash, and the next pass ends with the expected log."""
    _, _, shown, final = story
    assert visible(harness) == shown
    outcomes = harness.compact(demand=False)
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    assert visible(harness) == shown
    assert data_records(harness.batches()) == final
    harness.compact_well(dry=True)  # if nothing was due, a later pass removes the files
    assert list((harness.data / "staging").glob("compact-*")) == []
    assert list((harness.data / "cleaner").rglob("*.work")) == []


def killing_run(at: int, *, after: bool):
    """Run tasks in process; the job is killed before or right after task number ``at``."""
    done = 0

    def one(function, item):
        nonlocal done
        if done == at and not after:
            raise Killed
        answer = function(item)
        done += 1
        if done == at + 1 and after:
            raise Killed
        return answer

    return lambda function, items: [one(function, item) for item in items]


def count_tasks(story, tmp_path) -> int:
    tasks = []
    with reopened(story, tmp_path) as harness:
        harness.compact(
            demand=False,
            run=lambda function, items: (tasks.extend(items), in_process(function, items))[1],
        )
    shutil.rmtree(tmp_path / "data")
    return len(tasks)


def test_a_job_killed_at_any_task_leaves_the_log_as_it_was(story, tmp_path, monkeypatch):
    """The job is killed before and after every task; the killed process cleans nothing up."""
    tasks = count_tasks(story, tmp_path)
    assert tasks >= 8
    for at in range(tasks):
        for after in (False, True):
            with reopened(story, tmp_path) as harness:
                with monkeypatch.context() as dead:
                    dead.setattr(CompactionPass, "tidy", lambda self: None)
                    with pytest.raises(Killed):
                        harness.compact(demand=False, run=killing_run(at, after=after))
                harness.clock.advance(LEASE_MS)  # its lease ends
                expect_whole(harness, story)
            shutil.rmtree(tmp_path / "data")


def test_a_job_killed_after_its_manifests_is_simply_run_again(story, tmp_path, monkeypatch):
    """A new pass repeats work that was complete but not reported, and removes the old files."""
    with reopened(story, tmp_path) as harness:
        call = harness.call

        def dying(request):
            if isinstance(request, FinishCompaction):
                raise Killed
            return call(request)

        with monkeypatch.context() as dead:
            dead.setattr(CompactionPass, "tidy", lambda self: None)
            dead.setattr(harness, "call", dying)
            with pytest.raises(Killed):
                harness.compact(demand=False)
        assert list((harness.data / "staging").glob("compact-*/manifest.json"))
        harness.clock.advance(LEASE_MS)
        expect_whole(harness, story)


@pytest.mark.slow
@pytest.mark.parametrize(("power", "step"), [(None, 1), (Power.DROP, 3)])
def test_a_broker_killed_at_any_effect_of_the_swaps_finds_its_way(
    story, tmp_path, monkeypatch, power, step
):
    """After a kill or a power cut the visible values are right, and the next pass finishes."""
    files = CrashFiles(tmp_path)
    with reopened(story, tmp_path, files=files) as harness:
        begun = len(files.effects)
        harness.compact_well(demand=False)
        total = len(files.effects) - begun
    assert total > 30
    shutil.rmtree(tmp_path / "data")
    for effect in range(0, total, step):
        with monkeypatch.context() as dead:
            dead.setattr(CompactionPass, "tidy", lambda self: None)
            _crash(story, tmp_path, effect, power)
        with CompactionHarness(tmp_path / "data", clock=story[1]) as harness:
            expect_whole(harness, story)
        shutil.rmtree(tmp_path / "data")


def _crash(story, tmp_path, effect: int, power: Power | None) -> None:
    """Run a broker that is killed before this effect of its swaps."""
    shutil.copytree(story[0], tmp_path / "data")
    files = CrashFiles(tmp_path)
    for path in (tmp_path / "data").glob("meta.db*"):  # SQLite does its own fsync
        del files._live[path], files._names[path]
    harness = CompactionHarness(tmp_path / "data", clock=story[1], files=files)
    files.after = len(files.effects) + effect
    with pytest.raises(Crash):
        harness.compact(demand=False)
    with suppress(Crash):
        harness.close()  # closes descriptors only: every further effect raises
    if power is not None:
        files.power_off(power)


def test_a_report_that_comes_twice_is_taken_once(story, tmp_path):
    """If the reply was lost and the job reports again, the pass is counted once."""
    with reopened(story, tmp_path) as harness:
        harness.compact_well(demand=False)
        report = harness.calls[-1]
        assert isinstance(report, FinishCompaction)
        passes = harness.state().passes
        harness.call(report)
        assert (harness.state().passes, harness.state().failures) == (passes, 0)
        expect_whole(harness, story)


def test_two_jobs_on_one_partition_cannot_both_win(story, tmp_path):
    """The second job is refused because the log changed; that is no failure and loses nothing."""
    with reopened(story, tmp_path) as harness:
        (order,) = harness.call(BeginCompaction()).orders
        harness.clock.advance(LEASE_MS)
        slow = CompactionPass(order, in_process, progress=lambda *_: None)
        slow.prepare()
        jobs, state = slow.commit()
        kept = {
            job: shutil.copytree(harness.data / "staging" / job, tmp_path / job) for job in jobs
        }
        harness.compact_well(demand=False)
        for job, path in kept.items():
            shutil.copytree(path, harness.data / "staging" / job, dirs_exist_ok=True)
        with pytest.raises(StaleManifest):
            harness.call(FinishCompaction("t", 0, order.topic_id, tuple(jobs), state))
        assert harness.state().failures == 0
        slow.tidy()
        expect_whole(harness, story)
