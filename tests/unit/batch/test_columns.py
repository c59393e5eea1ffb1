"""Decoding batches to columns and encoding columns as batches."""

import itertools

import numpy as np
import pytest

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns, plan_batches
from cordwood.batch.columns import (
    Columns,
    HeaderSpans,
    Spans,
)
from cordwood.batch.header import DELETE_HORIZON_BIT, check_batches, parse_headers
from cordwood.batch.records import decode_batch, decode_committed, encode_batch, encode_marker
from cordwood.errors import CorruptBatch
from cordwood.model import Aborted, Codec, Header, Record, TimestampType
from support.batches import LIES, records_of, sample_records


def marker(offset: int, *, commit: bool, producer_id: int = 7) -> bytes:
    """Return a control batch at an offset."""
    data = bytearray(
        encode_marker(
            commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
        )
    )
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def transaction(records, producer_id: int = 7) -> bytes:
    """Return a transactional batch."""
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )


def columns_of(records) -> Columns:
    """Return columns built from plain records."""
    flat = [header for record in records for header in record.headers]
    counts = [len(record.headers) for record in records]
    return Columns.of(
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp_ms for record in records], np.int64),
        keys=Spans.of([record.key for record in records]),
        values=Spans.of([record.value for record in records]),
        headers=HeaderSpans(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            Spans.of([header.key.encode() for header in flat]),
            Spans.of([header.value for header in flat]),
        ),
    )


