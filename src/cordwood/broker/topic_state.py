"""The answers to ``STATE``: a partition's segments and cursors in Walrus's terms.

Segments are counted from 1 and keep their number after RECLAIM, because the segment index remembers
every segment. An answer has a bounded size: it names the newest segments and says how many older
ones it leaves out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cordwood.metadata.bundle_index import BundleIndex
from cordwood.metadata.keys import SegmentEntry
from cordwood.model import SegmentInfo, SegmentState

SEGMENTS_MAX: Final = 1000  # in one answer, live and reclaimed together
CURSORS_MAX: Final = 1000
ARCHIVED: Final = "archived"  # reclaimed, and its records are in a bundle


class PartitionState(NamedTuple):
    """What the answer depends on; ``remembered`` is the partition's segment index."""

    live: Sequence[SegmentInfo]  # the last one is active
    remembered: Sequence[SegmentEntry]
    bundles: BundleIndex
    cursors: Mapping[str, int]  # the next offset of each registered reader
    leader_id: int
    log_start_offset: int
    high_watermark: int


class _Numbered(NamedTuple):
    number: int
    segment: SegmentInfo | SegmentEntry


def describe_partition(state: PartitionState) -> dict[str, Any]:
    """Return the segments and cursors of one partition."""
    segments = _number_segments(state)
    shown = segments[-SEGMENTS_MAX:]
    readers = sorted(state.cursors)
    return {
        **summarize_partition(state),
        "sealed_segments": {str(each.number): each.segment.records for each in shown[:-1]},
        "segment_leaders": {str(each.number): state.leader_id for each in shown},
        "segments": [_describe_segment(each, state.bundles) for each in shown],
        "segments_left_out": len(segments) - len(shown),
        "cursors": {
            reader: _describe_cursor(segments, state.cursors[reader])
            for reader in readers[:CURSORS_MAX]
        },
        "cursors_left_out": len(readers[CURSORS_MAX:]),
    }


def summarize_partition(state: PartitionState) -> dict[str, Any]:
    """Return the numbers of one partition that do not grow with its history."""
    return {
        "current_segment": _number_segments(state)[-1].number,
        "leader_node": state.leader_id,
        "last_sealed_entry_offset": state.live[-1].base_offset,
        "next_seq": state.high_watermark + 1,
        "log_start_seq": state.log_start_offset + 1,
    }


def _number_segments(state: PartitionState) -> list[_Numbered]:
    """Number every segment from 1: the remembered ones that are gone, then the live ones.

    The index lags behind cuts, so live segments are taken from the partition.
    """
    oldest = state.live[0].base_offset
    gone = [entry for entry in state.remembered if entry.base_offset < oldest]
    every: list[SegmentInfo | SegmentEntry] = [*gone, *state.live]
    return [_Numbered(number, segment) for number, segment in enumerate(every, 1)]


def _describe_segment(numbered: _Numbered, bundles: BundleIndex) -> dict[str, Any]:
    number, segment = numbered
    bundle = bundles.find(segment.base_offset)
    is_gone = isinstance(segment, SegmentEntry)
    kept = SegmentState.RECLAIMED.value if is_gone else segment.state.value
    return {
        "id": number,
        "base_seq": segment.base_offset + 1,
        "records": segment.records,
        "bytes": segment.size_bytes,
        "state": ARCHIVED if is_gone and bundle else kept,
        **({"bundle": bundle.name, "place": bundle.place} if bundle else {}),
    }


def _describe_cursor(segments: Sequence[_Numbered], offset: int) -> dict[str, int]:
    """Return Walrus's cursor: a segment, and how far into it; at its end, the next one at 0."""
    at = bisect_right(segments, offset, key=lambda each: each.segment.base_offset) - 1
    number, segment = segments[max(at, 0)]
    return {
        "segment": number,
        "delivered": max(0, offset - segment.base_offset),
        "offset": offset,
    }
