"""Ranges of offsets in memory, searchable by offset: the segment index and the archive bundles.

It holds the current entry for each range; gaps between ranges are normal.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from typing import Generic, Protocol, TypeVar


class OffsetRange(Protocol):
    """Something that covers offsets up to ``end_offset``."""

    @property
    def end_offset(self) -> int:
        """One past the last offset."""
        ...


R = TypeVar("R", bound=OffsetRange)


class OffsetIndex(Generic[R]):
    """Entries by start offset, found by bisection. Thread-safe."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._entries: dict[int, R] = {}

    def put(self, start: int, entry: R) -> None:
        """Add the entry of the range that begins at ``start``, or replace the one there."""
        with self._lock:
            if start not in self._entries:
                insort(self._starts, start)
            self._entries[start] = entry

    def remove(self, start: int) -> None:
        """Remove an entry, when a swap replaced it or its topic is deleted."""
        with self._lock:
            del self._entries[start]
            self._starts.remove(start)

    def get(self, start: int) -> R | None:
        """The entry whose range begins exactly here."""
        return self._entries.get(start)

    def find(self, offset: int) -> R | None:
        """The entry whose range covers the offset, or None."""
        with self._lock:
            position = bisect_right(self._starts, offset) - 1
            if position < 0:
                return None
            entry = self._entries[self._starts[position]]
        return entry if offset < entry.end_offset else None

    def entries(self) -> list[R]:
        """All entries in offset order."""
        with self._lock:
            return [self._entries[start] for start in self._starts]

    @property
    def end(self) -> int:
        """One past the last offset of the last entry; 0 if there is none."""
        with self._lock:
            return self._entries[self._starts[-1]].end_offset if self._starts else 0
