"""Long requests in turns: after so many items, or so long, the event loop serves everybody else.

One request may name tens of thousands of partitions. Each costs some microseconds; together they
would stop every other connection for longer than a client's patience. Items count because a clock
says nothing of work they leave behind, time because a few may be dear.
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
        """The items, with a turn for others whenever so many have been counted."""
        for item in items:
            if self._left <= 0 or self._turn.is_over():
                self._left = self._turn_items
                await self._turn.pass_on()
            self._left -= 1
            yield item

    async def map(self, act: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """What ``act`` makes of each item."""
        return [act(item) async for item in self.of(items)]

    async def sort(self, items: Sequence[S]) -> list[S]:
        """The items in order; sorted in parts, as one call would hold the loop for all of them."""
        starts = range(0, len(items), SORTED_AT_ONCE)
        parts = [sorted(items[start : start + SORTED_AT_ONCE]) async for start in self.of(starts)]
        return [item async for item in self.of(merge(*parts))]

    async def steps(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """The items in slices of a turn each, for what takes many at a time."""
        for start in range(0, len(items), self._turn_items):
            if start:
                await self._turn.pass_on()
            yield items[start : start + self._turn_items]


def is_large(message: tuple[Any, ...]) -> bool:
    """Whether encoding a reply takes so long that it should not be done on the loop.

    Counts the elements of its arrays, however deep they are nested, up to the limit.
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
    """The items in order without repetitions: naming a thing twice is answered once."""
    return list(dict.fromkeys(items))
