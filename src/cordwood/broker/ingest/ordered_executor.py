"""A one-thread executor that runs tasks off the event loop, one at a time and in order.

It is for long tasks that release the GIL, such as encoding a large block of lines; the event loop
keeps reading sockets meanwhile. Results return to the loop in the order of submission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class OrderedExecutor:
    """One thread, started on demand, and the tasks it has not finished yet."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._futures: set[asyncio.Future[Any]] = set()
        self.lines = 0  # in the unfinished tasks
        self.bytes = 0

    def run(
        self,
        work: Callable[[], T],
        then: Callable[[asyncio.Future[T]], None],
        *,
        lines: int = 0,
        size_bytes: int = 0,
    ) -> None:
        """Run ``work`` on the thread, then call ``then`` on the event loop with its future."""
        self.lines += lines
        self.bytes += size_bytes
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        self._futures.add(future)

        def done(_: asyncio.Future[T]) -> None:
            self._futures.discard(future)
            self.lines -= lines
            self.bytes -= size_bytes
            then(future)

        future.add_done_callback(done)

    async def stop(self) -> None:
        """Wait for unfinished tasks, and end the thread."""
        while self._futures:
            await asyncio.wait(list(self._futures))
            await asyncio.sleep(0)  # a finished task may submit another
        self._pool.shutdown()
