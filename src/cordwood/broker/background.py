"""The broker's background tasks by name, and which of them died.

Each runs until the broker stops or until it has nothing left to do. A task that ends with an
exception has hit a bug: the exception is logged once with its traceback, and the task is named in
``/readyz`` until the next start, because its work is no longer done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

logger = logging.getLogger("cordwood.broker")


class BackgroundTasks:
    """Starts, tracks and stops background tasks; used only on the event loop."""

    def __init__(self) -> None:
        self.died: dict[str, str] = {}  # name → the exception that ended the task
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; returns immediately."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.died[name] = f"{type(error).__name__}: {error}"
            logger.error("task.failed task=%s error=%s", name, self.died[name], exc_info=error)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
