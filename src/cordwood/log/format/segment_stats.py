"""What is known of each segment without reading it: ``segment-facts-checkpoint``.

One line a segment. It lets a partition with a thousand sealed segments open with one small read and
one ``stat`` each. A line counts only while the sizes in it are those of the files; a segment
without a true line is walked once, its indexes are rebuilt, and it gets one. So the file may be
lost or stale at any time and costs only time.

The active segment has a line too: when it was opened and up to which size it is known to be on the
device (zero when new, its whole size after a clean close). Below that size a bad checksum is
corruption and never a torn append.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from cordwood.model import NO_TIMESTAMP

_VERSION: Final = "0"


class SegmentStats(NamedTuple):
    """One segment, sealed or active, as it was when this was written."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    first_ms: int
    newest_ms: int
    created_ms: int
    index_bytes: int
    timeindex_bytes: int
    aborted_count: int  # entries of its .txnindex

    @property
    def is_sealed(self) -> bool:
        """Whether this was written of a sealed segment."""
        return self.index_bytes >= 0

    @classmethod
    def blank(cls, base_offset: int, created_ms: int) -> SegmentStats:
        """A segment without batches and, so that nobody takes it for sealed, without indexes."""
        none = NO_TIMESTAMP
        return cls(base_offset, base_offset, 0, 0, none, none, created_ms, -1, -1, 0)


def encode_stats(segments: Iterable[SegmentStats]) -> bytes:
    """The checkpoint's text: version, count, then one line a segment."""
    lines = [" ".join(map(str, facts)) for facts in segments]
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def parse_stats(text: bytes) -> dict[int, SegmentStats]:
    """Base offset → facts; empty when the text is not whole, as it can all be found out again."""
    try:
        version, count, *lines = text.decode("ascii").splitlines()
        facts = {
            f.base_offset: f for f in (SegmentStats(*map(int, line.split())) for line in lines)
        }
    except (ValueError, TypeError):
        return {}
    return facts if version == _VERSION and len(lines) == int(count) else {}
