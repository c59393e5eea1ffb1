"""Leases: one job at a time works on a partition, for as long as it says that it does."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.errors import StaleManifest
from cordwood.pipeline.compact.job import in_process, run_order
from support.compaction import TP, CompactionHarness


def a_dirty_harness(tmp_path):
    harness = CompactionHarness(tmp_path / "data")
    for value in (b"old", b"new"):
        harness.append((b"k", value))
    harness.cut()
    return harness


def test_a_lease_is_renewed_for_as_long_as_the_job_works(tmp_path, monkeypatch):
    """However long a stage takes, nobody else is given the partition meanwhile."""
    monkeypatch.setattr("cordwood.pipeline.compact.job.RENEW_S", 0.001)
    with a_dirty_harness(tmp_path) as harness:
        given = []

        def slow(function, items, /):
            for _ in range(3):
                harness.clock.advance(LEASE_MS - 1)
                wait_until(partial(has_more, harness.posts, len(harness.posts) + 1))
                given.extend(asyncio.run(harness.service.begin("t", demand=True)))
            return in_process(function, items)

        harness.compact_well(run=slow)
        assert given == []


def test_a_job_that_lost_its_partition_stops_and_swaps_nothing(tmp_path, monkeypatch):
    """It was silent for too long; who has the partition now keeps it, and finishes."""
    monkeypatch.setattr("cordwood.pipeline.compact.job.RENEW_S", 3600.0)
    with a_dirty_harness(tmp_path) as harness:
        (late,) = asyncio.run(harness.service.begin("t", demand=True))
        harness.clock.advance(LEASE_MS + 1)
        (order,) = asyncio.run(harness.service.begin("t", demand=True))
        with pytest.raises(StaleManifest, match="given to another job"):
            run_order(harness, in_process, late)
        harness.service.release(TP, late["lease"])
        assert asyncio.run(harness.service.begin("t", demand=True)) == []
        assert [len(batch.records) for batch in harness.batches()] == [1, 1]
        assert run_order(harness, in_process, order).records_after == 1


def test_a_job_told_while_it_works_does_not_go_on_to_the_next_stage(tmp_path, monkeypatch):
    """A renewal that is refused ends the job before it rewrites anything."""
    monkeypatch.setattr("cordwood.pipeline.compact.job.RENEW_S", 0.001)
    with a_dirty_harness(tmp_path) as harness:
        (order,) = asyncio.run(harness.service.begin("t", demand=True))
        stages = []

        def first_stage(function, items, /):
            stages.append(function)
            monkeypatch.setattr(harness.service, "renew", refuse)
            wait_until(lambda: not is_renewing())
            return in_process(function, items)

        with pytest.raises(StaleManifest):
            run_order(harness, first_stage, order)
        assert len(stages) == 1


def refuse(tp, token):
    raise StaleManifest(f"{tp} was given to another job, not {token}")


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
    """Ctrl-C, and the next ``compact --now`` need not wait until the lease ends."""

    def interrupted(_function, _items, /):
        raise KeyboardInterrupt

    with a_dirty_harness(tmp_path) as harness:
        with pytest.raises(KeyboardInterrupt):
            harness.compact(run=interrupted)
        (outcome,) = harness.compact()
        assert (outcome.error, outcome.records_after) == ("", 1)
