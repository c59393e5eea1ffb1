"""Time slices: run long work on the event loop in short turns, so that no connection waits for it.

Work over every partition or topic (a scrape, a listing) checks its ``TimeSlice`` after each item
and yields to the event loop when the slice is over. It reads values that do not change, or that may
change between two slices without harm.

One Kafka request may name tens of thousands of partitions (``RequestSlices``). Items are counted
because a clock does not see the deferred work they cause, and time is measured because some are
expensive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from heapq import merge
from typing import Any, Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound=str)

TURN_S: Final = 0.002  # the longest that others wait, give or take one step
TURN_ITEMS: Final = 200  # at some tens of microseconds each: a few milliseconds
SORTED_AT_ONCE: Final = 1_000
_NESTED_MAX: Final = 1_000
_ARRAYS: Final = (list, tuple)


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


class RequestSlices:
    """Counts items and time over all parts of one request, however they are nested."""

    def __init__(self, turn_items: int = TURN_ITEMS, turn: TimeSlice | None = None) -> None:
        self._turn_items = turn_items
        self._left = turn_items
        self._turn = turn or TimeSlice()

    async def of(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items, pausing for the event loop after ``turn_items`` or a time slice."""
        for item in items:
            if self._left <= 0 or self._turn.is_over():
                self._left = self._turn_items
                await self._turn.pass_on()
            self._left -= 1
            yield item

    async def map(self, act: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return ``act`` applied to each item."""
        return [act(item) async for item in self.of(items)]

    async def map_topics(
        self,
        topics: Iterable[Any],
        reply: Callable[[str, list[R]], T],
        act: Callable[[str, Any], R],
    ) -> list[T]:
        """Return the reply of each topic, with ``act(topic name, partition)`` of each partition."""
        return [
            reply(topic.name, await self.map(partial(act, topic.name), topic.partitions))
            async for topic in self.of(topics)
        ]

    async def await_topics(
        self,
        topics: Iterable[Any],
        reply: Callable[[str, list[R]], T],
        act: Callable[[str, Any], Awaitable[R]],
    ) -> list[T]:
        """Do the same with an ``act`` that waits, one partition after the other."""
        return [
            reply(
                topic.name,
                [await act(topic.name, each) async for each in self.of(topic.partitions)],
            )
            async for topic in self.of(topics)
        ]

    async def sort(self, items: Sequence[S]) -> list[S]:
        """Return the items sorted, in chunks: one call would block the loop for all of them."""
        starts = range(0, len(items), SORTED_AT_ONCE)
        parts = [sorted(items[start : start + SORTED_AT_ONCE]) async for start in self.of(starts)]
        return [item async for item in self.of(merge(*parts))]

    async def steps(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """Yield the items in chunks of one slice each, for work that takes many at a time."""
        for start in range(0, len(items), self._turn_items):
            if start:
                await self._turn.pass_on()
            yield items[start : start + self._turn_items]


def is_large(message: tuple[Any, ...]) -> bool:
    """Return whether a reply takes too long to encode on the event loop.

    Counts the elements of its arrays, however deeply nested, up to the limit.
    """
    left = _NESTED_MAX
    unseen: list[tuple[Any, ...]] = [message]
    while unseen:
        for field in unseen.pop():
            if isinstance(field, _ARRAYS):
                left -= len(field)
                if left < 0:
                    return True
                if field and isinstance(field[0], tuple):
                    unseen.extend(field)
    return False


def once_each(items: Iterable[T]) -> Sequence[T]:
    """Return the items in order without duplicates: a repeated item is answered once."""
    return list(dict.fromkeys(items))
