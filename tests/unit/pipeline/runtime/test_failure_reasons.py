"""One-line reasons for Spark failures, and which jobs are retried."""

from __future__ import annotations

import pytest

from cordwood.errors import CorruptionError, UnavailableError
from cordwood.pipeline.runtime.failure_reasons import (
    ATTEMPTS,
    failure,
    is_late,
    patiently,
    plain_reason,
)
from cordwood.pipeline.runtime.job_labels import TEXT_MAX, join_labels

LATE = """An error occurred while calling o83.start.
: org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(Some.scala:281)
Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(Some.scala:260)
"""
OURS = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
Traceback (most recent call last):
  File "worker.py", line 1
cordwood.errors.CorruptionError: t-0 is damaged at offset 7; restore it

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException
"""


def test_a_worker_that_connected_too_late_gets_a_one_line_reason():
    """A Python worker that connects too late is reported on one line, without Java's stack."""
    assert is_late(Exception(LATE))
    assert plain_reason(Exception(LATE)).startswith("Spark's Python worker did not start in time")
    assert "PythonWorkerFactory" not in str(failure(Exception(LATE)))
    assert isinstance(failure(Exception(LATE)), UnavailableError)


def test_an_error_of_ours_comes_out_of_spark_s_pages_as_itself():
    """A cordwood error inside a Spark traceback is raised again with its own class and message."""
    found = failure(Exception(OURS))
    assert type(found) is CorruptionError
    assert str(found) == plain_reason(Exception(OURS)) == "t-0 is damaged at offset 7; restore it"


def test_any_other_failure_of_a_job_is_its_first_cause():
    """Any other failure is reported by its root cause, on one line."""
    text = "[X_Y] boom SQLSTATE: 1\n\tat a.b\nCaused by: java.io.IOException: no space\n\tat c"
    assert str(failure(Exception(text))) == "the Spark job failed: no space"


def test_a_job_whose_worker_came_too_late_is_run_again(caplog):
    """A job whose Python worker connected too late is retried, and each retry is logged.

    After the last attempt, its error is raised.
    """
    outcomes = [Exception(LATE)] * (ATTEMPTS - 1)

    def job():
        if outcomes:
            raise outcomes.pop()
        return "done"

    assert patiently(job) == "done"
    assert caplog.text.count("spark.worker_late") == ATTEMPTS - 1
    outcomes[:] = [Exception(LATE)] * ATTEMPTS
    with pytest.raises(Exception, match="connect back"):
        patiently(job)
    assert not outcomes


def test_a_job_that_failed_for_another_reason_is_not_run_again():
    """A job that failed for another reason is not retried."""
    outcomes = [Exception(OURS)]

    def job():
        raise outcomes.pop()

    with pytest.raises(Exception, match="damaged"):
        patiently(job)


def test_labels_nest_in_one_short_line():
    """Nested job labels are joined on one line with a maximum length for Spark's UI."""
    assert join_labels(None, "audit\n  t") == "audit t"
    assert join_labels("cordwood sql", "select 1") == "cordwood sql: select 1"
    assert len(join_labels("a", "b" * 999)) == TEXT_MAX
