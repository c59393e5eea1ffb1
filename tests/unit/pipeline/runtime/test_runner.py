"""The pipeline runner: it reopens streams, repeats scheduled jobs and checks job names."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.runtime import runner
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.runtime.runner import (
    JOBS,
    Context,
    JobTimer,
    ScheduledJob,
    Stream,
    StreamSupervisor,
    parse_jobs,
)


class Fake:
    """A fake stream whose failure the test sets."""

    def __init__(self):
        self.why = None
        self.stopped = False

    def failure(self):
        if isinstance(self.why, Exception):
            raise self.why
        return self.why

    def report(self):
        return {"batch": 1}

    def stop(self):
        self.stopped = True


@pytest.fixture
def context():
    return Context(None, BrokerAddress("127.0.0.1:1"))


def test_jobs_are_named_and_all_run_by_default():
    """All jobs run by default. An unknown name is refused with the nearest one."""
    assert parse_jobs("") == list(JOBS)
    assert parse_jobs(" route ,") == ["route"]
    with pytest.raises(ConfigError, match="no job ruote; did you mean route"):
        parse_jobs("ruote")


def test_a_stream_that_ends_is_opened_again_after_a_pause(context):
    """A failed stream is reopened after a growing pause, and its report has the last error."""
    opened = []

    def open_stream(_):
        opened.append(Fake())
        return opened[-1]

    supervisor = StreamSupervisor("x", Stream(open_stream), context, pauses_s=(0.0, 99.0))
    supervisor.check()
    assert supervisor.report() == {
        "open": True,
        "failures": 0,
        "failed": 0,
        "error": None,
        "batch": 1,
    }
    opened[0].why = "it fell over"
    supervisor.check()
    assert opened[0].stopped
    assert len(opened) == 2
    opened[1].why = "again"
    supervisor.check()
    supervisor.check()
    assert len(opened) == 2
    assert supervisor.report() == {"open": False, "failures": 2, "failed": 2, "error": "again"}


def test_a_stream_that_cannot_be_opened_does_not_end_the_others(context):
    """A stream that cannot be opened is retried, and its error is reported."""

    def refuse(_):
        raise UnavailableError("no broker")

    supervisor = StreamSupervisor("x", Stream(refuse), context, pauses_s=(0.0,))
    supervisor.check()
    supervisor.check()
    assert supervisor.report()["failures"] == 2
    assert "no broker" in supervisor.report()["error"]


def test_a_spark_that_does_not_answer_ends_the_runner(context):
    """If Spark does not answer, the runner fails, so that its supervisor starts a new process."""
    stream = Fake()
    supervisor = StreamSupervisor("x", Stream(lambda _: stream), context)
    supervisor.check()
    stream.why = ConnectionError("py4j")
    with pytest.raises(UnavailableError, match="Spark is no longer running"):
        supervisor.check()


def test_a_schedule_goes_on_after_a_round_that_failed(context):
    """A scheduled job runs again after a failed run."""
    rounds = threading.Semaphore(0)

    def work(_):
        rounds.release()
        raise ValueError("bad round")

    timer = JobTimer("x", ScheduledJob(work, interval_s=0.001, delay_s=0), context)
    timer.start()
    assert all(rounds.acquire(timeout=30) for _ in range(3))
    context.stopping.set()
    timer.join(timeout=30)
    assert not timer.is_alive()
    answer = timer.report()
    assert (answer["open"], answer["error"]) == (False, "ValueError: bad round")
    assert answer["failed"] >= 3


def test_a_schedule_is_well_again_after_a_round_that_went_well(context):
    """A successful run makes the job healthy again. The last error and the count stay reported."""
    outcomes = iter([ValueError("once")])

    def work(_):
        for error in outcomes:
            raise error
        context.stopping.set()

    timer = JobTimer("x", ScheduledJob(work, interval_s=0.001, delay_s=0), context)
    timer.run()
    assert timer.report() == {"open": True, "failed": 1, "error": "ValueError: once"}


def test_a_stream_that_cannot_say_how_it_does_holds_up_no_other(context):
    """If the report of one stream fails, the error replaces it and other streams still report."""

    class Mute(Fake):
        def report(self):
            raise RuntimeError("no progress yet")

    supervisors = {"mute": StreamSupervisor("mute", Stream(lambda _: Mute()), context),
               "well": StreamSupervisor("well", Stream(lambda _: Fake()), context)}  # fmt: skip
    for supervisor in supervisors.values():
        supervisor.check()
    answer = runner._reports(supervisors, [])
    assert answer["mute"]["report_error"] == "RuntimeError: no progress yet"
    assert answer["well"]["batch"] == 1


def test_the_end_of_the_lifeline_ends_the_process():
    """The process exits when its stdin is closed, which means that its parent is gone."""
    code = (
        "import time; from cordwood.pipeline.runtime.runner import follow_lifeline\n"
        "follow_lifeline();"
        "print('on', flush=True); time.sleep(99)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"on\n"
        child.stdin.close()
        assert child.wait(timeout=30) == 0
