"""The archive bundles of one partition in memory: which one holds an offset, and how far they go.

Bundles are runs of offsets, not of segments: they stay right when compaction swaps segments, and
after RECLAIM they are what a status query answers from. Gaps between them are offsets that were
gone before they could be archived.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """A bundle that a job has written and read back."""

    start_offset: int
    end_offset: int
    name: str
    sha256: str
    link: str  # its manifest entry's hash: what the chain has to show at this place
    place: str  # the directory or URL the archive is under
    verified: bool = False  # whether the broker has found its own records in it there
    unproven_records: int = 0  # in it, at offsets the log no longer had when it was verified


def parse_bundle(found: dict[str, Any]) -> BundleEntry:
    """From the catalog; what an earlier version verified by counting records is not verified."""
    is_proved = "unproven_records" in found
    return BundleEntry(**{**found, "verified": is_proved and found["verified"]})


class BundleIndex:
    """Bundles by start offset. For any thread."""

    def __init__(self) -> None:
        """Empty: nothing was archived."""
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._entries: dict[int, BundleEntry] = {}

    def put(self, entry: BundleEntry) -> None:
        """Add a bundle, or change the one that starts there."""
        with self._lock:
            if entry.start_offset not in self._entries:
                insort(self._starts, entry.start_offset)
            self._entries[entry.start_offset] = entry

    def remove(self, start_offset: int) -> None:
        """Forget a bundle, with its topic."""
        with self._lock:
            del self._entries[start_offset]
            self._starts.remove(start_offset)

    def find(self, offset: int) -> BundleEntry | None:
        """The bundle that holds the offset."""
        with self._lock:
            position = bisect_right(self._starts, offset) - 1
            if position < 0:
                return None
            entry = self._entries[self._starts[position]]
        return entry if offset < entry.end_offset else None

    def entries(self) -> list[BundleEntry]:
        """All of them in offset order."""
        with self._lock:
            return [self._entries[start] for start in self._starts]

    @property
    def end(self) -> int:
        """One past the last offset archived; 0 when nothing is."""
        with self._lock:
            return self._entries[self._starts[-1]].end_offset if self._starts else 0

    @property
    def verified_end(self) -> int:
        """One past the last offset before which every bundle was read by the broker itself."""
        end = 0
        for entry in self.entries():
            if not entry.verified:
                break
            end = entry.end_offset
        return end
