"""How many tasks a scan is cut into: few, of a size, and a full round for every core."""

import itertools

import pytest

from cordwood.config import MIB
from cordwood.model import TopicPartition
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.splits import SplitPiece, plan_count, plan_splits

TP = TopicPartition("t", 0)
SEGMENTS, SEGMENT_BYTES, SEGMENT_RECORDS = 10, 50 * MIB, 1000


@pytest.mark.parametrize(
    ("total_mib", "cores", "tasks"),
    [(0, 2, 1), (10, 2, 1), (40, 2, 2), (500, 2, 4), (500, 4, 4), (500, 64, 31), (600, 2, 6)],
)
def test_tasks_come_in_full_rounds_of_the_cores(total_mib, cores, tasks):
    """At most 128 MiB each, at least 16, and no round that leaves cores without work."""
    assert plan_count(total_mib * MIB, cores) == tasks


def segments(whole, split_bytes):
    """Pieces as a data directory gives them: none crosses a segment."""
    parts = max(1, SEGMENT_BYTES // split_bytes)
    cuts = [
        segment * SEGMENT_RECORDS + SEGMENT_RECORDS * part // parts
        for segment in range(SEGMENTS)
        for part in range(parts)
    ]
    return [
        SplitPiece(start, end, SEGMENT_BYTES // parts)
        for start, end in itertools.pairwise([*cuts, whole.end])
    ]


def test_splits_are_of_a_size_although_segments_are_not():
    """Ten segments on two cores are four splits, none far from a quarter of the log."""
    whole = Range(TP, 0, SEGMENTS * SEGMENT_RECORDS)
    splits = plan_splits([whole], segments, cores=2)
    assert len(splits) == 4
    assert all(abs(split.size - whole.size / 4) <= whole.size / 32 for split in splits)
