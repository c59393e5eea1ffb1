"""Supervises the embedded pipeline: a child process, started after READY, started again if it dies.

The child is ``python -m cordwood pipeline run``; this room never imports Spark. Its stdin is a
pipe we hold: when we end, however we end, it does too. A child that cannot run here at all (no
Spark, no Java) is not tried again; the log says once what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from cordwood.broker.pipeline import PipelineFacts, PipelineState
from cordwood.errors import ConfigError

logger = logging.getLogger("cordwood.net")

READY: Final = b"READY"
PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEADY_S: Final = 300.0  # a child that lived this long starts its pauses anew
STOP_S: Final = 5.0  # then it is killed
LINE_BYTES_MAX: Final = 1 << 20
MISSING: Final = 'the pipeline needs Spark: pip install "cordwood[spark]"; --no-pipeline is quiet'


class Supervisor:
    """Keeps one child alive."""

    def __init__(self, facts: PipelineFacts, command: Sequence[str]) -> None:
        """Starts nothing yet."""
        self._facts = facts
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None

    @classmethod
    def embedded(cls, facts: PipelineFacts, kafka: str | None) -> Supervisor | None:
        """For the broker behind this Kafka door; None, said once, where it cannot be."""
        if kafka is None or importlib.util.find_spec("pyspark") is None:
            detail = MISSING if kafka else "the pipeline needs the Kafka door; serve with --kafka"
            facts.state, facts.detail = PipelineState.MISSING, detail
            logger.warning("pipeline.missing %s", detail)
            return None
        return cls(facts, [sys.executable, "-m", "cordwood", *_words(kafka)])

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the child and wait until it is gone."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._end()
        self._facts.state = PipelineState.OFF

    async def _keep(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self._run()
            if code == ConfigError.exit_code:
                self._facts.state = PipelineState.MISSING
                self._facts.detail = "it cannot run here; the log says why"
                logger.warning("pipeline.missing it cannot run here; see its last words above")
                return
            failures = 0 if loop.time() - began > STEADY_S else failures
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            self._facts.state = PipelineState.WAITING
            self._facts.detail = f"ended with code {code}; starts again in {pause_s:.0f} s"
            self._facts.restarts += 1
            logger.warning("pipeline.ended code=%d retry_s=%.0f", code, pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self) -> int:
        """One life of the child."""
        self._facts.state, self._facts.detail = PipelineState.STARTING, ""
        self._child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for us; we tell it
        )
        self._facts.pid = self._child.pid
        logger.info("pipeline.started pid=%d", self._child.pid)
        assert self._child.stdout is not None
        async for line in self._child.stdout:
            self._hear(line.strip())
        code = await self._child.wait()
        self._facts.pid, self._facts.jobs = None, {}
        return code

    def _hear(self, line: bytes) -> None:
        if line == READY:
            self._facts.state = PipelineState.UP
            logger.info("pipeline.up pid=%s", self._facts.pid)
        elif line.startswith(b"{"):
            with contextlib.suppress(ValueError):
                self._facts.jobs = json.loads(line)

    async def _end(self) -> None:
        child = self._child
        if child is None or child.returncode is not None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), STOP_S)
        except TimeoutError:
            logger.warning("pipeline.killed pid=%d", child.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


def _words(kafka: str) -> list[str]:
    return ["pipeline", "run", "--broker", kafka, "--lifeline"]
