"""Long requests in slices: they yield to the event loop after a number of items or a time limit.

One request may name tens of thousands of partitions. Each costs some microseconds; together they
would block every other connection for longer than a client's timeout. Items are counted because a
clock does not see the deferred work they cause, and time is measured because some are expensive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from heapq import merge
from typing import Any, Final, TypeVar

from cordwood.broker.time_slices import TimeSlice

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound=str)

TURN_ITEMS: Final = 200  # at some tens of microseconds each: a few milliseconds
SORTED_AT_ONCE: Final = 1_000
_NESTED_MAX: Final = 1_000
_ARRAYS: Final = (list, tuple)


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
