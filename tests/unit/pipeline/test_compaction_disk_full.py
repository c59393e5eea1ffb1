"""Compaction on a disk that is full: one sentence, nothing left behind, and later it works."""

from __future__ import annotations

import errno
import resource
from contextlib import contextmanager

import pytest

from cordwood.errors import CordwoodError
from cordwood.pipeline import cleaner
from cordwood.pipeline.tasks import outcome as outcome_of
from support.compaction import Yard

STAGES = {"digest": 0, "survivors": 1, "rewrite": 2}


@contextmanager
def no_room():
    """Every write to a file fails, really, as if the disk had no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def a_yard(tmp_path):
    yard = Yard(tmp_path / "data")
    for number in range(60):
        yard.append(*((b"k%d" % key, b"%d" % number) for key in range(50)))
    yard.cut()
    return yard


def left_behind(yard):
    """Whatever a pass wrote that is neither the log nor what the next pass may use."""
    found = [*(yard.data / "staging").rglob("*"), *(yard.data / "cleaner").rglob("*.*")]
    return [path for path in found if not path.name.endswith(".keys")]


def contents(yard):
    return [(r.offset, r.key, r.value) for batch in yard.batches() for r in batch.records]


def newest(records):
    return {key: value for _, key, value in records}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_disk_full_in_any_stage_costs_nothing_but_the_pass(tmp_path, stage):
    """What the tasks of that stage cannot write is said; the log stays, and is compacted later."""
    with a_yard(tmp_path) as yard:
        before = contents(yard)
        stages = []

        def run(function, items, /):
            stages.append(function)
            if len(stages) != stage + 1:
                return [function(item) for item in items]
            with no_room():
                answers = [outcome_of(function, item) for item in items]
            raise next(each for each in answers if isinstance(each, CordwoodError))

        (outcome,) = yard.compact(run=run)
        assert outcome.error == "File too large; mend that and run this again"
        assert (left_behind(yard), contents(yard)) == ([], before)

        assert yard.compact_well().records_after == 50
        assert newest(contents(yard)) == newest(before)


def test_a_disk_full_when_the_job_itself_writes_is_told_to_the_broker_too(tmp_path, monkeypatch):
    """The manifest is the last thing written, by nobody's task."""

    def full(_manifest):
        raise OSError(errno.ENOSPC, "No space left on device", "/disk/manifest.json")

    with a_yard(tmp_path) as yard:
        before = contents(yard)
        with monkeypatch.context() as broken:
            broken.setattr(cleaner, "encode_manifest", full)
            (outcome,) = yard.compact()
        assert outcome.error.startswith("/disk/manifest.json: No space left on device")
        assert yard.posts[-1]["action"] == "fail"
        assert (left_behind(yard), contents(yard)) == ([], before)
        assert yard.compact_well().records_after == 50
