"""The supervisor restarts the pipeline process, which never outlives the broker."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import logging
import os
import sys
from pathlib import Path

import pytest

from cordwood.broker.jobs.pipeline_status import PipelineState, PipelineStatus
from cordwood.config import BrokerConfig
from cordwood.lab.scenarios.processes import is_alive
from cordwood.server.certs import write_lab_certificates
from cordwood.server.pipeline_supervisor import PipelineEndpoint, Supervisor, pipeline_endpoint
from cordwood.server.service import new_event_loop

WAIT_S = 30
READS = "import sys; sys.stdin.read()"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "pipeline.log"


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


class WatchedStatus(PipelineStatus):
    """A status whose changes can be awaited."""

    def __init__(self) -> None:
        self.__dict__["changed"] = asyncio.Event()
        super().__init__()

    def __setattr__(self, name, value) -> None:
        super().__setattr__(name, value)
        self.changed.set()

    async def until(self, holds) -> None:
        """Return when the condition holds. It is checked after every change."""
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


async def until_ended(pid: int) -> None:
    """Return when the process has ended. It need not be a child of this one."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)


async def test_a_child_is_up_when_it_says_so_and_its_reports_are_kept(log):
    """A child is up when it prints READY, and its JSON lines are kept. Other lines are ignored."""
    status = WatchedStatus()
    output = r"print('hello\nREADY\n{\"route\": {\"open\": true}}\n{broken', flush=True);"
    supervisor = Supervisor(status, child(output + READS), log)
    supervisor.start()
    await status.until(lambda: status.jobs)
    assert status.state is PipelineState.UP
    assert status.report().jobs == {"route": {"open": True}}
    pid = status.pid
    await supervisor.stop()
    assert status.state is PipelineState.OFF
    assert not is_alive(pid)


def test_a_child_is_a_group_of_its_own_in_our_session(log):
    """A child has its own process group, so Ctrl-C does not reach it, but stays in our session."""
    status = WatchedStatus()
    ids = "print(f'{{\"ids\": [{os.getpid()}, {os.getpgrp()}, {os.getsid(0)}]}}', flush=True);"
    supervisor = Supervisor(status, child("import os;" + ids + READS), log)

    async def ask() -> list[int]:
        supervisor.start()
        await status.until(lambda: status.jobs)
        found = status.jobs["ids"]
        await supervisor.stop()
        return found

    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # the broker's event loop
        pid, group, session = runner.run(ask())
    assert group == pid
    assert session == os.getsid(0)


async def test_a_child_that_dies_is_started_again(log):
    """A child that exits is restarted after a pause, and restarts are counted."""
    status = WatchedStatus()
    supervisor = Supervisor(status, child("raise SystemExit(7)"), log, restart_delays_s=(0.01,))
    supervisor.start()
    await status.until(lambda: status.restarts >= 2)
    await status.until(lambda: "code 7" in status.detail)
    await supervisor.stop()


async def test_a_child_that_could_not_be_started_is_tried_again(log):
    """A child that cannot be started is retried, and the error is reported meanwhile."""
    status = WatchedStatus()
    program = log.with_name("python")
    command = [str(program), *child("print('READY', flush=True);" + READS)[1:]]
    supervisor = Supervisor(status, command, log, restart_delays_s=(0.01,))
    supervisor.start()
    await status.until(lambda: status.restarts >= 2)
    await status.until(lambda: "could not be started: No such file" in str(status.failed_jobs()))
    program.symlink_to(sys.executable)
    await status.until(lambda: status.state is PipelineState.UP)
    await supervisor.stop()


@pytest.mark.parametrize("words", ["'x' * (3 << 20)", "'{' + 'x' * (3 << 20)", "'{\"a\":' * 99999"])
async def test_words_that_are_no_report_stop_no_later_one(log, words):
    """An oversized or deeply nested line does not prevent later lines from being read."""
    status = WatchedStatus()
    output = f"print({words}, flush=True); print('READY', flush=True);"
    supervisor = Supervisor(status, child(output + READS), log)
    supervisor.start()
    await status.until(lambda: status.state is PipelineState.UP)
    await supervisor.stop()


async def test_a_child_that_cannot_run_here_is_not_tried_again(log):
    """A child that exits with code 2 is not restarted, because the operator must act first."""
    status = WatchedStatus()
    supervisor = Supervisor(status, child("raise SystemExit(2)"), log)
    supervisor.start()
    await status.until(lambda: status.state is PipelineState.MISSING)
    assert status.restarts == 0
    await supervisor.stop()


async def test_a_child_that_does_not_heed_its_end_is_killed(log):
    """A child that does not stop in time is killed."""
    status = WatchedStatus()
    sleeps = "print('READY', flush=True); import time; time.sleep(99)"
    supervisor = Supervisor(status, child(sleeps), log, stop_s=0.05)
    supervisor.start()
    await status.until(lambda: status.state is PipelineState.UP)
    pid = status.pid
    await supervisor.stop()
    assert not is_alive(pid)


async def test_what_a_child_leaves_behind_is_killed(log):
    """Processes that a child leaves behind, such as Spark's JVM, are killed."""
    status = WatchedStatus()
    leaves = (
        "import subprocess, sys, json;"
        "left = subprocess.Popen(['sleep', '99'], stdin=subprocess.DEVNULL);"
        "print(json.dumps({'left': left.pid}), flush=True);"
    )
    supervisor = Supervisor(status, child(leaves + READS), log, stop_s=0.2)
    supervisor.start()
    await status.until(lambda: status.jobs)
    pid = status.jobs["left"]
    await supervisor.stop()
    await until_ended(pid)


