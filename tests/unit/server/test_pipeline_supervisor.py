"""The supervisor: a child that is started again, and never outlives who started it."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys

import pytest

from cordwood.broker.jobs.pipeline_status import PipelineState, PipelineStatus
from cordwood.lab.scenarios.processes import is_alive
from cordwood.server import pipeline_supervisor
from cordwood.server.pipeline_supervisor import Supervisor
from cordwood.server.service import new_event_loop

WAIT_S = 30
READS = "import sys; sys.stdin.read()"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "pipeline.log"


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def until(holds) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


async def test_a_child_is_up_when_it_says_so_and_its_reports_are_kept(log):
    """READY, then lines of JSON; anything else is passed over."""
    facts = PipelineStatus()
    said = r"print('hello\nREADY\n{\"route\": {\"open\": true}}\n{broken', flush=True);"
    supervisor = Supervisor(facts, child(said + READS), log)
    supervisor.start()
    await until(lambda: facts.jobs)
    assert facts.state is PipelineState.UP
    assert facts.described()["jobs"] == {"route": {"open": True}}
    pid = facts.pid
    await supervisor.stop()
    assert facts.state is PipelineState.OFF
    assert not is_alive(pid)


def test_a_child_is_a_group_of_its_own_in_our_session(log):
    """Ctrl-C passes it by, and the kernel still weighs its idle work against ours."""
    facts = PipelineStatus()
    ids = "print(f'{{\"ids\": [{os.getpid()}, {os.getpgrp()}, {os.getsid(0)}]}}', flush=True);"
    supervisor = Supervisor(facts, child("import os;" + ids + READS), log)

    async def ask() -> list[int]:
        supervisor.start()
        await until(lambda: facts.jobs)
        found = facts.jobs["ids"]
        await supervisor.stop()
        return found

    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # the broker's
        pid, group, session = runner.run(ask())
    assert group == pid
    assert session == os.getsid(0)


async def test_a_child_that_dies_is_started_again(log, monkeypatch):
    """With a pause, and counted."""
    monkeypatch.setattr(pipeline_supervisor, "PAUSES_S", (0.01,))
    facts = PipelineStatus()
    supervisor = Supervisor(facts, child("raise SystemExit(7)"), log)
    supervisor.start()
    await until(lambda: facts.restarts >= 2)
    await until(lambda: "code 7" in facts.detail)
    await supervisor.stop()


async def test_a_child_that_could_not_be_started_is_tried_again(log, monkeypatch):
    """The machine may have had no process or file left; it is named meanwhile."""
    monkeypatch.setattr(pipeline_supervisor, "PAUSES_S", (0.01,))
    facts = PipelineStatus()
    program = log.with_name("python")
    supervisor = Supervisor(
        facts, [str(program), *child("print('READY', flush=True);" + READS)[1:]], log
    )
    supervisor.start()
    await until(lambda: facts.restarts >= 2)
    await until(lambda: "could not be started: No such file" in str(facts.failed_jobs()))
    program.symlink_to(sys.executable)
    await until(lambda: facts.state is PipelineState.UP)
    await supervisor.stop()


@pytest.mark.parametrize("words", ["'x' * (3 << 20)", "'{' + 'x' * (3 << 20)", "'{\"a\":' * 99999"])
async def test_words_that_are_no_report_stop_no_later_one(log, words):
    """A line without an end, or nested without one: the child is heard all the same."""
    facts = PipelineStatus()
    said = f"print({words}, flush=True); print('READY', flush=True);"
    supervisor = Supervisor(facts, child(said + READS), log)
    supervisor.start()
    await until(lambda: facts.state is PipelineState.UP)
    await supervisor.stop()


async def test_a_child_that_cannot_run_here_is_not_tried_again(log):
    """Exit code 2 is for what the operator must mend."""
    facts = PipelineStatus()
    supervisor = Supervisor(facts, child("raise SystemExit(2)"), log)
    supervisor.start()
    await until(lambda: facts.state is PipelineState.MISSING)
    assert facts.restarts == 0
    await supervisor.stop()


async def test_a_child_that_does_not_heed_its_end_is_killed(log, monkeypatch):
    """Serve never waits for Spark for long."""
    monkeypatch.setattr(pipeline_supervisor, "STOP_S", 0.05)
    facts = PipelineStatus()
    sleeps = "print('READY', flush=True); import time; time.sleep(99)"
    supervisor = Supervisor(facts, child(sleeps), log)
    supervisor.start()
    await until(lambda: facts.state is PipelineState.UP)
    pid = facts.pid
    await supervisor.stop()
    assert not is_alive(pid)


async def test_what_a_child_leaves_behind_is_killed(log, monkeypatch):
    """Spark's Java, should it not end with its driver: it holds the pipes, and that shows."""
    monkeypatch.setattr(pipeline_supervisor, "STOP_S", 0.2)
    facts = PipelineStatus()
    leaves = (
        "import subprocess, sys, json;"
        "left = subprocess.Popen(['sleep', '99'], stdin=subprocess.DEVNULL);"
        "print(json.dumps({'left': left.pid}), flush=True);"
    )
    supervisor = Supervisor(facts, child(leaves + READS), log)
    supervisor.start()
    await until(lambda: facts.jobs)
    pid = facts.jobs["left"]
    await supervisor.stop()
    await until(lambda: not is_alive(pid))


