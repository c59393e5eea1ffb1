"""How commands open and close their Spark session, and how they report its errors."""

import os
import signal
import subprocess
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from cordwood.cli.options import spark_options
from cordwood.errors import UnavailableError
from cordwood.lab.scenarios.stage import wait_until
from support.limits import require_open_files


class FakeSpark:
    """Fake Spark session that records each call and the thread that made it."""

    def __init__(self) -> None:
        self.asked = []
        java = SimpleNamespace(wait=self.wait)
        gateway = SimpleNamespace(proc=java)
        self.labels = []
        self.sparkContext = SimpleNamespace(
            cancelAllJobs=self.cancel,
            setJobGroup=lambda *label: self.labels.append(label),
            _gateway=gateway,
        )
        self.is_ended = False

    def wait(self, timeout):
        if not self.is_ended:
            raise subprocess.TimeoutExpired("java", timeout)
        return 52

    def cancel(self):
        self.asked.append(("cancel", threading.current_thread()))

    def stop(self):
        self.asked.append(("stop", threading.current_thread()))
        if self.is_ended:
            raise ConnectionRefusedError


@pytest.fixture
def spark(monkeypatch):
    fake = FakeSpark()
    monkeypatch.setattr("cordwood.pipeline.runtime.session.open_session", lambda *_, **__: fake)
    monkeypatch.setattr(spark_options, "_keep_spark_quiet", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    yield fake
    signal.signal(signal.SIGINT, before)


def fail_at_once():
    raise KeyboardInterrupt


def fail_in_tidying():
    try:
        raise KeyboardInterrupt
    finally:
        raise ValueError("an answer to another question")


@pytest.mark.parametrize("fail", [fail_at_once, fail_in_tidying])
def test_ctrl_c_cancels_and_stops_from_a_thread_whose_questions_are_answered(spark, fail):
    """Ctrl-C cancels and stops from another thread.

    The interrupted thread may still receive the reply to its earlier py4j call and would take it
    for the reply to the next one.
    """
    with pytest.raises(KeyboardInterrupt), spark_options.spark_session("t", None, None):
        fail()
    assert [what for what, _ in spark.asked] == ["cancel", "stop"]
    assert threading.current_thread() not in {who for _, who in spark.asked}


def test_a_java_that_ended_is_one_sentence_with_a_remedy(spark):
    """A dead JVM raises ``UnavailableError`` that names the likely fix: more driver memory."""
    spark.is_ended = True
    with (
        pytest.raises(UnavailableError, match=r"spark\.driver\.memory"),
        spark_options.spark_session("t", None, None),
    ):
        raise ConnectionResetError


def test_an_error_while_java_lives_is_itself(spark):
    """An error raised while the JVM is alive propagates unchanged."""
    with pytest.raises(ValueError, match="ours"), spark_options.spark_session("t", None, None):
        raise ValueError("ours")


def test_what_spark_met_is_one_sentence(spark):
    """A failed Spark job is reported by its root cause on one line, without Java's stack trace."""
    error = pytest.importorskip("pyspark.errors").PySparkException
    with (
        pytest.raises(UnavailableError, match=r"^the Spark job failed: no space$"),
        spark_options.spark_session("t", None, None),
    ):
        raise error("boom\n\tat a.b\nCaused by: java.io.IOException: no space\n\tat c")


def test_a_command_s_jobs_begin_with_its_name(spark):
    """Every Spark job of a command is labelled with the command's name in Spark's UI."""
    with spark_options.spark_session("archive", None, None):
        pass
    assert spark.labels == [("cordwood", "cordwood archive")]


JAVA = "echo WARNING: incubator >&2; echo up; read order; echo trouble >&2"


@pytest.fixture
def start_java():
    """Start a process that prints a warning at start-up, and an error when it reads a line."""
    started = []

    def start():
        java = subprocess.Popen(
            ["sh", "-c", JAVA], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(java)
        assert java.stdout.readline() == "up\n"
        return java

    yield start
    for java in started:
        java.communicate()


@pytest.fixture
def many_descriptors():
    """Open 1024 files, so that new descriptors are too large for ``select``."""
    require_open_files(2048)
    with ExitStack() as taken:
        for _ in range(1024):
            taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


@pytest.mark.usefixtures("many_descriptors")
def test_java_is_heard_once_it_has_greeted(start_java, capfd):
    """Java's start-up warnings are hidden, and its later stderr output is shown."""
    with spark_options.ungreeted():
        java = start_java()
    heard = []
    java.communicate("speak\n")
    wait_until(lambda: heard.append(capfd.readouterr().err) or any(heard), "it is heard", 10)
    assert "".join(heard) == "trouble\n"


def test_a_java_that_does_not_start_is_heard_from_the_beginning(start_java, capfd):
    """If Spark does not start, Java's stderr is shown from the beginning."""

    def fail():
        start_java()
        raise ValueError("no Spark")

    with pytest.raises(ValueError, match="no Spark"), spark_options.ungreeted():
        fail()
    assert capfd.readouterr().err == "WARNING: incubator\n"
