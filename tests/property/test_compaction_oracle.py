"""Compare compaction with an oracle that compacts the same log record by record in plain Python.

The logs are random: tombstones, empty and null values, records without a key, committed and aborted
transactions, idempotent producers, every codec, segment rolls anywhere and compaction passes in
between.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.pipeline.compact import PassLimits
from support.compaction import (
    Chance,
    CompactionHarness,
    data_records,
    expect_cleaned,
    oracle_for,
)

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from(["300", "900", "4000", str(2**30)])
PASSES = min(8, settings.default.max_examples // 4)  # each example runs several passes over a log
LITTLE = 1 << 13  # a task byte limit so low that even a small log needs several ranges


@settings(max_examples=PASSES)
@given(seeds, sizes)
def test_a_thorough_pass_leaves_what_kafkas_rules_leave(seed, segment_bytes):
    """After each pass, batches match the oracle's offsets, producers, horizons and records."""
    with tempfile.TemporaryDirectory() as directory:
        config = {"delete.retention.ms": "9000", "segment.bytes": segment_bytes}
        with CompactionHarness(Path(directory) / "data", config) as harness:
            chance = Chance(harness, seed, keyless=True)
            for steps in (25, 3, 25):
                chance.run(steps)
                harness.cut()
                before, oracle = harness.batches(), oracle_for(harness)
                if not before:
                    continue
                harness.compact_well(limits=PassLimits(task_bytes=LITTLE))
                expect_cleaned(harness, before, oracle)


@settings(max_examples=PASSES)
@given(seeds, sizes)
def test_an_incremental_pass_leaves_the_same_records(seed, segment_bytes):
    """An incremental pass reads and rewrites only the segments it needs, with the same result."""
    with tempfile.TemporaryDirectory() as directory:
        config = {"delete.retention.ms": "9000", "segment.bytes": segment_bytes}
        with CompactionHarness(Path(directory) / "data", config) as harness:
            chance = Chance(harness, seed, keys=40)
            for steps in (25, 3, 3, 25):
                chance.run(steps)
                harness.cut()
                before, oracle = harness.batches(), oracle_for(harness)
                outcomes = harness.compact(demand=False, limits=PassLimits(task_bytes=LITTLE))
                assert [outcome.error for outcome in outcomes if outcome.error] == []
                if outcomes:
                    kept = [r for fact in oracle.clean(before) if not fact[7] for r in fact[-1]]
                    assert data_records(harness.batches()) == kept
