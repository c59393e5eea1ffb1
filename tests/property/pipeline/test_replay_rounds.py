"""A replay processes every dead letter exactly once, in the order of its partition."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cordwood.pipeline.replay.job import ReplaySlice, plan_rounds


@st.composite
def partitions(draw):
    sizes = draw(st.lists(st.integers(1, 200), max_size=6))
    starts = [draw(st.integers(0, 1000)) for _ in sizes]
    return [
        ReplaySlice(number, start, start + size, draw(st.integers(0, start)))
        for number, (size, start) in enumerate(zip(sizes, starts, strict=True))
    ]


@given(partitions(), st.integers(1, 300))
def test_rounds_cover_every_letter_once_and_cursors_follow_each_other(left, batch):
    """Each round begins where the previous one ended, and expects the cursor there."""
    rounds = plan_rounds(left, batch)
    for whole in left:
        slices = [each for pieces in rounds for each in pieces if each.partition == whole.partition]
        assert [slices[0].start, slices[0].cursor] == [whole.start, whole.cursor]
        assert slices[-1].end == whole.end
        for before, after in itertools.pairwise(slices):
            assert before.end == after.start == after.cursor
        assert all(each.size > 0 for each in slices)


@given(partitions(), st.integers(1, 300))
def test_a_round_takes_no_more_than_asked_for_and_leaves_no_partition_behind(left, batch):
    """A round takes at least one letter of each unfinished partition, and each partition once."""
    for pieces in plan_rounds(left, batch):
        assert sum(each.size for each in pieces) <= max(batch, len(pieces))
        assert len({each.partition for each in pieces}) == len(pieces)
