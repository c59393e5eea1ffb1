"""A bounded set of partitions with files open for appends; idle ones are closed first.

A partition that is being written holds two descriptors: its active segment and its mapped published
offsets. There may be many more partitions than descriptors, so each tail is registered here when it
is opened. If there are too many, one that was not written since the last check is closed (the clock
algorithm). An append that finds its file open has no overhead from this.

Used by the thread that is currently the writer; only ``discard`` may be called from others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class OpenTail(Protocol):
    """The end of a partition that is open for appends."""

    @property
    def appended(self) -> int:
        """A value that grows with every append."""
        ...

    def close(self) -> None:
        """Close the files; the next append opens them again."""
        ...


class OpenTails:
    """The open tails, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        assert limit >= 1
        self._limit = limit
        self._checked: OrderedDict[OpenTail, int] = OrderedDict()  # ``appended`` at the last check

    @property
    def open_count(self) -> int:
        """How many tails are open."""
        return len(self._checked)

    def add(self, tail: OpenTail) -> None:
        """Register a tail that was just opened, and close another one if there are too many."""
        self._checked[tail] = -1
        while len(self._checked) > self._limit:
            self._close_one()

    def _close_one(self) -> None:
        """Close the first tail not written since its last check; found by the second round."""
        while True:
            oldest, seen = self._checked.popitem(last=False)
            if oldest.appended == seen:
                oldest.close()
                return
            self._checked[oldest] = oldest.appended

    def discard(self, tail: OpenTail) -> None:
        """Remove a closed tail. No error if it is not registered."""
        self._checked.pop(tail, None)
