"""Which partitions have their files open for appends: a bounded number, idle ones first out.

A partition that is written holds two descriptors, its active segment and its mapped marks. There
may be many more partitions than descriptors, so whoever begins to write is noted here, and when
there are too many one that has not been written since it was last looked at gives its own back
(the clock algorithm). An append that finds its file open pays nothing for this.

Used by the one thread that is the writer just now; only ``discard`` may come from others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class OpenTail(Protocol):
    """The end of a partition that is open for appends."""

    @property
    def appended(self) -> int:
        """Grows with every append."""
        ...

    def close(self) -> None:
        """Give the descriptors back; the next append takes them again."""
        ...


class OpenTails:
    """The tails that are open, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        assert limit >= 1
        self._limit = limit
        self._noted: OrderedDict[OpenTail, int] = OrderedDict()  # ``appended`` when looked at

    @property
    def open_count(self) -> int:
        """How many are open."""
        return len(self._noted)

    def add(self, tail: OpenTail) -> None:
        """This one is open now and about to be written; another may have to go."""
        self._noted[tail] = -1
        while len(self._noted) > self._limit:
            self._close_one()

    def _close_one(self) -> None:
        """The first that was not written since; the second turn at the latest finds one."""
        while True:
            oldest, seen = self._noted.popitem(last=False)
            if oldest.appended == seen:
                oldest.close()
                return
            self._noted[oldest] = oldest.appended

    def discard(self, tail: OpenTail) -> None:
        """It is closed; no error if it was not open."""
        self._noted.pop(tail, None)
