"""Time slices: run long work on the event loop in short turns, so that no connection waits for it.

Work over every partition or topic (a scrape, a listing) checks its ``TimeSlice`` after each item
and yields to the event loop when the slice is over. It reads values that do not change, or that may
change between two slices without harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

TURN_S: Final = 0.002  # the longest that others wait, give or take one step


class TimeSlice:
    """How long the current work may go on before it must yield to the event loop."""

    def __init__(
        self, seconds: float = TURN_S, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds = seconds
        self._now = now
        self._until = now() + seconds

    def is_over(self) -> bool:
        """Return whether it is time to ``pass_on``."""
        return self._now() >= self._until

    async def pass_on(self) -> None:
        """Yield to the event loop, then begin the next slice."""
        await asyncio.sleep(0)
        self._until = self._now() + self._seconds


async def in_slices(items: Iterable[T], turn: TimeSlice | None = None) -> AsyncIterator[T]:
    """Yield the items, pausing for the event loop; fetching the next item counts as work."""
    turn = turn or TimeSlice()
    for item in items:
        yield item
        if turn.is_over():
            await turn.pass_on()
