"""The broker swaps segments only for its own order and checks the result against the log."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cordwood.batch.records import encode_batch
from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.decide.compaction import encode_state
from cordwood.errors import InvalidManifest, PolicyViolation, StaleManifest
from cordwood.log.lifecycle import compaction_proof
from cordwood.pipeline.compact.compaction_pass import CompactionPass, PassLimits
from cordwood.protocol.api.compaction import BeginCompaction
from support.compaction import HOUR_MS, TP, CompactionHarness, batches_in, in_process

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def harness(tmp_path):
    """Two sealed segments with superseded keys, a tombstone past its horizon, and a recent one."""
    with CompactionHarness(tmp_path / "data", {"delete.retention.ms": str(HOUR_MS)}) as made:
        made.append(*[(b"k%d" % i, b"old %d" % i) for i in range(5)])
        made.append((b"gone", b"x"), (b"gone", None))
        made.cut()
        made.compact_well()
        made.clock.advance(DAY_MS)
        made.append((b"k0", b"new 0"), (b"k1", b"new 1"), (b"fresh", None))
        made.cut()
        yield made


class Prepared:
    """A staged compaction pass that a test may forge before it reports the result."""

    def __init__(self, harness):
        self.harness = harness
        (self.order,) = harness.call(BeginCompaction("t", demand=True)).orders
        self.work = CompactionPass(
            self.order, in_process, progress=lambda *_: None, limits=PassLimits(task_bytes=1 << 20)
        )
        self.work.prepare()
        self.jobs, self.state = self.work.commit()

    @property
    def staging(self):
        return self.harness.data / "staging" / self.jobs[0]

    def forge(self, change):
        """Replace the records of each batch by ``change(records)`` and update the manifest."""
        (log,) = self.staging.glob("*.log")
        made = bytearray()
        for batch in batches_in(log.read_bytes()):
            header, records = batch.header, change(list(batch.records))
            made += encode_batch(
                records,
                base_offset=header.base_offset,
                last_offset_delta=header.last_offset_delta,
                max_timestamp_ms=header.max_timestamp_ms,
                leader_epoch=header.leader_epoch,
                delete_horizon_ms=batch.horizon_ms if records else None,
            )
        log.write_bytes(made)
        manifest = json.loads((self.staging / "manifest.json").read_bytes())
        segment = manifest["segments"][0]
        segment["records"] = sum(len(batch.records) for batch in batches_in(bytes(made)))
        for file in segment["files"]:
            if file["name"] == log.name:
                file["size_bytes"] = len(made)
                file["sha256"] = hashlib.sha256(made).hexdigest()
        self.write(manifest)

    def manifest(self):
        return json.loads((self.staging / "manifest.json").read_bytes())

    def write(self, manifest):
        (self.staging / "manifest.json").write_text(json.dumps(manifest))

    def finish(self, **changes):
        body = {
            "action": "finish", "topic": "t", "partition": 0, "topic_id": self.order.topic_id,
            "jobs": self.jobs, "state": encode_state(self.state), "lease": self.order.lease,
        }  # fmt: skip
        return self.harness.post({**body, **changes})


def log_bytes(harness):
    return {
        path.name: path.read_bytes()
        for path in sorted(harness.partition.directory.glob("*.log"))
        if path.stat().st_size
    }


def expect_refused(prepared, error, match, **changes):
    """Assert that the report fails and that the log stays unchanged."""
    before = log_bytes(prepared.harness)
    with pytest.raises(error, match=match):
        prepared.finish(**changes)
    assert log_bytes(prepared.harness) == before


def test_an_honest_pass_is_taken(harness):
    """A correct pass is swapped in, and the tombstone past its horizon is removed."""
    prepared = Prepared(harness)
    prepared.finish()
    keys = {record.key for batch in harness.batches() for record in batch.records}
    assert keys == {b"k0", b"k1", b"k2", b"k3", b"k4", b"fresh"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("value", b"forged!"), ("value", None), ("key", b"k9"), ("timestamp_ms", 7), ("headers", ())],
)
def test_a_record_that_is_not_what_it_was_is_refused(harness, field, value):
    """A pass may not change a record's key, value, headers or timestamp."""
    from cordwood.model import Header

    harness.append((b"with", b"headers"), headers=(Header("h", b"1"), Header("n", None)))
    harness.cut()
    prepared = Prepared(harness)
    target = b"with" if field == "headers" else b"k3"
    prepared.forge(
        lambda records: [replace(r, **{field: value}) if r.key == target else r for r in records]
    )
    expect_refused(prepared, InvalidManifest, "changes the (record|timestamp of the batch)")


def test_a_record_nobody_superseded_may_not_go(harness):
    """A pass may not drop the newest record of a key."""
    prepared = Prepared(harness)
    prepared.forge(lambda records: [r for r in records if r.key != b"k3"])
    expect_refused(prepared, InvalidManifest, "drops a record that no later record of its key")


def test_a_record_that_was_not_there_is_refused(harness):
    """A pass may not add a record, not even at an offset that had another record before."""
    prepared = Prepared(harness)
    prepared.forge(
        lambda records: [
            part
            for r in records
            for part in (
                [replace(r, offset=0, key=b"k0", value=b"old"), r] if r.offset == 2 else [r]
            )
        ]
    )
    expect_refused(prepared, InvalidManifest, "changes the record")


