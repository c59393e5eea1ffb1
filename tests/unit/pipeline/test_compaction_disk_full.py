"""Compaction on a full disk reports one error, leaves no files, and succeeds later."""

from __future__ import annotations

import errno
import resource
from contextlib import contextmanager

import pytest

from cordwood.errors import CordwoodError
from cordwood.pipeline.compact import compaction_pass
from cordwood.pipeline.runtime.tasks import outcome as outcome_of
from cordwood.protocol.api.compaction import FailCompaction
from support.compaction import CompactionHarness

STAGES = {"digest": 0, "superseded": 1, "rewrite": 2}


@contextmanager
def no_capacity():
    """Make every write to a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def a_harness(tmp_path):
    harness = CompactionHarness(tmp_path / "data")
    for number in range(60):
        harness.append(*((b"k%d" % key, b"%d" % number) for key in range(50)))
    harness.cut()
    return harness


def left_behind(harness):
    """Return the files of a pass that are neither the log nor reusable digests."""
    found = [*(harness.data / "staging").rglob("*"), *(harness.data / "cleaner").rglob("*.*")]
    return [path for path in found if not path.name.endswith(".keys")]


def contents(harness):
    return [(r.offset, r.key, r.value) for batch in harness.batches() for r in batch.records]


def newest(records):
    return {key: value for _, key, value in records}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_disk_full_in_any_stage_costs_nothing_but_the_pass(tmp_path, stage):
    """A full disk in any stage fails the pass. The log is unchanged and is compacted later."""
    with a_harness(tmp_path) as harness:
        before = contents(harness)
        stages = []

        def run(function, items, /):
            stages.append(function)
            if len(stages) != stage + 1:
                return [function(item) for item in items]
            with no_capacity():
                answers = [outcome_of(function, item) for item in items]
            raise next(each for each in answers if isinstance(each, CordwoodError))

        (outcome,) = harness.compact(run=run)
        assert outcome.error == "File too large; fix this, then run the command again"
        assert (left_behind(harness), contents(harness)) == ([], before)

        assert harness.compact_well().records_after == 50
        assert newest(contents(harness)) == newest(before)


def test_a_disk_full_in_the_job_is_reported_to_the_broker(tmp_path, monkeypatch):
    """If the manifest cannot be written, the job reports the failure to the broker."""

    def full(_manifest):
        raise OSError(errno.ENOSPC, "No space left on device", "/disk/manifest.json")

    with a_harness(tmp_path) as harness:
        before = contents(harness)
        with monkeypatch.context() as broken:
            broken.setattr(compaction_pass, "encode_manifest", full)
            (outcome,) = harness.compact()
        assert outcome.error.startswith("/disk/manifest.json: No space left on device")
        assert isinstance(harness.calls[-1], FailCompaction)
        assert (left_behind(harness), contents(harness)) == ([], before)
        assert harness.compact_well().records_after == 50
