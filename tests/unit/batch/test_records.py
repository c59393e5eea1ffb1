"""Encoding and decoding records in plain Python: layout, empty batches, markers and corruption."""

import struct

import pytest

from cordwood.batch.header import HEADER_BYTES, parse_header
from cordwood.batch.records import (
    Marker,
    decode_batch,
    decode_committed,
    encode_batch,
    encode_marker,
    parse_marker,
)
from cordwood.errors import CorruptBatch
from cordwood.model import Codec, Header, Record, TimestampType
from support.batches import LIES, batch_of, sample_records


def test_the_layout_is_byte_for_byte_kafkas():
    """The bytes of a record equal Kafka's format, as documented in docs/format.md."""
    record = Record(0, 1000, b"k", b"v1", (Header("h", None),))
    body = encode_batch([record])[HEADER_BYTES:]
    assert body.hex(" ") == "18 00 00 00 02 6b 04 76 31 02 02 68 01"


def test_null_and_empty_are_different():
    """Null and empty keys, values and headers are distinct after a round trip."""
    records = [
        Record(0, 5, None, None),
        Record(1, 5, b"", b"", (Header("", b""), Header("x", None))),
    ]
    assert decode_batch(encode_batch(records)) == records


def test_a_batch_may_cover_more_than_its_records():
    """A compacted batch may have gaps, and its offsets may span more than its records."""
    records = [Record(12, 5, b"a", b"1"), Record(17, 4, b"b", b"2")]
    data = encode_batch(records, base_offset=10, last_offset_delta=9)
    header = parse_header(data)
    assert (header.base_offset, header.last_offset, header.count) == (10, 19, 2)
    assert header.max_timestamp_ms == 5
    assert decode_batch(data) == records


def test_an_emptied_batch_is_its_header_alone():
    """An emptied batch is a 61-byte header that keeps the offsets and the last sequence."""
    data = encode_batch(
        [],
        codec=Codec.ZSTD,
        base_offset=40,
        last_offset_delta=3,
        max_timestamp_ms=77,
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
    )
    header = parse_header(data)
    assert (len(data), header.count, header.codec) == (HEADER_BYTES, 0, Codec.NONE)
    assert (header.last_offset, header.last_sequence, header.max_timestamp_ms) == (43, 8, 77)
    assert decode_batch(data) == []


def test_a_delete_horizon_does_not_change_what_readers_see():
    """A delete horizon replaces the base timestamp; the record timestamps stay the same."""
    records = sample_records(3)
    data = encode_batch(records, delete_horizon_ms=records[-1].timestamp_ms + 86_400_000)
    assert parse_header(data).base_timestamp_ms == records[-1].timestamp_ms + 86_400_000
    assert parse_header(data).max_timestamp_ms == records[-1].timestamp_ms
    assert decode_batch(data) == records


def test_with_append_time_the_batch_speaks_for_its_records():
    """With append time, every record has the batch's largest timestamp."""
    data = encode_batch(sample_records(3), timestamp_type=TimestampType.APPEND, max_timestamp_ms=9)
    assert [record.timestamp_ms for record in decode_batch(data)] == [9, 9, 9]


def test_a_header_name_that_is_not_utf8_survives():
    """A header name that is not UTF-8 is encoded to the same bytes again."""
    data = batch_of(bytes.fromhex("14 00 00 00 01 01 02 04 ff fe 00"))
    (record,) = decode_batch(data)
    assert encode_batch([record], base_offset=0)[HEADER_BYTES:] == data[HEADER_BYTES:]


@pytest.mark.parametrize("commit", [True, False])
def test_markers_say_how_a_transaction_ended(commit):
    """A marker contains producer, epoch and outcome, and is not decoded as a record."""
    data = encode_marker(
        commit, producer_id=7, producer_epoch=3, coordinator_epoch=5, timestamp_ms=99
    )
    header = parse_header(data)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert parse_marker(b"##" + data, 2) == Marker(0, 7, 3, commit, 5)
    assert decode_committed(encode_batch(sample_records(2)) + data) == sample_records(2)


def test_other_control_records_end_no_transaction():
    """Other control records and emptied control batches are not transaction markers."""
    leader_change = Record(0, 1, struct.pack(">hh", 0, 2), b"")
    assert parse_marker(encode_batch([leader_change], is_control=True)) is None
    assert parse_marker(encode_batch([], is_control=True)) is None


@pytest.mark.parametrize(("key", "value"), [(b"\0", b"\0" * 6), (b"\0\0\0\1", b"\0"), (None, None)])
def test_a_marker_cut_short_is_corrupt(key, value):
    """A marker with a valid checksum but truncated content is corrupt."""
    with pytest.raises(CorruptBatch):
        parse_marker(encode_batch([Record(0, 1, key, value)], is_control=True))


@pytest.mark.parametrize("lie", LIES)
def test_lies_behind_a_right_checksum_are_corruption(lie):
    """Invalid lengths, counts and deltas behind a valid checksum raise CorruptBatch."""
    with pytest.raises(CorruptBatch):
        decode_batch(LIES[lie])


def test_the_smallest_record_is_seven_bytes():
    """The smallest valid record, of seven bytes, is accepted."""
    assert decode_batch(batch_of(bytes.fromhex("0c 00 00 00 01 01 00"))) == [
        Record(0, -1, None, None)
    ]


@pytest.mark.parametrize("position", [0, 7])
def test_offsets_beyond_64_bits_are_corrupt(position):
    """The checksum does not cover the base offset, so its range is checked."""
    data = bytearray(encode_batch(sample_records(2)))
    struct.pack_into(">q", data, 0, [-1, 2**63 - 1][position == 7])
    with pytest.raises(CorruptBatch, match="offsets"):
        decode_batch(data)


def test_damage_is_reported_with_its_position():
    """The error distinguishes a truncated batch, a wrong checksum and another format."""
    data = encode_batch(sample_records(2))
    with pytest.raises(CorruptBatch, match="the header states"):
        decode_batch(data[:-1])
    with pytest.raises(CorruptBatch, match="checksum"):
        decode_batch(data[:-1] + b"\1")
    with pytest.raises(CorruptBatch, match="format v2"):
        decode_batch(bytes(100))
    with pytest.raises(CorruptBatch):
        decode_committed(data + bytes(61))


def test_a_bomb_stops_at_the_bound():
    """A compressed batch that exceeds ``size_max`` when decompressed is refused."""
    data = encode_batch([Record(0, 0, None, bytes(10_000_000))], codec=Codec.ZSTD)
    assert len(data) < 2000
    with pytest.raises(CorruptBatch, match="uncompressed"):
        decode_batch(data, size_max=1_000_000)
