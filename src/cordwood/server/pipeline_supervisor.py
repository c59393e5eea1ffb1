"""Supervises the embedded pipeline: a child process, started after READY, restarted when it dies.

The child is ``python -m cordwood pipeline run``; this package never imports Spark. We hold a pipe
to its stdin, so the child ends when the broker ends, however that happens. A child that cannot run
here at all (no Spark, no Java) is not restarted; the log says once what is missing.

A broker whose listeners all use TLS gives its child, in the environment, the certificate that it
serves with, which is all the child trusts, and the paths of a client certificate and its key.

The child's stderr, including Spark's output, goes to ``pipeline.log`` in the data directory. Lines
from our own loggers are also logged here. The child's Java process holds the same pipe, so the
pipeline has ended only when that pipe is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cordwood.broker.jobs.pipeline_status import PipelineState, PipelineStatus
from cordwood.config import BrokerConfig
from cordwood.errors import ConfigError
from cordwood.extras import install_command
from cordwood.log.lifecycle.directory import PIPELINE_LOG
from cordwood.server.rotating_file import RotatingFile
from cordwood.tls import first_certificate

logger = logging.getLogger("cordwood.server")

READY: Final = b"READY"
RESTART_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEADY_S: Final = 300.0  # a child that ran this long resets the restart delay
STOP_S: Final = 5.0  # then the child is killed
LINE_BYTES_MAX: Final = 1 << 20
CHUNK_BYTES: Final = 64 << 10
# The log format of `cordwood pipeline run`: date, time, level, logger, message.
_OURS: Final = re.compile(rb"\S+ \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) +(cordwood[.\w]*) (.+)")


@dataclass(frozen=True, slots=True)
class PipelineEndpoint:
    """The listeners for the embedded pipeline, and the variables that it connects with."""

    kafka: str | None  # None: there is no suitable listener
    problem: str = ""
    http: str = ""  # empty: the pipeline asks the broker
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def pipeline_endpoint(
    config: BrokerConfig, addresses: Mapping[str, Sequence[str]]
) -> PipelineEndpoint:
    """Choose listeners: without TLS if both Kafka and HTTP have one, else with TLS.

    The child does not go by ``advertised.http``, which is for other machines.
    """
    http = addresses["http"][0] if "http" in addresses else ""
    if "kafka" in addresses and (http or "http_tls" not in addresses):
        return PipelineEndpoint(addresses["kafka"][0], http=http if config.advertised_http else "")
    if "kafka_tls" in addresses:
        if "http_tls" in addresses:
            http = f"https://{addresses['http_tls'][0]}"
        return PipelineEndpoint(
            addresses["kafka_tls"][0], http=http, environment=_tls_variables(config)
        )
    if "kafka" in addresses:
        return PipelineEndpoint(
            None, "the HTTP listener uses TLS, so the pipeline needs --kafka-tls HOST:PORT"
        )
    return PipelineEndpoint(
        None, "the pipeline needs the Kafka listener; start the broker with --kafka HOST:PORT"
    )


def _tls_variables(config: BrokerConfig) -> dict[str, str]:
    """The certificate that the child trusts, and the files of the one that it shows."""
    own = config.tls_client_cert, config.tls_client_key
    cert, key = own if config.tls_client_cert else (config.tls_cert, config.tls_key)
    return {
        "CORDWOOD_TLS_PINNED": first_certificate(config.tls_cert),
        "CORDWOOD_TLS_CLIENT_CERT": cert,
        "CORDWOOD_TLS_CLIENT_KEY": key,
    }


class Supervisor:
    """Keeps one child process running."""

    def __init__(
        self,
        status: PipelineStatus,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        restart_delays_s: Sequence[float] = RESTART_DELAYS_S,
        stop_s: float = STOP_S,
    ) -> None:
        """Does not start the child yet; ``environment`` is added to this process's own."""
        self._status = status
        self._environment = {**_without_tls(os.environ), **(environment or {})}
        self._command = command
        self._restart_delays_s = restart_delays_s
        self._stop_s = stop_s
        self._log_file = RotatingFile(log)
        self._last_line = b""
        self._task: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    def embedded(
        cls, status: PipelineStatus, endpoint: PipelineEndpoint, data: Path
    ) -> Supervisor | None:
        """Create it for the broker's Kafka listener; if impossible, log why and return None."""
        if endpoint.kafka is None or importlib.util.find_spec("pyspark") is None:
            detail = endpoint.problem or (
                f"the pipeline needs Spark: {install_command('spark')}, or start with --no-pipeline"
            )
            status.state, status.detail = PipelineState.MISSING, detail
            logger.warning("pipeline.missing %s", detail)
            return None
        status.is_wanted = True
        words = ["pipeline", "run", "--broker", endpoint.kafka, "--lifeline"]
        words += ["--http", endpoint.http] if endpoint.http else []
        command = [sys.executable, "-m", "cordwood", *words]
        return cls(status, command, data / PIPELINE_LOG, environment=endpoint.environment)

    def start(self) -> None:
        """Start supervising; returns immediately."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Stop the child and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._end()
        self._log_file.close()
        self._status.state, self._status.is_wanted = PipelineState.OFF, False

    async def _keep(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                code = await self._run()
                ended = f"ended with code {code}"
            except OSError as error:  # no processes, files or memory: temporary
                code, ended = -1, f"could not be started: {error.strerror}"
            if code == ConfigError.exit_code:
                why = self._last_line.decode(errors="replace").removeprefix("cordwood: ")
                self._status.state = PipelineState.MISSING
                self._status.detail = why or f"it cannot run here; see {self._log_file.path}"
                logger.warning("pipeline.missing %s", self._status.detail)
                return
            failures = 0 if loop.time() - began > STEADY_S else failures
            delay_s = self._restart_delays_s[min(failures, len(self._restart_delays_s) - 1)]
            failures += 1
            self._status.state = PipelineState.WAITING
            self._status.detail = f"{ended}; restarts in {delay_s:.0f} s"
            self._status.restarts += 1
            log = self._log_file.path
            logger.warning("pipeline.ended %s retry_s=%.0f log=%s", ended, delay_s, log)
            await asyncio.sleep(delay_s)

    async def _run(self) -> int:
        """Run the child once, from start to exit."""
        self._status.state, self._status.detail = PipelineState.STARTING, ""
        child = self._child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            env=self._environment,
            # Ctrl-C must reach only us; we stop the child. A process group, not a session: Linux
            # divides CPU time between sessions first, so its low-priority work would weigh as ours.
            preexec_fn=os.setpgrp,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        self._status.pid = child.pid
        logger.info("pipeline.started pid=%d log=%s", child.pid, self._log_file.path)
        self._readers = [
            asyncio.create_task(self._read_reports(child.stdout)),
            asyncio.create_task(self._copy_log(child.stderr)),
        ]
        code = await child.wait()
        await self._await_pipes(child)
        self._status.pid, self._status.jobs = None, {}
        return code

    async def _read_reports(self, stdout: asyncio.StreamReader) -> None:
        """Read READY and the job reports from stdout."""
        while True:
            try:
                line = await stdout.readline()
            except ValueError:  # longer than LINE_BYTES_MAX: skipped
                continue
            if not line:
                return
            if line.strip() == READY:
                self._status.state = PipelineState.UP
                logger.info("pipeline.up pid=%s", self._status.pid)
            elif line.startswith(b"{"):
                with contextlib.suppress(ValueError, RecursionError):
                    self._status.take_report(json.loads(line))

    async def _copy_log(self, stderr: asyncio.StreamReader) -> None:
        """Write stderr to the log file, and pass lines of our own loggers to our log."""
        rest = b""
        while chunk := await stderr.read(CHUNK_BYTES):
            self._log_file.write(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-LINE_BYTES_MAX:]
            for line in filter(None, map(bytes.rstrip, lines)):
                self._last_line = line
                _pass_on(line)

    async def _end(self) -> None:
        child = self._child
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), self._stop_s)
        except TimeoutError:
            _kill(child.pid)
            await child.wait()
        await self._await_pipes(child)

    async def _await_pipes(self, child: asyncio.subprocess.Process) -> None:
        """Wait until its subprocesses have closed the pipes; kill the group if they do not."""
        _, lingering = await asyncio.wait(self._readers, timeout=self._stop_s)
        if lingering:
            _kill(child.pid)
            await asyncio.wait(self._readers)


def _kill(group: int) -> None:
    logger.warning("pipeline.killed pid=%d", group)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _pass_on(line: bytes) -> None:
    """Log a line from one of our loggers as if it had been logged here; ignore Spark's lines."""
    if ours := _OURS.fullmatch(line):
        level, name, message = (part.decode(errors="replace") for part in ours.groups())
        number = logging.getLevelNamesMapping()[level]
        logging.getLogger(name).log(number, "%s", message)


def _without_tls(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out how a user's commands connect: the child connects as it is told."""
    return {
        name: value for name, value in environment.items() if not name.startswith("CORDWOOD_TLS")
    }
