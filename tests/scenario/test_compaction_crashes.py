"""Kill the job, kill the broker, at every step of stage, verify, swap and delete.

Whatever dies: no key's newest value is lost, no deleted or superseded one comes back, and the next
pass finishes as if nothing had happened, leftovers of the dead one included.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest

from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.clock import ManualClock
from cordwood.decide.compaction import encode_state
from cordwood.errors import StaleManifest
from cordwood.pipeline.compact.compaction_pass import CompactionPass
from cordwood.pipeline.compact.job import in_process
from support.compaction import CompactionHarness, data_records
from support.crash import Crash, CrashFiles, Power
from support.stores import records_in

DAY_MS = 86_400_000
CONFIG = {"segment.bytes": "700", "delete.retention.ms": str(DAY_MS)}


class Killed(BaseException):
    """The job's process is gone."""


def build(data) -> ManualClock:
    """Full segments, some with nothing to change between others with much; a tombstone is due.

    An incremental pass over this makes several swaps, lowest offsets first.
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
    """What a consumer from the start ends up with."""
    found = {r.key: r.value for r in records_in(harness.partition)}
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The log before, what must be visible throughout, and how it ends undisturbed."""
    root = tmp_path_factory.mktemp("story")
    clock = build(root / "data")
    shutil.copytree(root / "data", root / "copy")
    with CompactionHarness(root / "copy", clock=clock) as harness:
        shown = visible(harness)
        harness.compact_well(demand=False)
        jobs = len(harness.posts[-1]["jobs"])
        final = data_records(harness.batches())
        assert visible(harness) == shown
    assert jobs >= 3, "the story is about a pass of several swaps"
    return root / "data", clock, shown, final


def reopened(story, tmp_path, **options) -> CompactionHarness:
    data, clock, _, _ = story
    shutil.copytree(data, tmp_path / "data", dirs_exist_ok=True)
    return CompactionHarness(tmp_path / "data", clock=clock, **options)


def expect_whole(harness, story) -> None:
    """After any death: everything visible is right, and the next pass ends as it should."""
    _, _, shown, final = story
    assert visible(harness) == shown
    outcomes = harness.compact(demand=False)
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    assert visible(harness) == shown
    assert data_records(harness.batches()) == final
    harness.compact_well(dry=True)  # where nothing was due, any later pass tidies up
    assert list((harness.data / "staging").glob("compact-*")) == []
    assert list((harness.data / "cleaner").rglob("*.work")) == []


def killing_run(at: int, *, after: bool):
    """Tasks in process; the job dies before, or right after, its task number ``at``."""
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
    """Before and after every task of every stage; a dead process tidies nothing up."""
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
    """Whole, proved and never reported: the next pass begins anew and removes it."""
    with reopened(story, tmp_path) as harness:
        post = harness.post

        def dying(path, body):
            if body["action"] == "finish":
                raise Killed
            return post(path, body)

        with monkeypatch.context() as dead:
            dead.setattr(CompactionPass, "tidy", lambda self: None)
            dead.setattr(harness, "post", dying)
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
    """Or by a power cut: what is visible is right at once, and the next pass finishes."""
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
    """One broker that dies before this effect of its swaps."""
    shutil.copytree(story[0], tmp_path / "data")
    files = CrashFiles(tmp_path)
    for path in (tmp_path / "data").glob("meta.db*"):  # SQLite syncs for itself
        del files._live[path], files._names[path]
    harness = CompactionHarness(tmp_path / "data", clock=story[1], files=files)
    files.after = len(files.effects) + effect
    with pytest.raises(Crash):
        harness.compact(demand=False)
    with suppress(Crash):
        harness.close()  # descriptors only: no effect gets through any more
    if power is not None:
        files.power_off(power)


def test_a_report_that_comes_twice_is_taken_once(story, tmp_path):
    """The answer was lost on the way: the job asks again, and all is well."""
    with reopened(story, tmp_path) as harness:
        harness.compact_well(demand=False)
        report = harness.posts[-1]
        assert report["action"] == "finish"
        passes = harness.state().passes
        harness.post("/api/compaction", report)
        assert (harness.state().passes, harness.state().failures) == (passes, 0)
        expect_whole(harness, story)


def test_two_jobs_on_one_partition_cannot_both_win(story, tmp_path):
    """The second finds the log changed: refused, not failed, and nothing lost."""
    with reopened(story, tmp_path) as harness:
        order = harness.post(
            "/api/compaction", {"action": "begin", "topic": None, "demand": False, "dry": False}
        )["orders"][0]
        harness.clock.advance(LEASE_MS)
        slow = CompactionPass(order, in_process, progress=lambda *_: None, task_bytes=1 << 20)
        slow.prepare()
        jobs, state = slow.commit()
        kept = {
            job: shutil.copytree(harness.data / "staging" / job, tmp_path / job) for job in jobs
        }
        harness.compact_well(demand=False)
        for job, path in kept.items():
            shutil.copytree(path, harness.data / "staging" / job, dirs_exist_ok=True)
        with pytest.raises(StaleManifest):
            harness.post(
                "/api/compaction",
                {"action": "finish", "topic": "t", "partition": 0, "topic_id": order["topic_id"],
                 "jobs": jobs, "state": encode_state(state)},
            )  # fmt: skip
        assert harness.state().failures == 0
        slow.tidy()
        expect_whole(harness, story)
