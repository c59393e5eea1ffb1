"""Batch headers: what is checked, what is patched, and what stays unchanged."""

import struct

import pytest

from cordwood.batch.header import (
    BatchHeader,
    check_batches,
    crc32c,
    parse_header,
    parse_headers,
    patch,
    seal,
    stamp_append_time,
)
from cordwood.batch.records import decode_batch, encode_batch, encode_marker
from cordwood.errors import BatchTooLarge, CorruptBatch, InvalidRecord, UnsupportedCompression
from cordwood.model import Codec, TimestampType
from support.batches import sample_records

LIMIT = 1 << 20


def altered(position: int, layout: str, value: int) -> bytearray:
    """Return a batch with one changed field and a valid checksum."""
    data = bytearray(
        encode_batch(sample_records(3), producer_id=7, producer_epoch=0, base_sequence=5)
    )
    struct.pack_into(layout, data, position, value)
    seal(data, 0, len(data))
    return data


def test_crc_is_castagnoli():
    """The checksum is CRC-32C, by its published check value."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283


def test_header_properties_say_what_the_fields_mean():
    """A header's properties give the offsets, codec, flags and sequences of its fields."""
    header = parse_header(
        encode_batch(
            sample_records(4, start=10),
            codec=Codec.LZ4,
            timestamp_type=TimestampType.APPEND,
            last_offset_delta=9,
            producer_id=7,
            producer_epoch=2,
            base_sequence=2**31 - 3,
            leader_epoch=6,
            is_transactional=True,
            delete_horizon_ms=99,
        )
    )
    assert (header.base_offset, header.last_offset, header.end_offset) == (10, 19, 20)
    assert (header.codec, header.timestamp_type) == (Codec.LZ4, TimestampType.APPEND)
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (1, 0, 1)
    assert (header.base_timestamp_ms, header.count, header.leader_epoch) == (99, 4, 6)
    assert header.last_sequence == 6, "sequences wrap to 0 after 2**31 - 1"


def test_a_batch_nobody_numbered_has_no_last_sequence():
    """A batch without a producer has the last sequence -1."""
    assert parse_header(encode_batch(sample_records(3))).last_sequence == -1


def test_batches_cut_from_a_socket_buffer_are_checked_in_place():
    """``check_batches`` accepts a memoryview into a larger buffer and returns every header."""
    first, second = (
        encode_batch(sample_records(3)),
        encode_batch(sample_records(2), codec=Codec.ZSTD),
    )
    buffer = bytearray(b"request" + first + second + b"next")
    headers = check_batches(memoryview(buffer)[7:-4], LIMIT)
    assert headers == [parse_header(first), parse_header(second)]
    assert headers == parse_headers(first + second)


def test_no_bytes_are_no_batches():
    """No bytes give no headers."""
    assert check_batches(b"", LIMIT) == []


@pytest.mark.parametrize("kept", [1, 11, 60, 61, 90])
def test_a_batch_cut_short_is_corrupt(kept):
    """A truncated batch is corrupt, whether the cut is in the header or after it."""
    with pytest.raises(CorruptBatch):
        check_batches(encode_batch(sample_records(3))[:kept], LIMIT)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_a_length_that_cannot_be_is_corrupt(length):
    """A length below the header's size or past the end of the data is corrupt."""
    with pytest.raises(CorruptBatch):
        check_batches(altered(8, ">i", length), 2**32)


def test_old_message_formats_are_refused_for_good():
    """Older message formats raise InvalidRecord, which clients do not retry."""
    with pytest.raises(InvalidRecord, match="format v1"):
        check_batches(altered(16, ">b", 1), LIMIT)
    with pytest.raises(CorruptBatch, match="unknown format 9"):
        check_batches(altered(16, ">b", 9), LIMIT)


