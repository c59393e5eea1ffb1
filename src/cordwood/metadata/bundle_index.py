"""The archive bundles of one partition, in memory and searchable by offset.

Bundles cover ranges of offsets, not segments: they stay valid when compaction swaps segments, and
after RECLAIM they answer status queries. Gaps between them are offsets that were deleted before
they could be archived.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """A bundle that a job has written and verified by reading it back."""

    start_offset: int
    end_offset: int
    name: str
    sha256: str
    link: str  # the hash in its manifest entry, to be checked against the manifest
    place: str  # the directory or URL of the archive
    verified: bool = False  # whether the broker found its own records in the bundle
    unproven_records: int = 0  # records at offsets already deleted from the log at verification


def parse_bundle(found: dict[str, Any]) -> BundleEntry:
    """Parse a catalog value; a verification by record count (an earlier version) does not count."""
    is_proved = "unproven_records" in found
    return BundleEntry(**{**found, "verified": is_proved and found["verified"]})


class BundleIndex:
    """Bundles by start offset. Thread-safe."""

    def __init__(self) -> None:
        """Start empty: nothing is archived."""
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._entries: dict[int, BundleEntry] = {}

    def put(self, entry: BundleEntry) -> None:
        """Add a bundle, or replace the one with the same start offset."""
        with self._lock:
            if entry.start_offset not in self._entries:
                insort(self._starts, entry.start_offset)
            self._entries[entry.start_offset] = entry

    def remove(self, start_offset: int) -> None:
        """Remove a bundle, when its topic is deleted."""
        with self._lock:
            del self._entries[start_offset]
            self._starts.remove(start_offset)

    def find(self, offset: int) -> BundleEntry | None:
        """The bundle that covers the offset, or None."""
        with self._lock:
            position = bisect_right(self._starts, offset) - 1
            if position < 0:
                return None
            entry = self._entries[self._starts[position]]
        return entry if offset < entry.end_offset else None

    def entries(self) -> list[BundleEntry]:
        """All bundles in offset order."""
        with self._lock:
            return [self._entries[start] for start in self._starts]

    @property
    def end(self) -> int:
        """One past the last archived offset; 0 without bundles."""
        with self._lock:
            return self._entries[self._starts[-1]].end_offset if self._starts else 0

    @property
    def verified_end(self) -> int:
        """The end offset up to which the broker itself has verified every bundle."""
        end = 0
        for entry in self.entries():
            if not entry.verified:
                break
            end = entry.end_offset
        return end
