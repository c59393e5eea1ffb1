"""Long work on the event loop, a little at a time, so that no other connection waits for it.

Work over every partition or topic (a scrape, a listing) checks its ``TimeSlice`` after each of them
and lets the loop serve others when the turn is over. It reads values that do not change under it,
or that may change between two turns without harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

TURN_S: Final = 0.002  # the longest anybody waits for a turn, give or take one step


class TimeSlice:
    """How long the work at hand may go on before others are served."""

    def __init__(
        self, seconds: float = TURN_S, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds = seconds
        self._now = now
        self._until = now() + seconds

    def is_over(self) -> bool:
        """Whether it is time to ``pass_on``."""
        return self._now() >= self._until

    async def pass_on(self) -> None:
        """Serve others, then begin the next turn."""
        await asyncio.sleep(0)
        self._until = self._now() + self._seconds


async def in_slices(items: Iterable[T], turn: TimeSlice | None = None) -> AsyncIterator[T]:
    """These items, serving others in between; taking the next one is part of the turn."""
    turn = turn or TimeSlice()
    for item in items:
        yield item
        if turn.is_over():
            await turn.pass_on()