def test_many_batches_of_all_kinds_are_decoded_in_one_call():
    """Batches with different codecs are decoded together, in order."""
    records = sample_records(50)
    data = b"".join(
        encode_batch(records[start : start + 10], codec=codec)
        for start, codec in zip(range(0, 50, 10), Codec, strict=True)
    )
    columns = decode_columns(data)
    assert records_of(columns) == records
    assert (columns.size_bytes, columns.next_offset) == (len(data), 50)
    assert columns.batch_rows.tolist() == [row // 10 for row in range(50)]


def test_only_wanted_columns_are_there():
    """Only the requested columns are decoded, and always the offsets."""
    data = encode_batch(sample_records(3))
    columns = decode_columns(data, wanted=frozenset({"key"}))
    assert columns.keys[1] == b"key-1"
    assert columns.offsets.tolist() == [0, 1, 2]
    assert (columns.values, columns.headers, columns.timestamps_ms) == (None, None, None)


def test_offsets_outside_the_range_are_passed_over():
    """Only rows in the half-open offset range are returned, also inside batches."""
    data = b"".join(encode_batch(sample_records(10, start=start)) for start in (0, 10, 20))
    columns = decode_columns(data, start_offset=7, end_offset=22)
    assert columns.offsets.tolist() == list(range(7, 22))
    assert records_of(columns) == sample_records(30)[7:22]
    assert len(decode_columns(data, start_offset=30)) == 0
    assert len(decode_columns(data, end_offset=0)) == 0


def test_control_batches_are_for_nobody_but_the_reader_gets_past_them():
    """A control batch gives no rows, but the next offset lies after it."""
    data = encode_batch(sample_records(2)) + marker(2, commit=True)
    columns = decode_columns(data)
    assert records_of(columns) == sample_records(2)
    assert columns.next_offset == 3


def test_aborted_transactions_are_left_out():
    """Only transactional batches of the aborted producer and range are skipped."""
    records = sample_records(10)
    data = (
        transaction(records[0:2])
        + encode_batch(records[2:4])
        + transaction(records[4:6], producer_id=8)
        + marker(6, commit=False)
        + transaction([Record(7, 0, b"k", b"second try")])
    )
    kept = decode_columns(data, aborted=[Aborted(7, 0, 6)])
    assert kept.offsets.tolist() == [2, 3, 4, 5, 7]
    assert decode_columns(data).offsets.tolist() == [0, 1, 2, 3, 4, 5, 7]


def test_a_last_batch_cut_short_is_left_for_the_next_read():
    """A truncated last batch is not decoded; ``size_bytes`` is the size of the complete batches."""
    whole = encode_batch(sample_records(5))
    rest = encode_batch(sample_records(5, start=5))
    for cut in (1, 60, len(rest) - 1):
        columns = decode_columns(whole + rest[:cut])
        assert (len(columns), columns.size_bytes) == (5, len(whole))


@pytest.mark.parametrize("data", [b"", bytearray(), memoryview(b"")])
def test_no_bytes_are_no_rows(data):
    """Empty input gives no rows."""
    columns = decode_columns(data)
    assert (len(columns), columns.size_bytes, columns.next_offset) == (0, 0, -1)


def test_emptied_batches_give_no_rows():
    """An emptied batch gives no rows, but the next offset lies after it."""
    data = encode_batch([], base_offset=5, last_offset_delta=4, max_timestamp_ms=1)
    columns = decode_columns(data + encode_batch(sample_records(1, start=10)))
    assert columns.offsets.tolist() == [10]
    assert decode_columns(data).next_offset == 10


def test_append_time_speaks_for_all_rows():
    """With append time, all rows have the batch's timestamp and timestamp type."""
    data = encode_batch(sample_records(2)) + encode_batch(
        sample_records(2, start=2), timestamp_type=TimestampType.APPEND, max_timestamp_ms=9
    )
    columns = decode_columns(data)
    assert columns.timestamp_types.tolist() == [0, 0, 1, 1]
    assert columns.timestamps_ms.tolist()[2:] == [9, 9]


@pytest.mark.parametrize("lie", LIES)
def test_lies_behind_a_right_checksum_are_corruption(lie):
    """The kernels reject every invalid batch that the plain implementation rejects."""
    with pytest.raises(CorruptBatch):
        decode_columns(LIES[lie])
    with pytest.raises(CorruptBatch):
        decode_columns(encode_batch(sample_records(3)) + LIES[lie])


@pytest.mark.parametrize(
    ("lie", "wanted"),
    [
        ("key length past the record", "key"),
        ("key length of -2", "key"),
        ("value length past the record", "value"),
        ("header count past the record", "headers"),
    ],
)
def test_a_wanted_column_never_points_past_its_record(lie, wanted):
    """A requested column with an invalid length is rejected, even if no other is decoded."""
    with pytest.raises(CorruptBatch):
        decode_columns(LIES[lie], wanted=frozenset({wanted}))


def test_damage_is_found_by_checksum_unless_checks_are_off():
    """A flipped bit is found by the checksum, unless verification is turned off."""
    data = bytearray(encode_batch(sample_records(3)))
    data[-5] ^= 1
    with pytest.raises(CorruptBatch, match="position 0"):
        decode_columns(data)
    assert len(decode_columns(data, verify=False)) == 3


def test_a_bomb_stops_at_the_bound():
    """A batch that exceeds ``size_max`` when decompressed is refused."""
    data = encode_batch([Record(0, 0, None, bytes(5_000_000))], codec=Codec.LZ4)
    with pytest.raises(CorruptBatch, match="uncompressed"):
        decode_columns(data, size_max=1_000_000)


# --- encoding -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_encoding_is_the_oracles_byte_for_byte(codec):
    """One encoded batch with all header fields equals the plain encoder's bytes."""
    records = [
        Record(3, 50, b"a", None, (Header("h", b"1"), Header("", None))),
        Record(9, 40, None, b"", ()),
        Record(2**20, 60, b"", b"v" * 5000, (Header("x" * 80, b"y" * 300),)),
    ]
    options = {
        "codec": codec,
        "producer_id": 5,
        "producer_epoch": 2,
        "base_sequence": 17,
        "leader_epoch": 3,
        "is_transactional": True,
        "delete_horizon_ms": 10**12,
    }
    columns = columns_of(records)
    batches = plan_batches(columns, base_offset=1, last_offset=2**20 + 5, **options)
    expected = encode_batch(records, base_offset=1, last_offset_delta=2**20 + 4, **options)
    assert encode_columns(columns, batches) == expected
    assert decode_batch(expected) == records


def test_new_batches_are_cut_by_size():
    """Batches are split near the target size; offsets and sequences continue across them."""
    records = [Record(o, o, b"k", b"v" * (100 if o != 7 else 5000)) for o in range(20)]
    columns = columns_of(records)
    batches = plan_batches(
        columns, batch_bytes=1000, producer_id=1, producer_epoch=0, base_sequence=2**31 - 4
    )
    data = encode_columns(columns, batches)
    headers = check_batches(data, 1 << 20)
    assert len(headers) > 3
    assert [header.count for header in headers if header.size_bytes > 1100] == [1]
    assert decode_committed(data) == records
    for before, after in itertools.pairwise(headers):
        assert after.base_offset == before.end_offset
        assert after.base_sequence == (before.last_sequence + 1) % 2**31


def test_rewriting_keeps_what_headers_say():
    """Rewriting after compaction keeps offsets, producers, epochs and codecs, also if empty."""
    records = sample_records(30)
    original = b"".join(
        encode_batch(
            records[start : start + 10],
            codec=codec,
            producer_id=start,
            producer_epoch=1,
            base_sequence=start,
            leader_epoch=4,
        )
        for start, codec in ((0, Codec.ZSTD), (10, Codec.NONE), (20, Codec.GZIP))
    )
    columns = decode_columns(original)
    keep = np.isin(columns.offsets, [1, 5, 22])
    batches = columns.batches.chosen(slice(None))
    batches.counts[:] = np.bincount(columns.batch_rows[keep], minlength=3)
    data = encode_columns(columns.chosen(keep), batches)
    assert decode_committed(data) == [records[1], records[5], records[22]]
    before, after = parse_headers(original), parse_headers(data)
    assert [header.count for header in after] == [2, 0, 1]
    assert after[1].size_bytes == 61
    for old, new in zip(before, after, strict=True):
        assert (new.base_offset, new.last_offset, new.last_sequence, new.leader_epoch) == (
            old.base_offset,
            old.last_offset,
            old.last_sequence,
            old.leader_epoch,
        )
        assert (new.producer_id, new.producer_epoch) == (old.producer_id, old.producer_epoch)
    assert [header.codec for header in after] == [Codec.ZSTD, Codec.NONE, Codec.GZIP]
    assert after[0].max_timestamp_ms == records[5].timestamp_ms


def test_a_delete_horizon_can_be_set_while_rewriting():
    """A rewrite can set a delete horizon without changing the record timestamps."""
    records = sample_records(3)
    columns = decode_columns(encode_batch(records))
    columns.batches.attributes[:] |= DELETE_HORIZON_BIT
    columns.batches.base_timestamps_ms[:] = 2 * 10**12
    data = encode_columns(columns, columns.batches)
    (header,) = parse_headers(data)
    assert (header.has_delete_horizon, header.base_timestamp_ms) == (True, 2 * 10**12)
    assert decode_batch(data) == records


def test_rows_outside_their_batch_are_our_own_mistake():
    """Rows outside their batch fail an assertion."""
    columns = columns_of(sample_records(3))
    batches = plan_batches(columns)
    batches.last_offset_deltas[:] = 1
    with pytest.raises(AssertionError, match="rows lie in their batch"):
        encode_columns(columns, batches)
    batches.last_offset_deltas[:] = 5
    batches.counts[:] = 2
    with pytest.raises(AssertionError, match="every row"):
        encode_columns(columns, batches)
    with pytest.raises(AssertionError, match="rise"):
        encode_columns(columns.chosen([1, 0, 2]), plan_batches(columns_of(sample_records(3))))
