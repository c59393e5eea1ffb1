"""Walking the headers of many batches: which are valid, and how the data ends."""

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.header_table import WalkEnd, walk_batches
from cordwood.batch.records import encode_batch
from cordwood.model import Aborted
from support.batches import sample_records

BATCHES = [encode_batch(sample_records(3, start=start)) for start in (0, 3, 6)]
DATA = b"".join(BATCHES)


def test_a_clean_walk_gives_every_header():
    """Every field equals the one that ``parse_headers`` returns."""
    data = b"".join(
        encode_batch(
            sample_records(2, start=start),
            producer_id=2**40 + start,
            producer_epoch=7,
            base_sequence=start,
            leader_epoch=3,
            is_transactional=True,
        )
        for start in range(0, 20, 2)
    )
    walk = walk_batches(data)
    assert (walk.end, walk.valid_bytes, len(walk.batches)) == (WalkEnd.CLEAN, len(data), 10)
    batches = walk.batches
    for index, header in enumerate(parse_headers(data)):
        assert header.size_bytes == batches.sizes[index]
        assert header.base_offset == batches.base_offsets[index]
        assert header.leader_epoch == batches.leader_epochs[index]
        assert header.attributes == batches.attributes[index]
        assert header.last_offset_delta == batches.last_offset_deltas[index]
        assert header.last_offset == batches.last_offsets[index]
        assert header.base_timestamp_ms == batches.base_timestamps_ms[index]
        assert header.max_timestamp_ms == batches.max_timestamps_ms[index]
        assert header.producer_id == batches.producer_ids[index]
        assert header.producer_epoch == batches.producer_epochs[index]
        assert header.base_sequence == batches.base_sequences[index]
        assert header.count == batches.counts[index]
    assert batches.positions.tolist() == [sum(batches.sizes[:i]) for i in range(10)]


@pytest.mark.parametrize("left", [1, 60, 61, len(BATCHES[2]) - 1])
def test_a_batch_cut_short_is_torn(left):
    """A truncated last batch is torn; the batches before it are valid."""
    walk = walk_batches(DATA[: len(BATCHES[0]) + len(BATCHES[1]) + left])
    assert (walk.end, len(walk.batches)) == (WalkEnd.TORN, 2)
    assert walk.valid_bytes == len(BATCHES[0]) + len(BATCHES[1])


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_wrong_checksum_is_corrupt_and_ends_the_walk(batch):
    """A wrong checksum ends the walk as corrupt; without verification it is not detected."""
    start = sum(len(before) for before in BATCHES[:batch])
    data = bytearray(DATA)
    data[start + 100] ^= 4
    walk = walk_batches(data)
    assert (walk.end, len(walk.batches), walk.valid_bytes) == (WalkEnd.CORRUPT, batch, start)
    assert walk_batches(data, verify=False).end is WalkEnd.CLEAN


@pytest.mark.parametrize(
    "tail", [bytes(61), b"\xff" * 70, b"x" * 200], ids=["zeros", "ones", "text"]
)
def test_what_is_no_batch_is_corrupt(tail):
    """Bytes that are not a batch, including zeros, end the walk as corrupt."""
    walk = walk_batches(DATA + tail)
    assert (walk.end, walk.valid_bytes) == (WalkEnd.CORRUPT, len(DATA))


def test_no_bytes_end_cleanly():
    """Empty data ends the walk as clean."""
    walk = walk_batches(b"")
    assert (walk.end, walk.valid_bytes, len(walk.batches)) == (WalkEnd.CLEAN, 0, 0)


def test_only_the_data_batches_of_an_aborted_transaction_are_marked():
    """Only data batches of the aborted transaction's producer and offset range are marked."""
    data = b"".join(
        encode_batch(
            sample_records(2, start=start),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=is_transactional,
            is_control=start == 8,
        )
        for start, producer_id, is_transactional in (
            (0, 7, True), (2, 7, True), (4, 8, True), (6, 7, False), (8, 7, True), (10, 7, True),
        )
    )  # fmt: skip
    batches = walk_batches(data).batches
    mark = batches.is_aborted([Aborted(7, 2, 8), Aborted(9, 0, 100), Aborted(8, 50, 60)])
    assert mark.tolist() == [False, True, False, False, False, False]
    assert not batches.is_aborted(()).any()
    assert not batches.chosen(slice(0)).is_aborted([Aborted(7, 2, 8)]).any()
