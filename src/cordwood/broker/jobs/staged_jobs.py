"""The files of jobs in the staging area: uploaded, discarded, and swept when their job is dead.

A job's files are kept while a delivery needs them: from its request until it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from cordwood.clock import Clock
from cordwood.config import HOUR_MS
from cordwood.decide.delivery import plan_sweep
from cordwood.errors import RequestError
from cordwood.log.staging.area import StagingArea, check_name

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

SWEEP_IDLE_MS: Final = 24 * HOUR_MS  # a job that left its files unchanged this long is dead


class StagedJobs:
    """Knows which jobs' files are needed, and deletes the others."""

    def __init__(self, staging: StagingArea, clock: Clock, background: Executor) -> None:
        self._staging = staging
        self._clock = clock
        self._background = background
        self.accepted: dict[str, str] = {}  # query → the job whose files a record relies on
        self.running: dict[asyncio.Task[bool], str] = {}  # delivery → its job

    def needed(self) -> set[str]:
        """Return the jobs whose files an accepted or running delivery needs."""
        return {*self.accepted.values(), *self.running.values()}

    async def upload(self, job: str, name: str, data: bytes) -> None:
        """Store one staged file from a job that cannot reach the data directory."""
        check_name(job, "job")
        check_name(name, "file")
        if job in self.accepted.values():
            raise RequestError(
                f"job {job} was already delivered; stage the files under a new job name"
            )
        await self.in_background(self._write_file, job, name, data)

    def _write_file(self, job: str, name: str, data: bytes) -> None:
        with self._staging.new_job(job) as files:
            files.write(name, [data])

    async def discard(self, job: str) -> None:
        """Delete a job's files, unless a running or recorded delivery still needs them."""
        check_name(job, "job")
        if job not in self.needed():
            await self.remove(job)

    async def sweep(self) -> list[str]:
        """Delete the files of dead jobs; returns the jobs."""
        leftovers = await self.in_background(self._staging.leftovers, self._clock.now_ms())
        swept = plan_sweep(leftovers, self.needed(), SWEEP_IDLE_MS)
        for job in swept:
            if job in self.needed():  # a request for it has arrived in the meantime
                continue
            await self.remove(job)
            logger.info("staging.swept job=%s its files were not delivered in time", job)
        return swept

    async def remove(self, job: str) -> None:
        """Delete a job's files."""
        await self.in_background(self._staging.remove, job)

    async def in_background(self, act: Callable[..., T], *arguments: Any) -> T:
        """Run ``act`` on the thread that reads and writes staged files."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background, act, *arguments)
