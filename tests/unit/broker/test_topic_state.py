"""STATE describes segments and cursors in Walrus's terms, within a bounded size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cordwood.broker.topic_state import (
    CURSORS_MAX,
    SEGMENTS_MAX,
    PartitionState,
    describe_partition,
)
from cordwood.metadata.bundle_index import BundleEntry, BundleIndex
from cordwood.metadata.keys import entry_of
from cordwood.model import SegmentInfo, SegmentState


def segments(sizes: list[int]) -> list[SegmentInfo]:
    """Return neighbouring segments with these record counts; the last one is active."""
    found, base = [], 0
    for size in sizes:
        found.append(
            SegmentInfo(
                base_offset=base,
                end_offset=base + size,
                size_bytes=100 * size,
                records=size,
                first_ms=1,
                newest_ms=1,
                created_ms=1,
                state=SegmentState.SEALED,
            )
        )
        base += size
    return [*found[:-1], replace(found[-1], state=SegmentState.ACTIVE)]


def state_of(
    every: list[SegmentInfo],
    gone: int,
    cursors: dict[str, int] | None = None,
    bundles: BundleIndex | None = None,
) -> PartitionState:
    """Return a partition whose first ``gone`` segments were reclaimed."""
    return PartitionState(
        live=every[gone:],
        remembered=[entry_of(each) for each in every[:-1]],
        bundles=bundles or BundleIndex(),
        cursors=cursors or {},
        leader_id=7,
        log_start_offset=every[gone].base_offset,
        high_watermark=every[-1].end_offset,
    )


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), data=st.data())
def test_a_segment_keeps_its_number_and_count_whatever_was_reclaimed(sizes, data):
    """RECLAIM changes the state of segments, not their numbers, counts or leaders."""
    every = segments(sizes)
    gone = data.draw(st.integers(0, len(every) - 1))
    before, after = (describe_partition(state_of(every, n)) for n in (0, gone))
    for field in ("current_segment", "sealed_segments", "segment_leaders"):
        assert after[field] == before[field]
    states = [each["state"] for each in after["segments"]]
    assert states == ["reclaimed"] * gone + ["sealed"] * (len(every) - gone - 1) + ["active"]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), data=st.data())
def test_a_cursor_is_its_segment_and_what_was_delivered_of_it(sizes, data):
    """The records of earlier segments and those delivered add up to the offset."""
    every = segments(sizes)
    gone = data.draw(st.integers(0, len(every) - 1))
    offset = data.draw(st.integers(0, every[-1].end_offset))
    cursor = describe_partition(state_of(every, gone, {"a": offset}))["cursors"]["a"]
    earlier = sum(each.records for each in every[: cursor["segment"] - 1])
    assert earlier + cursor["delivered"] == cursor["offset"] == offset
    is_last = cursor["segment"] == len(every)
    assert is_last or cursor["delivered"] < sizes[cursor["segment"] - 1]


def test_a_reclaimed_segment_names_the_bundle_that_holds_it():
    """A reclaimed segment in the archive is ``archived``; one without a bundle ``reclaimed``."""
    bundles = BundleIndex()
    bundle = BundleEntry(
        start_offset=0, end_offset=4, name="b.tar.gz", sha256="s", link="l", place="/archive"
    )
    bundles.put(0, bundle)
    found = describe_partition(state_of(segments([4, 4, 4, 4]), 2, bundles=bundles))["segments"]
    assert [each["state"] for each in found] == ["archived", "reclaimed", "sealed", "active"]
    assert (found[0]["bundle"], found[0]["place"]) == ("b.tar.gz", "/archive")


def test_the_answer_is_bounded_and_says_what_it_leaves_out():
    """Only the newest segments and the first cursors are shown; the rest is counted."""
    every = segments([1] * (SEGMENTS_MAX + 5))
    cursors = {f"r{n}": n for n in range(CURSORS_MAX + 3)}
    found = describe_partition(state_of(every, 10, cursors))
    assert (len(found["segments"]), found["segments_left_out"]) == (SEGMENTS_MAX, 5)
    assert (len(found["cursors"]), found["cursors_left_out"]) == (CURSORS_MAX, 3)
    assert found["current_segment"] == SEGMENTS_MAX + 5
