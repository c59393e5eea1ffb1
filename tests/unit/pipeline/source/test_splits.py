"""How many splits a scan has, and how large they are."""

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
    """The number of tasks is a multiple of the cores, or fewer for little data.

    A task has at most 128 MiB, and at least 16 MiB if there is enough data.
    """
    assert plan_count(total_mib * MIB, cores) == tasks


def segments(whole, split_bytes):
    """Return pieces as a data directory does: none crosses a segment boundary."""
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
    """Splits have similar sizes, although they do not match the segments."""
    whole = Range(TP, 0, SEGMENTS * SEGMENT_RECORDS)
    splits = plan_splits([whole], segments, cores=2)
    assert len(splits) == 4
    assert all(abs(split.size - whole.size / 4) <= whole.size / 32 for split in splits)
