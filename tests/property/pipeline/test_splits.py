"""Splits cover their ranges exactly once, for any segments."""

from hypothesis import given
from hypothesis import strategies as st

from cordwood.model import TopicPartition
from cordwood.pipeline.source.offsets import Range, plan_limit
from cordwood.pipeline.source.splits import SplitPiece, plan_splits

TP = TopicPartition("t", 0)


@st.composite
def pieces(draw):
    sizes = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 500)), min_size=1))
    start = draw(st.integers(0, 1000))
    cut = []
    for length, size_bytes in sizes:
        cut.append(SplitPiece(start, start + length, size_bytes))
        start += length
    return cut


@given(
    pieces(),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 30),
    st.integers(1, 1000),
)
def test_every_offset_is_in_exactly_one_split(cut, min_partitions, max_records, split_bytes):
    """Splits follow each other without gap or overlap and respect both limits."""
    whole = Range(TP, cut[0].start, cut[-1].end)
    splits = plan_splits(
        [whole],
        lambda _range, _bytes: cut,
        min_partitions=min_partitions,
        max_records=max_records,
        split_bytes=split_bytes,
    )
    assert [split.start for split in splits] == [whole.start, *(s.end for s in splits[:-1])]
    assert splits[-1].end == whole.end
    assert all(split.size > 0 for split in splits)
    if min_partitions is not None:
        assert len(splits) >= min(min_partitions, whole.size)
    if max_records is not None:
        assert max(split.size for split in splits) <= max_records


@given(
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), min_size=1
    ),
    st.integers(1, 2**40),
)
def test_a_limited_batch_stays_inside_and_moves_on(waiting, limit):
    """A limited batch stays between start and end, and advances if any offset is available."""
    start = {TopicPartition("t", p): first for p, (first, _) in waiting.items()}
    end = {TopicPartition("t", p): first + more for p, (first, more) in waiting.items()}
    limited = plan_limit(start, end, limit)
    assert limited.keys() == end.keys()
    assert all(start[tp] <= limited[tp] <= end[tp] for tp in end)
    assert sum(limited.values()) - sum(start.values()) <= limit + len(end)
    assert (limited != start) == (end != start)
