"""Segment descriptions for tests of pure decisions, without files."""

from __future__ import annotations

from cordwood.model import SegmentInfo, SegmentState

NOW_MS = 1_700_000_000_000


def a_segment(
    base: int = 0,
    end: int = 10,
    *,
    size_bytes: int = 100,
    age_ms: int = 0,
    records: int | None = None,
    state: SegmentState = SegmentState.SEALED,
) -> SegmentInfo:
    """Return a segment whose first and newest records are ``age_ms`` old."""
    return SegmentInfo(
        base_offset=base,
        end_offset=end,
        size_bytes=size_bytes,
        records=end - base if records is None else records,
        first_ms=NOW_MS - age_ms,
        newest_ms=NOW_MS - age_ms,
        created_ms=NOW_MS - age_ms,
        state=state,
    )


def a_stack(*ages_ms: int, size_bytes: int = 100, offsets: int = 10) -> list[SegmentInfo]:
    """Return sealed segments of these ages, oldest first, with consecutive offsets."""
    return [
        a_segment(i * offsets, (i + 1) * offsets, size_bytes=size_bytes, age_ms=age)
        for i, age in enumerate(ages_ms)
    ]


def an_active(after: list[SegmentInfo], *, size_bytes: int = 100, age_ms: int = 0) -> SegmentInfo:
    """Return the active segment after these segments; it is empty if ``size_bytes`` is 0."""
    base = after[-1].end_offset if after else 0
    end = base + (10 if size_bytes else 0)
    return a_segment(base, end, size_bytes=size_bytes, age_ms=age_ms, state=SegmentState.ACTIVE)
