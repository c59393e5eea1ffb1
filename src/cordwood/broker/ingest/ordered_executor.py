"""Work beside the event loop, one piece at a time and in order: the loop reads on meanwhile.

For pieces that are long and let go of the interpreter's lock, such as the encoding of a large block
of lines. What a piece gives comes back to the loop in the order the pieces were given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class OrderedExecutor:
    """One thread, made when there is work for it, and what it has yet to give back."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._futures: set[asyncio.Future[Any]] = set()
        self.lines = 0  # in the pieces that have not come back
        self.bytes = 0

    def run(
        self,
        work: Callable[[], T],
        then: Callable[[asyncio.Future[T]], None],
        *,
        lines: int = 0,
        size_bytes: int = 0,
    ) -> None:
        """Do ``work`` on the thread, then call ``then`` on the loop with what became of it."""
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
        """Wait for what is under way, and give the thread back."""
        while self._futures:
            await asyncio.wait(list(self._futures))
            await asyncio.sleep(0)  # what comes of it may be more of it
        self._pool.shutdown()
