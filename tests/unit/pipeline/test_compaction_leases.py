"""Leases: only one compaction job works on a partition at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.errors import StaleManifest
from cordwood.pipeline.compact import PassLimits
from cordwood.pipeline.compact.job import run_order
from cordwood.protocol.api.compaction import ReleaseLease
from support.compaction import TP, CompactionHarness, in_process


def a_dirty_harness(tmp_path):
    harness = CompactionHarness(tmp_path / "data")
    for value in (b"old", b"new"):
        harness.append((b"k", value))
    harness.cut()
    return harness


def test_a_lease_is_renewed_for_as_long_as_the_job_works(tmp_path):
    """A job renews its lease while it works, so no other job gets the partition."""
    with a_dirty_harness(tmp_path) as harness:
        given = []

        def slow(function, items, /):
            for _ in range(3):
                harness.clock.advance(LEASE_MS - 1)
                wait_until(partial(has_more, harness.calls, len(harness.calls) + 1))
                given.extend(asyncio.run(harness.service.begin("t", demand=True)))
            return in_process(function, items)

        harness.compact_well(run=slow, limits=PassLimits(renew_s=0.001))
        assert given == []


def test_a_job_that_lost_its_partition_stops_and_swaps_nothing(tmp_path):
    """A job whose lease expired stops without a swap, and the job with the new lease finishes."""
    with a_dirty_harness(tmp_path) as harness:
        (late,) = asyncio.run(harness.service.begin("t", demand=True))
        harness.clock.advance(LEASE_MS + 1)
        (order,) = asyncio.run(harness.service.begin("t", demand=True))
        with pytest.raises(StaleManifest, match="another job has taken over"):
            run_order(harness, in_process, late, limits=PassLimits(renew_s=3600.0))
        harness.call(ReleaseLease(*TP, late.lease))
        assert asyncio.run(harness.service.begin("t", demand=True)) == []
        assert [len(batch.records) for batch in harness.batches()] == [1, 1]
        assert run_order(harness, in_process, order).records_after == 1


def test_a_job_stopped_while_it_works_does_not_start_the_next_stage(tmp_path, monkeypatch):
    """A job whose renewal is refused stops before the next stage."""
    with a_dirty_harness(tmp_path) as harness:
        (order,) = asyncio.run(harness.service.begin("t", demand=True))
        stages = []

        def first_stage(function, items, /):
            stages.append(function)
            monkeypatch.setattr(harness, "call", refuse)
            wait_until(lambda: not is_renewing())
            return in_process(function, items)

        with pytest.raises(StaleManifest):
            run_order(harness, first_stage, order, limits=PassLimits(renew_s=0.001))
        assert len(stages) == 1


def refuse(request):
    raise StaleManifest(f"{request} comes from a job that lost its partition")


def has_more(posts, count):
    return len(posts) > count


def is_renewing():
    return any(thread.name == "compaction-lease" for thread in threading.enumerate())


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_an_interrupted_job_gives_its_partitions_back(tmp_path):
    """An interrupted job releases its lease, so the next one need not wait until it expires."""

    def interrupted(_function, _items, /):
        raise KeyboardInterrupt

    with a_dirty_harness(tmp_path) as harness:
        with pytest.raises(KeyboardInterrupt):
            harness.compact(run=interrupted)
        (outcome,) = harness.compact()
        assert (outcome.error, outcome.records_after) == ("", 1)
