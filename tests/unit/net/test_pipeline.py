"""The supervisor: a child that is started again, and never outlives who started it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys

import pytest

from cordwood.broker.pipeline import PipelineFacts, PipelineState
from cordwood.net import pipeline
from cordwood.net.pipeline import Supervisor

WAIT_S = 30
READS = "import sys; sys.stdin.read()"


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def until(holds) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_is_up_when_it_says_so_and_its_reports_are_kept():
    """READY, then lines of JSON; anything else is passed over."""
    facts = PipelineFacts()
    said = r"print('hello\nREADY\n{\"route\": {\"open\": true}}\n{broken', flush=True);"
    supervisor = Supervisor(facts, child(said + READS))
    supervisor.start()
    await until(lambda: facts.jobs)
    assert facts.state is PipelineState.UP
    assert facts.described()["jobs"] == {"route": {"open": True}}
    pid = facts.pid
    await supervisor.stop()
    assert facts.state is PipelineState.OFF
    assert not is_running(pid)


async def test_a_child_that_dies_is_started_again(monkeypatch):
    """With a pause, and counted."""
    monkeypatch.setattr(pipeline, "PAUSES_S", (0.01,))
    facts = PipelineFacts()
    supervisor = Supervisor(facts, child("raise SystemExit(7)"))
    supervisor.start()
    await until(lambda: facts.restarts >= 2)
    await until(lambda: "code 7" in facts.detail)
    await supervisor.stop()


async def test_a_child_that_cannot_run_here_is_not_tried_again():
    """Exit code 2 is for what the operator must mend."""
    facts = PipelineFacts()
    supervisor = Supervisor(facts, child("raise SystemExit(2)"))
    supervisor.start()
    await until(lambda: facts.state is PipelineState.MISSING)
    assert facts.restarts == 0
    await supervisor.stop()


async def test_a_child_that_does_not_heed_its_end_is_killed(monkeypatch):
    """Serve never waits for Spark for long."""
    monkeypatch.setattr(pipeline, "STOP_S", 0.05)
    facts = PipelineFacts()
    supervisor = Supervisor(facts, child("print('READY', flush=True); import time; time.sleep(99)"))
    supervisor.start()
    await until(lambda: facts.state is PipelineState.UP)
    pid = facts.pid
    await supervisor.stop()
    assert not is_running(pid)


@pytest.mark.parametrize("kafka", ["127.0.0.1:1", None])
def test_what_is_missing_is_said_once_with_its_remedy(kafka, monkeypatch, caplog):
    """Without Spark, or without the door the pipeline needs, the broker serves all the same."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    facts = PipelineFacts()
    assert Supervisor.embedded(facts, kafka) is None
    assert facts.state is PipelineState.MISSING
    (said,) = caplog.messages
    assert ('pip install "cordwood[spark]"' if kafka else "--kafka") in said
