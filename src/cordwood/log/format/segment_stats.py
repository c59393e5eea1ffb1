"""Segment stats in ``segment-facts-checkpoint``, so that opening need not read the segments.

The file has one line per segment. It lets a partition with a thousand sealed segments open with one
small read and one ``stat`` per segment. A line is valid only while its sizes match the files. A
segment without a valid line is walked once, its indexes are rebuilt, and it gets a line. So the
file may be lost or stale at any time, which costs only time.

The active segment has a line too: when it was created and up to which size it is known to be synced
(zero when new, its whole size after a clean close). Below that size a bad checksum is corruption
and never a torn append.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from cordwood.model import NO_TIMESTAMP

_VERSION: Final = "0"


class SegmentStats(NamedTuple):
    """One segment, sealed or active, at the time of writing."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    first_ms: int
    newest_ms: int
    created_ms: int
    index_bytes: int
    timeindex_bytes: int
    aborted_count: int  # entries in its .txnindex

    @property
    def is_sealed(self) -> bool:
        """Whether these are the stats of a sealed segment."""
        return self.index_bytes >= 0

    @classmethod
    def blank(cls, base_offset: int, created_ms: int) -> SegmentStats:
        """An empty active segment; index sizes of -1 mark it as not sealed."""
        none = NO_TIMESTAMP
        return cls(base_offset, base_offset, 0, 0, none, none, created_ms, -1, -1, 0)


def encode_stats(segments: Iterable[SegmentStats]) -> bytes:
    """The text of the checkpoint: version, count, then one line per segment."""
    lines = [" ".join(map(str, stats)) for stats in segments]
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def parse_stats(text: bytes) -> dict[int, SegmentStats]:
    """Base offset → stats; empty if the text is not whole, since all can be recomputed."""
    try:
        version, count, *lines = text.decode("ascii").splitlines()
        stats = {
            f.base_offset: f for f in (SegmentStats(*map(int, line.split())) for line in lines)
        }
    except (ValueError, TypeError):
        return {}
    return stats if version == _VERSION and len(lines) == int(count) else {}
