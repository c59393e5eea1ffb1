"""Counts the iterations of the event loop while something runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class Turns:
    """The number of event loop iterations."""

    count: int = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Count iterations until the block ends."""
    loop = asyncio.get_running_loop()
    turns = Turns()
    is_over = False

    def count() -> None:
        turns.count += 1
        if not is_over:
            loop.call_soon(count)

    loop.call_soon(count)
    try:
        yield turns
    finally:
        is_over = True
