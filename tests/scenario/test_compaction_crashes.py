"""Kill the job, kill the broker, at every step of stage, verify, swap and delete.

Whatever dies: no key's newest value is lost, no deleted or superseded one comes back, and the next
pass finishes as if nothing had happened, leftovers of the dead one included.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest

from cordwood.broker.compaction import LEASE_MS
from cordwood.clock import ManualClock
from cordwood.decide.compaction import encode_state
from cordwood.errors import StaleManifest
from cordwood.pipeline.cleaner import Pass
from cordwood.pipeline.compact import in_process
from support.compaction import Yard, data_records
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
    with Yard(data, CONFIG) as yard:
        for group in "abcde":
            yard.append(*[(b"%s%d" % (group.encode(), i), b"x" * 100) for i in range(5)])
            yard.cut()
        yard.append((b"c1", None), (b"f", b"y" * 400))
        yard.cut()
        yard.compact_well(demand=False)
        yard.clock.advance(DAY_MS)
        yard.append((b"a0", b"new"), (b"c2", b"new"), (b"e3", b"new"), (b"e4", None))
        yard.cut()
        return yard.clock


def visible(yard) -> dict[bytes, bytes]:
    """What a consumer from the start ends up with."""
    found = {r.key: r.value for r in records_in(yard.partition)}
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The log before, what must be visible throughout, and how it ends undisturbed."""
    root = tmp_path_factory.mktemp("story")
    clock = build(root / "data")
    shutil.copytree(root / "data", root / "copy")
    with Yard(root / "copy", clock=clock) as yard:
        shown = visible(yard)
        yard.compact_well(demand=False)
        jobs = len(yard.posts[-1]["jobs"])
        final = data_records(yard.batches())
        assert visible(yard) == shown
    assert jobs >= 3, "the story is about a pass of several swaps"
    return root / "data", clock, shown, final


def reopened(story, tmp_path, **options) -> Yard:
    data, clock, _, _ = story
    shutil.copytree(data, tmp_path / "data", dirs_exist_ok=True)
    return Yard(tmp_path / "data", clock=clock, **options)


def expect_whole(yard, story) -> None:
    """After any death: everything visible is right, and the next pass ends as it should."""
    _, _, shown, final = story
    assert visible(yard) == shown
    outcomes = yard.compact(demand=False)
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    assert visible(yard) == shown
    assert data_records(yard.batches()) == final
    yard.compact_well(dry=True)  # where nothing was due, any later pass tidies up
    assert list((yard.data / "staging").glob("compact-*")) == []
    assert list((yard.data / "cleaner").rglob("*.work")) == []


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
    with reopened(story, tmp_path) as yard:
        yard.compact(
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
            with reopened(story, tmp_path) as yard:
                with monkeypatch.context() as dead:
                    dead.setattr(Pass, "tidy", lambda self: None)
                    with pytest.raises(Killed):
                        yard.compact(demand=False, run=killing_run(at, after=after))
                yard.clock.advance(LEASE_MS)  # its lease ends
                expect_whole(yard, story)
            shutil.rmtree(tmp_path / "data")


def test_a_job_killed_after_its_manifests_is_simply_run_again(story, tmp_path, monkeypatch):
    """Whole, proved and never reported: the next pass begins anew and removes it."""
    with reopened(story, tmp_path) as yard:
        post = yard.post

        def dying(path, body):
            if body["action"] == "finish":
                raise Killed
            return post(path, body)

        with monkeypatch.context() as dead:
            dead.setattr(Pass, "tidy", lambda self: None)
            dead.setattr(yard, "post", dying)
            with pytest.raises(Killed):
                yard.compact(demand=False)
        assert list((yard.data / "staging").glob("compact-*/manifest.json"))
        yard.clock.advance(LEASE_MS)
        expect_whole(yard, story)


@pytest.mark.slow
@pytest.mark.parametrize(("power", "step"), [(None, 1), (Power.DROP, 3)])
def test_a_broker_killed_at_any_effect_of_the_swaps_finds_its_way(
    story, tmp_path, monkeypatch, power, step
):
    """Or by a power cut: what is visible is right at once, and the next pass finishes."""
    files = CrashFiles(tmp_path)
    with reopened(story, tmp_path, files=files) as yard:
        begun = len(files.effects)
        yard.compact_well(demand=False)
        total = len(files.effects) - begun
    assert total > 30
    shutil.rmtree(tmp_path / "data")
    for effect in range(0, total, step):
        with monkeypatch.context() as dead:
            dead.setattr(Pass, "tidy", lambda self: None)
            _crash(story, tmp_path, effect, power)
        with Yard(tmp_path / "data", clock=story[1]) as yard:
            expect_whole(yard, story)
        shutil.rmtree(tmp_path / "data")


def _crash(story, tmp_path, effect: int, power: Power | None) -> None:
    """One broker that dies before this effect of its swaps."""
    shutil.copytree(story[0], tmp_path / "data")
    files = CrashFiles(tmp_path)
    for path in (tmp_path / "data").glob("meta.db*"):  # SQLite syncs for itself
        del files._live[path], files._names[path]
    yard = Yard(tmp_path / "data", clock=story[1], files=files)
    files.after = len(files.effects) + effect
    with pytest.raises(Crash):
        yard.compact(demand=False)
    with suppress(Crash):
        yard.close()  # descriptors only: no effect gets through any more
    if power is not None:
        files.power_off(power)


def test_a_report_that_comes_twice_is_taken_once(story, tmp_path):
    """The answer was lost on the way: the job asks again, and all is well."""
    with reopened(story, tmp_path) as yard:
        yard.compact_well(demand=False)
        report = yard.posts[-1]
        assert report["action"] == "finish"
        passes = yard.state().passes
        yard.post("/api/compaction", report)
        assert (yard.state().passes, yard.state().failures) == (passes, 0)
        expect_whole(yard, story)


def test_two_jobs_on_one_partition_cannot_both_win(story, tmp_path):
    """The second finds the log changed: refused, not failed, and nothing lost."""
    with reopened(story, tmp_path) as yard:
        order = yard.post(
            "/api/compaction", {"action": "begin", "topic": None, "demand": False, "dry": False}
        )["orders"][0]
        yard.clock.advance(LEASE_MS)
        slow = Pass(order, in_process, progress=lambda *_: None, task_bytes=1 << 20)
        slow.prepare()
        jobs, state = slow.commit()
        kept = {job: shutil.copytree(yard.data / "staging" / job, tmp_path / job) for job in jobs}
        yard.compact_well(demand=False)
        for job, path in kept.items():
            shutil.copytree(path, yard.data / "staging" / job, dirs_exist_ok=True)
        with pytest.raises(StaleManifest):
            yard.post(
                "/api/compaction",
                {"action": "finish", "topic": "t", "partition": 0, "topic_id": order["topic_id"],
                 "jobs": jobs, "state": encode_state(state)},
            )  # fmt: skip
        assert yard.state().failures == 0
        slow.tidy()
        expect_whole(yard, story)
