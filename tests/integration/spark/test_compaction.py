"""Compaction with tasks on Spark executors gives the same result as the reference oracle."""

from __future__ import annotations

import threading
import time

import pytest

from cordwood.errors import CorruptionError
from cordwood.model import TopicPartition
from cordwood.pipeline.compact import PassLimits, on_spark
from cordwood.pipeline.runtime.tasks import run_tasks
from support.compaction import TP, Chance, CompactionHarness, expect_cleaned, latest, oracle_for

pytestmark = pytest.mark.spark


def test_spark_leaves_what_the_oracle_leaves(spark, tmp_path):
    """Spark and the oracle agree on random logs; a small memory limit makes many tasks."""
    with CompactionHarness(tmp_path / "data", {"segment.bytes": "900"}) as harness:
        chance = Chance(harness, seed=20261115, keyless=True)
        for steps in (60, 10):
            chance.run(steps)
            harness.cut()
            before, oracle = harness.batches(), oracle_for(harness)
            harness.compact_well(run=on_spark(spark), limits=PassLimits(task_bytes=1 << 13))
            expect_cleaned(harness, before, oracle)


def test_several_partitions_are_compacted_and_a_damaged_one_does_not_stop_them(spark, tmp_path):
    """A damaged partition reports its error with the remedy; the others are compacted."""
    with CompactionHarness(tmp_path / "data", partitions=3) as harness:
        for number in range(3):
            partition = harness.store.topic("t").partition(number)
            for turn in range(3):
                harness.append(
                    *[(b"k%d" % i, b"%d" % turn) for i in range(20)], partition=partition
                )
            harness.cut(partition)
        path = harness.partition.directory / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        outcomes = {outcome.tp: outcome for outcome in harness.compact(run=on_spark(spark))}
        assert "restore this segment from a copy" in outcomes[TP].error
        for number in (1, 2):
            tp = TopicPartition("t", number)
            assert outcomes[tp].error == ""
            batches = harness.batches(harness.store.partition(tp))
            assert latest(batches) == {b"k%d" % i: b"2" for i in range(20)}


def test_a_log_larger_than_a_tasks_memory_is_compacted(spark, tmp_path):
    """Compaction of 4,000 records succeeds with 8 KiB of memory per task."""
    with CompactionHarness(tmp_path / "data", {"segment.bytes": "60000"}) as harness:
        for turn in range(4):
            for start in range(0, 1000, 100):
                harness.append(
                    *[(b"key-%04d" % i, b"%d" % turn) for i in range(start, start + 100)]
                )
            harness.cut()
        outcome = harness.compact_well(run=on_spark(spark), limits=PassLimits(task_bytes=8 << 10))
        assert (outcome.records_before, outcome.records_after) == (4000, 1000)
        assert latest(harness.batches()) == {b"key-%04d" % i: b"3" for i in range(1000)}


def test_an_error_of_ours_keeps_its_class_through_spark(spark):
    """A cordwood error raised on an executor reaches the driver with its own class."""

    def fail(_):
        raise CorruptionError("seen on an executor")

    with pytest.raises(CorruptionError, match="seen on an executor"):
        on_spark(spark)(fail, [1])


def test_a_job_says_how_many_of_its_tasks_have_ended_while_the_others_run(spark, tmp_path):
    """Progress is reported while tasks run: the second task waits for the report of the first."""
    seen, output = [], tmp_path / "said"

    def watch(done, total):
        seen.append((done, total))
        if done:
            output.touch()

    def work(number):
        deadline = time.monotonic() + 60
        while number and not output.exists() and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        return output.exists()

    assert run_tasks(spark, work, [0, 1], watch)[1]
    assert (1, 2) in seen