def test_a_batch_above_the_limit_is_too_large_by_one_byte():
    """The size limit is inclusive, and the error names it."""
    data = encode_batch(sample_records(3))
    assert check_batches(data, len(data))
    with pytest.raises(BatchTooLarge, match=f"max.message.bytes is {len(data) - 1}"):
        check_batches(data, len(data) - 1)


def test_a_wrong_checksum_is_corrupt():
    """One flipped bit in the records is detected by the checksum."""
    data = bytearray(encode_batch(sample_records(3)))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        check_batches(data, LIMIT)


@pytest.mark.parametrize(
    ("position", "layout", "value", "says"),
    [
        (57, ">i", 4, "4 records"),
        (57, ">i", 0, "0 records"),
        (57, ">i", -1, "-1 records"),
        (23, ">i", 7, "up to 7"),
        (21, ">h", 0x20, "control"),
        (21, ">h", 0x40, "delete horizon"),
        (53, ">i", -1, "epoch and a sequence"),
        (51, ">h", -1, "epoch and a sequence"),
    ],
)
def test_what_no_client_may_claim_is_refused(position, layout, value, says):
    """A client's batch with an invalid count, offset, flag or producer field is rejected."""
    with pytest.raises(InvalidRecord, match=says):
        check_batches(altered(position, layout, value), LIMIT)


def test_a_codec_nobody_defined_is_refused_as_such():
    """An unknown codec raises UnsupportedCompression."""
    with pytest.raises(UnsupportedCompression, match="unknown codec 5"):
        check_batches(altered(21, ">h", 5), LIMIT)


def test_a_transaction_without_producer_is_refused():
    """A transactional batch without a producer ID is rejected."""
    with pytest.raises(InvalidRecord, match="producer id"):
        check_batches(encode_batch(sample_records(1), is_transactional=True), LIMIT)


def test_clients_may_not_write_markers():
    """Transaction markers from clients are rejected."""
    marker = encode_marker(
        True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    with pytest.raises(InvalidRecord):
        check_batches(marker, LIMIT)


def test_patching_keeps_the_checksum_right():
    """Patching base offset and leader epoch keeps the checksum valid, as it does not cover them."""
    records = sample_records(3)
    data = bytearray(b"##" + encode_batch(records))
    patch(data, 2, 1000, 42)
    header = check_batches(memoryview(data)[2:], LIMIT)[0]
    assert (header.base_offset, header.leader_epoch) == (1000, 42)
    assert [record.offset for record in decode_batch(data, 2)] == [1000, 1001, 1002]
    assert [record.value for record in decode_batch(data, 2)] == [r.value for r in records]


def test_append_time_is_what_every_record_then_has():
    """Stamping the append time changes the header and the time of every record."""
    data = bytearray(encode_batch(sample_records(3)))
    stamp_append_time(data, 0, 12_345)
    header = check_batches(data, LIMIT)[0]
    assert (header.timestamp_type, header.max_timestamp_ms) == (TimestampType.APPEND, 12_345)
    assert [record.timestamp_ms for record in decode_batch(data)] == [12_345] * 3


def test_an_unknown_codec_has_no_name():
    """Undefined codec bits are reported as corruption."""
    header = parse_header(altered(21, ">h", 6))
    assert isinstance(header, BatchHeader)
    with pytest.raises(CorruptBatch, match="unknown codec 6"):
        _ = header.codec


def test_headers_of_batches_that_are_not_whole_are_refused():
    """``parse_headers`` refuses truncated data and invalid lengths, and names the position."""
    first, second = encode_batch(sample_records(2)), encode_batch(sample_records(2, start=2))
    data = first + second
    for end in range(1, len(data)):
        if end != len(first):
            with pytest.raises(CorruptBatch, match=f"position (0|{len(first)})"):
                parse_headers(data[:end])
    for length in (-(2**31), -12, 0, 48, 2**31 - 1):
        wrong = bytearray(data)
        struct.pack_into(">i", wrong, len(first) + 8, length)
        with pytest.raises(CorruptBatch, match=f"position {len(first)}"):
            parse_headers(wrong)
