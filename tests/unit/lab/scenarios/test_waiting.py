"""Waiting in a scenario: for as long as it takes, with progress, but not in vain."""

import io
import sys

import pytest

from cordwood.lab.scenarios.stage import Failed, ScenarioRun, wait_until


def test_a_pipeline_that_cannot_run_ends_the_wait_at_once():
    """A scenario that needs Spark fails with the broker's reason, not after the time limit."""
    why = "the pipeline cannot run: the pipeline needs the Kafka listener"
    with ScenarioRun("waiting", out=io.StringIO()) as stage:
        broker = stage.serve(pipeline="embedded", kafka="off")
        with pytest.raises(Failed, match=why):
            stage.wait_for_spark(broker, lambda: False, "never")


def test_a_long_wait_calls_back_between_looks():
    """``waiting`` runs while the condition does not hold, and may end the wait."""

    def give_up() -> None:
        raise Failed("enough")

    with pytest.raises(Failed, match="enough"):
        wait_until(lambda: False, "never", 60, waiting=give_up, notice_s=0)


def test_a_wait_ends_in_vain_after_its_limit():
    """The message says what was waited for."""
    with pytest.raises(Failed, match="in vain until pigs fly"):
        wait_until(lambda: False, "pigs fly", 0)


def test_a_command_that_fails_fails_the_scenario():
    """The error has the command as a user would type it, and its output."""
    out = io.StringIO()
    why = r"cordwood topic describe x ended with 6: .*127\.0\.0\.1:1"
    with ScenarioRun("waiting", out=out) as stage, pytest.raises(Failed, match=why):
        stage.run_command("topic", "describe", "x", at="127.0.0.1:1")
    assert 'step=run command="cordwood topic describe x"' in out.getvalue()
    assert sys.executable not in out.getvalue()
