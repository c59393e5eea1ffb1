"""What a Spark engineer sees: jobs that say what they are, and work for every core."""

from __future__ import annotations

from functools import partial, update_wrapper

import pytest

from cordwood.pipeline.compact import job
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import parallelism
from cordwood.pipeline.runtime.tasks import run_tasks

pytestmark = pytest.mark.spark


def newest_job(spark):
    """(group, description) of the job that was started last."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    newest = max((jobs.apply(at) for at in range(jobs.size())), key=lambda job: job.jobId())
    return newest.jobGroup().get(), newest.description().get()


def double(number):
    return 2 * number


def test_a_job_says_what_it_is_and_for_whom(spark):
    """Labels nest, and end with what they were for."""
    run_tasks(spark, double, [1, 2])
    assert newest_job(spark) == ("cordwood", "double, 2 tasks")
    with labelled(spark, "archive orders"):
        run_tasks(spark, double, [1], label="write 1 bundle")
    assert newest_job(spark) == ("cordwood", "archive orders: write 1 bundle")
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_whoever_labelled_their_thread_keeps_their_group(spark):
    """So that cancelJobGroup still ends what they started."""
    spark.sparkContext.setJobGroup("mine", "nightly")
    try:
        run_tasks(spark, double, [1])
        assert newest_job(spark) == ("mine", "nightly: double, 1 task")
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            spark.sparkContext.setLocalProperty(name, None)


def test_a_compaction_s_jobs_name_their_partition(spark, tmp_path, monkeypatch):
    """A pass over many partitions is told apart by what its jobs say."""
    monkeypatch.setattr(job, "parse_told", lambda order: "told")
    monkeypatch.setattr(job, "check_identity", lambda path, told: None)
    order = {"data": str(tmp_path), "topic": "my_orders", "partition": 3}
    named = []
    job.where_proved(lambda function, items: named.append(function), order)(double, [1])
    plain = update_wrapper(partial(double), double)
    plain.__dict__.update(vars(named[0]))
    assert job.on_spark(spark)(plain, [1]) == [2]
    assert newest_job(spark) == ("cordwood", "compact my_orders-3: double, 1 task")


def test_parallelism_is_the_session_s_not_the_machine_s(spark):
    """A driver's own cores say nothing of its executors."""
    assert parallelism(spark) == spark.sparkContext.defaultParallelism == 2