async def test_what_java_says_goes_to_the_file_and_what_we_say_to_our_log_too(log, caplog):
    """All stderr output goes to the file. Log lines of cordwood also go to the broker's log."""
    caplog.set_level(logging.INFO)
    status = WatchedStatus()
    says = (
        "import sys; print('WARNING: Using incubator modules\\n"
        "2026-11-16 02:00:00,123 WARNING cordwood.pipeline job.failed 100%\\n"
        "2026-11-16 02:00:00,123 ERROR   root Exception', file=sys.stderr, flush=True);"
        "print('READY', flush=True);"
    )
    supervisor = Supervisor(status, child(says + READS), log)
    supervisor.start()
    await status.until(lambda: status.state is PipelineState.UP)
    await supervisor.stop()
    reply = [record for record in caplog.records if record.name == "cordwood.pipeline"]
    assert [(one.levelname, one.getMessage()) for one in reply] == [("WARNING", "job.failed 100%")]
    assert len(log.read_bytes().splitlines()) == 3
    assert "incubator" not in caplog.text
    assert "root Exception" not in caplog.text


async def test_the_reason_it_cannot_run_is_the_last_line_of_the_child(log):
    """If a child exits with code 2, its last error line is shown as the reason."""
    status = WatchedStatus()
    dies = "import sys; print('cordwood: no Java; install one', file=sys.stderr); sys.exit(2)"
    supervisor = Supervisor(status, child(dies), log)
    supervisor.start()
    await status.until(lambda: status.state is PipelineState.MISSING)
    assert status.detail == "no Java; install one"
    await supervisor.stop()


@pytest.mark.parametrize("kafka", ["127.0.0.1:1", None])
def test_a_missing_part_is_reported_once_with_its_remedy(kafka, tmp_path, monkeypatch, caplog):
    """If Spark or the Kafka listener is missing, the broker logs once how to fix it and serves."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    status = WatchedStatus()
    endpoint = pipeline_endpoint(BrokerConfig(), {"kafka": [kafka]} if kafka else {})
    assert Supervisor.embedded(status, endpoint, tmp_path) is None
    assert status.state is PipelineState.MISSING
    (output,) = caplog.messages
    assert ('pip install "cordwood[spark]"' if kafka else "--kafka") in output


async def test_a_pipeline_that_can_run_is_wanted_until_it_is_stopped(tmp_path, monkeypatch):
    """A pipeline that can run is marked as wanted until it is stopped, for the alert to compare."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    status = WatchedStatus()
    supervisor = Supervisor.embedded(status, PipelineEndpoint("127.0.0.1:9092"), tmp_path)
    assert status.is_wanted
    await supervisor.stop()
    assert not status.is_wanted


PLAIN = {"kafka": ["127.0.0.1:1"], "http": ["127.0.0.1:2"]}
WITH_TLS = {"kafka_tls": ["127.0.0.1:3"], "http_tls": ["127.0.0.1:4"]}


@pytest.fixture
def served(tmp_path):
    """The TLS settings of a broker."""
    write_lab_certificates(tmp_path, ["broker.example"], 1, replace=False)
    files = {"tls_cert": str(tmp_path / "server.pem"), "tls_key": str(tmp_path / "server.key")}
    return BrokerConfig(**files)


def test_listeners_without_tls_are_preferred_by_the_child(served):
    """On one machine TLS protects nothing; the child asks the broker for its HTTP address."""
    assert pipeline_endpoint(served, {**PLAIN, **WITH_TLS}) == PipelineEndpoint("127.0.0.1:1")


def test_child_of_a_broker_with_only_tls_trusts_exactly_its_certificate(served):
    """The certificate is told as text, so a renewed file does not lock a restarted child out."""
    endpoint = pipeline_endpoint(served, WITH_TLS)
    assert (endpoint.kafka, endpoint.http) == ("127.0.0.1:3", "https://127.0.0.1:4")
    assert endpoint.environment["CORDWOOD_TLS_PINNED"] == Path(served.tls_cert).read_text()
    assert endpoint.environment["CORDWOOD_TLS_CLIENT_CERT"] == served.tls_cert
    own = dataclasses.replace(served, tls_client_cert="c.pem", tls_client_key="c.key")
    told = pipeline_endpoint(own, WITH_TLS).environment
    assert told["CORDWOOD_TLS_CLIENT_CERT"] == "c.pem"
    assert told["CORDWOOD_TLS_CLIENT_KEY"] == "c.key"


def test_child_does_not_go_by_the_address_for_other_machines(served):
    """With advertised.http the child is told the listener's own address."""
    config = dataclasses.replace(served, advertised_http="https://api.example:443")
    assert pipeline_endpoint(config, PLAIN).http == "127.0.0.1:2"


def test_listeners_that_do_not_fit_each_other_are_said(served):
    """A Kafka listener without TLS and an HTTP listener with TLS need one more."""
    mixed = {"kafka": ["127.0.0.1:1"], "http_tls": ["127.0.0.1:4"]}
    assert "--kafka-tls" in pipeline_endpoint(served, mixed).problem


async def test_child_connects_as_it_is_told_and_not_as_its_users_do(log, monkeypatch):
    """The TLS variables of a shell are for commands; the child gets those of its broker."""
    monkeypatch.setenv("CORDWOOD_TLS_CA", "users.pem")
    shows = (
        "import json, os; print(json.dumps({'tls': {name: value for name, value in "
        "os.environ.items() if name.startswith('CORDWOOD_TLS')}}), flush=True);"
    )
    status = WatchedStatus()
    told = {"CORDWOOD_TLS_PINNED": "pem"}
    supervisor = Supervisor(status, child(shows + READS), log, environment=told)
    supervisor.start()
    await status.until(lambda: "tls" in status.jobs)
    assert status.jobs["tls"] == told
    await supervisor.stop()
