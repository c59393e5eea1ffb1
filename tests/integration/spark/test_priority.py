"""CPU priority of job tasks in any session, and of a whole Spark in the background."""

import os
import subprocess
import sys

import pytest

from cordwood.pipeline.runtime.priority import NICE
from cordwood.pipeline.runtime.tasks import run_tasks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="SCHED_IDLE is Linux's"),
]

ASK = """
import os
from cordwood.spark import session

def policies(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"nice": [os.getpriority(os.PRIO_PROCESS, 0)]})

spark = session("t", master="local[1]", conf={"spark.cordwood.priority": "background"})
java = spark.sparkContext._gateway.proc.pid
(row,) = spark.range(0, 1, 1, 1).mapInArrow(policies, "nice long").collect()
print(os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, java), row.nice)
spark.stop()
"""


def rank(_):
    """Return the calling thread's nice value, plus 100 under SCHED_IDLE."""
    return os.getpriority(os.PRIO_PROCESS, 0) + 100 * (os.sched_getscheduler(0) == os.SCHED_IDLE)


HERE = rank(None)


def test_a_jobs_tasks_yield_and_the_workers_they_run_in_do_not(spark):
    """Job tasks run at low priority; the workers, which the router shares, keep theirs."""

    def ask(batches):
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rank": [rank(each) for each in batch]})

    assert run_tasks(spark, rank, [0, 1]) == [max(NICE, HERE)] * 2
    rows = spark.range(0, 2, 1, 2).mapInArrow(ask, "rank long").collect()
    assert [row.rank for row in rows] == [HERE] * 2


def test_a_session_that_says_normal_keeps_its_rank(spark):
    """``spark.cordwood.priority=normal`` keeps the normal priority for tasks of the session."""
    spark.conf.set("spark.cordwood.priority", "normal")
    try:
        assert run_tasks(spark, rank, [0]) == [HERE]
    finally:
        spark.conf.unset("spark.cordwood.priority")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # runs at low priority, so it may wait for other processes
def test_an_embedded_spark_that_is_asked_to_yields_as_a_whole():
    """With ``background``, driver, Java and workers all run at low priority.

    The test uses a separate process, because lowering the priority cannot be undone.
    """
    output = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert output.stdout.split() == [str(max(NICE, HERE))] * 3