def test_a_tombstone_does_not_go_before_its_time(harness):
    """A pass may not drop a tombstone before its horizon; a reader would keep the deleted key."""
    prepared = Prepared(harness)
    prepared.forge(lambda records: [r for r in records if r.key != b"fresh"])
    expect_refused(prepared, InvalidManifest, "a tombstone before its delete horizon")


def test_a_tombstone_does_not_go_under_a_reader_that_was_set_back(harness):
    """The broker checks the reader positions again when the pass is reported."""
    prepared = Prepared(harness)
    harness.register("late", 0)
    expect_refused(prepared, InvalidManifest, "a tombstone before its delete horizon")


@pytest.mark.parametrize("sha256", [None, "0" * 64])
def test_segments_are_named_by_the_sum_the_order_gave(harness, sha256):
    """A manifest with a missing or different sha256 for a replaced segment is refused."""
    prepared = Prepared(harness)
    manifest = prepared.manifest()
    manifest["replaces"][0]["sha256"] = sha256
    prepared.write(manifest)
    expect_refused(prepared, InvalidManifest, "states a different sha256")


def test_only_the_job_that_was_given_the_order_may_report(harness):
    """A report with a missing, foreign or expired lease is refused."""
    prepared = Prepared(harness)
    expect_refused(prepared, StaleManifest, "another job has taken over", lease="")
    expect_refused(prepared, StaleManifest, "another job has taken over", lease="0" * 32)
    harness.post({"action": "fail", "topic": "t", "partition": 0, "error": "x"})
    assert harness.state().failures == 0
    harness.clock.advance(LEASE_MS)
    expect_refused(prepared, StaleManifest, "has expired")


def test_a_report_sent_again_while_the_first_is_checked_finds_it_done(harness):
    """A report repeated while the first is verified succeeds and changes nothing."""
    prepared = Prepared(harness)
    answer = prepared.order.topic_id, prepared.jobs, prepared.state

    async def both():
        second_began = asyncio.Event()
        report = partial(harness.service.finish, TP, *answer, prepared.order.lease)

        async def verify_late(act):
            await second_began.wait()
            return act()

        async def report_again():
            second_began.set()
            await report()

        harness.inline.in_verifying = verify_late
        await asyncio.gather(report(), report_again())

    asyncio.run(both())
    assert harness.state().failures == 0
    assert harness.state().clean_end == prepared.order.bound


def test_a_refused_pass_leaves_nothing_claimed(harness):
    """A refused pass leaves no files in ``claimed``, whatever the reason was."""
    prepared = Prepared(harness)
    prepared.forge(lambda records: [r for r in records if r.key != b"k3"])
    expect_refused(prepared, InvalidManifest, "drops a record that no later record of its key")
    prepared = Prepared(harness)
    manifest = prepared.manifest()
    manifest["verified"]["cleaner"]["clean_end"] -= 1
    prepared.write(manifest)
    expect_refused(prepared, InvalidManifest, "disagree on its state")
    assert list((harness.data / "claimed").iterdir()) == []


def test_an_order_does_not_outlive_the_broker(harness, tmp_path):
    """Orders are kept in memory only, so a report after a restart is refused."""
    prepared = Prepared(harness)
    harness.close()
    with CompactionHarness(tmp_path / "data", clock=harness.clock) as again:
        prepared.harness = again
        expect_refused(prepared, StaleManifest, "lost in a restart")


def test_a_topic_that_is_no_longer_compacted_is_left_alone(harness):
    """A report is refused if the topic's cleanup policy changed while the job ran."""
    prepared = Prepared(harness)
    harness.store.alter_topic("t", {"cleanup.policy": "delete"})
    expect_refused(prepared, PolicyViolation, "no longer compacted")


def test_more_than_was_ordered_is_refused(harness):
    """A manifest that replaces segments outside the order is refused."""
    prepared = Prepared(harness)
    harness.append((b"k2", b"later"))
    harness.cut()
    manifest = prepared.manifest()
    manifest["replaces"][-1]["base_offset"] += 1
    prepared.write(manifest)
    expect_refused(prepared, InvalidManifest, "not in its order|does not follow|contradicts")
    expect_refused(prepared, StaleManifest, "has expired", state={**encode_state(prepared.state)})


def test_keys_are_checked_in_parts_when_they_are_too_many_for_memory(harness, monkeypatch):
    """If the keys exceed the memory limit, the proof works in parts with the same result."""
    monkeypatch.setattr(compaction_proof.prove_pass, "__kwdefaults__", {"entries_max": 2})
    prepared = Prepared(harness)
    prepared.forge(lambda records: [r for r in records if r.key != b"k3"])
    expect_refused(prepared, InvalidManifest, "drops a record that no later record of its key")
    Prepared(harness).finish()


def test_the_proof_reads_the_old_log_with_its_checksums(harness):
    """The proof verifies the old segments' checksums, so a pass cannot hide damage."""
    prepared = Prepared(harness)
    path = min(harness.partition.directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="a checksum does not match"):
        prepared.finish()


def test_the_kernels_state_the_pieces_they_are_made_of():
    """The kernels contain a digest of the intrinsics' source, which renews numba's cache."""
    from pathlib import Path

    from cordwood.batch.kernels import llvm_intrinsics
    from cordwood.batch.kernels import proofs as proof_kernels

    digest = hashlib.sha256(Path(llvm_intrinsics.__file__).read_bytes()).hexdigest()[:16]
    assert digest == proof_kernels.INTRINSICS_DIGEST, "set MACHINE_DIGEST to this"
    assert np.uint32(3) == proof_kernels.DROPPED | proof_kernels.PAST
    assert TP.topic == "t"