async def test_what_java_says_goes_to_the_file_and_what_we_say_to_our_log_too(log, caplog):
    """One line of ours stays one line of ours, with its level and its logger."""
    caplog.set_level(logging.INFO)
    facts = PipelineStatus()
    says = (
        "import sys; print('WARNING: Using incubator modules\\n"
        "2026-11-16 02:00:00,123 WARNING cordwood.pipeline job.failed 100%\\n"
        "2026-11-16 02:00:00,123 ERROR   root Exception', file=sys.stderr, flush=True);"
        "print('READY', flush=True);"
    )
    supervisor = Supervisor(facts, child(says + READS), log)
    supervisor.start()
    await until(lambda: facts.state is PipelineState.UP)
    await supervisor.stop()
    said = [record for record in caplog.records if record.name == "cordwood.pipeline"]
    assert [(one.levelname, one.getMessage()) for one in said] == [("WARNING", "job.failed 100%")]
    assert len(log.read_bytes().splitlines()) == 3
    assert "incubator" not in caplog.text
    assert "root Exception" not in caplog.text


async def test_why_it_cannot_run_here_is_what_the_child_said_last(log):
    """The remedy is in that line; a person should not have to look for it."""
    facts = PipelineStatus()
    dies = "import sys; print('cordwood: no Java; install one', file=sys.stderr); sys.exit(2)"
    supervisor = Supervisor(facts, child(dies), log)
    supervisor.start()
    await until(lambda: facts.state is PipelineState.MISSING)
    assert facts.detail == "no Java; install one"
    await supervisor.stop()


@pytest.mark.parametrize("kafka", ["127.0.0.1:1", None])
def test_what_is_missing_is_said_once_with_its_remedy(kafka, tmp_path, monkeypatch, caplog):
    """Without Spark, or without the listener the pipeline needs, the broker serves all the same."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    facts = PipelineStatus()
    assert Supervisor.embedded(facts, kafka, tmp_path) is None
    assert facts.state is PipelineState.MISSING
    (said,) = caplog.messages
    assert ('pip install "cordwood[spark]"' if kafka else "--kafka") in said


async def test_a_pipeline_that_can_run_is_wanted_until_it_is_stopped(tmp_path, monkeypatch):
    """That it should be up is what the alert compares with whether it is."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    facts = PipelineStatus()
    supervisor = Supervisor.embedded(facts, "127.0.0.1:9092", tmp_path)
    assert facts.is_wanted
    await supervisor.stop()
    assert not facts.is_wanted
