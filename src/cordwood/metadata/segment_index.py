"""The segment index of one partition in memory: entries in offset order, found by bisection.

It holds the current entry for each offset, sealed or reclaimed. Replaced entries are history and
only in the store.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort

from cordwood.metadata.keys import SegmentEntry


class SegmentIndex:
    """Entries by base offset, with lookups in logarithmic time. Thread-safe."""

    def __init__(self) -> None:
        """Start empty: the first segment is still active."""
        self._lock = threading.Lock()
        self._bases: list[int] = []
        self._entries: dict[int, SegmentEntry] = {}

    def put(self, entry: SegmentEntry) -> None:
        """Add an entry, or replace the one with the same base offset."""
        with self._lock:
            if entry.base_offset not in self._entries:
                insort(self._bases, entry.base_offset)
            self._entries[entry.base_offset] = entry

    def remove(self, base_offset: int) -> None:
        """Remove an entry that a swap replaced."""
        with self._lock:
            del self._entries[base_offset]
            self._bases.remove(base_offset)

    def get(self, base_offset: int) -> SegmentEntry | None:
        """The entry with exactly this base offset."""
        return self._entries.get(base_offset)

    def find(self, offset: int) -> SegmentEntry | None:
        """The entry whose range covers the offset; None if no sealed segment does."""
        with self._lock:
            position = bisect_right(self._bases, offset) - 1
            if position < 0:
                return None
            entry = self._entries[self._bases[position]]
        return entry if offset < entry.end_offset else None

    def entries(self) -> list[SegmentEntry]:
        """All entries in offset order."""
        with self._lock:
            return [self._entries[base] for base in self._bases]
