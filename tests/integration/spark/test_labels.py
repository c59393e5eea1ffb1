"""Spark jobs carry descriptive labels, and parallelism follows the session."""

from __future__ import annotations

from functools import partial, update_wrapper
from types import SimpleNamespace

import pytest

from cordwood.pipeline.compact import job
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism
from cordwood.pipeline.runtime.tasks import run_tasks
from cordwood.protocol.api.status import DirectoryIdentity

pytestmark = pytest.mark.spark


def newest_job(spark):
    """Return the group and description of the most recent job."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    newest = max((jobs.apply(at) for at in range(jobs.size())), key=lambda job: job.jobId())
    return newest.jobGroup().get(), newest.description().get()


def double(number):
    return 2 * number


def test_a_job_says_what_it_is_and_for_whom(spark):
    """Labels nest, and they are removed when their block ends."""
    run_tasks(spark, double, [1, 2])
    assert newest_job(spark) == ("cordwood", "double, 2 tasks")
    with labelled(spark, "archive orders"):
        run_tasks(spark, double, [1], label="write 1 bundle")
    assert newest_job(spark) == ("cordwood", "archive orders: write 1 bundle")
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_an_interrupted_job_does_not_label_the_next_one(spark):
    """After Ctrl-C, as in a notebook, the next job of the thread has its own label only."""
    with pytest.raises(KeyboardInterrupt), labelled(spark, "outer"), labelled(spark, "inner"):
        raise KeyboardInterrupt
    run_tasks(spark, double, [1])
    assert newest_job(spark) == ("cordwood", "double, 1 task")
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_a_group_set_after_an_interrupt_is_kept(spark):
    """A job group that the user sets after Ctrl-C is theirs, not a leftover of ours."""
    with pytest.raises(KeyboardInterrupt), labelled(spark, "interrupted"):
        raise KeyboardInterrupt
    spark.sparkContext.setJobGroup("mine", "nightly")
    try:
        run_tasks(spark, double, [1])
        assert newest_job(spark) == ("mine", "nightly: double, 1 task")
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            spark.sparkContext.setLocalProperty(name, None)


def test_whoever_labelled_their_thread_keeps_their_group(spark):
    """A job group set by the user is kept, so that cancelJobGroup still works."""
    spark.sparkContext.setJobGroup("mine", "nightly")
    try:
        run_tasks(spark, double, [1])
        assert newest_job(spark) == ("mine", "nightly: double, 1 task")
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            spark.sparkContext.setLocalProperty(name, None)


def test_a_compaction_s_jobs_name_their_partition(spark, tmp_path, monkeypatch):
    """A compaction job's description contains its topic and partition."""
    monkeypatch.setattr(job, "check_identity", lambda path, identity: None)
    identity = DirectoryIdentity("id", "nonce", 1)
    order = SimpleNamespace(data=str(tmp_path), identity=identity, topic="my_orders", partition=3)
    named = []
    job.where_proved(lambda function, items: named.append(function), order)(double, [1])
    plain = update_wrapper(partial(double), double)
    plain.__dict__.update(vars(named[0]))
    assert job.on_spark(spark)(plain, [1]) == [2]
    assert newest_job(spark) == ("cordwood", "compact my_orders-3: double, 1 task")


def test_parallelism_is_the_session_s_not_the_machine_s(spark):
    """Parallelism is the session's default, not the number of the driver's cores."""
    assert parallelism(spark) == spark.sparkContext.defaultParallelism == 2
