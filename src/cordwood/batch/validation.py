"""Checks that the records of a batch can be decoded before a broker stores them.

A checksum proves that bytes arrived as they were sent, not that they are valid records. A batch
that no reader can decode would block every consumer of its partition for ever. The check therefore
covers the whole body: count, lengths, fields, headers, offset deltas 0, 1, 2, …, and no bytes left
over.

Two implementations agree on every body: a numba kernel, and plain Python until the kernels are
loaded, which small batches alone do not trigger. A compressed body is decompressed completely, up
to a limit that the caller sets. Nothing here changes a byte.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from cordwood.batch.compression import inflate
from cordwood.batch.header import CODEC_BITS, HEADER_BYTES, BatchHeader, Buffer
from cordwood.batch.kernels.loader import kernels, kernels_ready, load_kernels_soon
from cordwood.batch.records import RECORD_BYTES_MIN
from cordwood.errors import CorruptBatch, InvalidRecord
from cordwood.model import Codec

WARM_RECORDS: Final = 16  # a batch of this size triggers loading of the kernels
_INT64_END: Final = 2**63
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10


class Fault(IntEnum):
    """What is wrong with a body; the kernel returns these numbers."""

    NONE = 0
    COUNT = 1
    LENGTH = 2
    FIELDS = 3
    DELTA = 4
    HEADERS = 5
    SHORT = 6
    LEFT_OVER = 7


_TEXTS: Final = {
    Fault.COUNT: "the batch cannot hold as many records as it states",
    Fault.LENGTH: "its length does not fit the batch",
    Fault.FIELDS: "its fields do not fit its length",
    Fault.DELTA: "its offset delta is not its place in the batch",
    Fault.HEADERS: "its headers do not fit its length",
    Fault.SHORT: "its fields end before its length does",
    Fault.LEFT_OVER: "bytes are left over behind it",
}


class BodyCheck(NamedTuple):
    """The result of checking the records of one batch."""

    fault: Fault
    record: int  # where the check ended: the invalid record, or the last one
    oldest_ms: int = 0
    newest_ms: int = 0
    keyless: int = -1  # the first record without a key; -1 if all have one


def check_body(
    data: Buffer, position: int, header: BatchHeader, inflated_bytes_max: int
) -> BodyCheck | None:
    """Check the records of the batch at ``position``, whose header and checksum are valid.

    Raises ``InvalidRecord`` for undecodable records: as the checksum is valid, a retry would not
    help. Returns None if the records may inflate past ``inflated_bytes_max``.
    """
    body: Buffer = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
    number = header.attributes & CODEC_BITS
    if number:
        try:
            inflated = inflate(Codec(number), body, inflated_bytes_max)
        except CorruptBatch as error:
            raise InvalidRecord(f"batch at position {position}: {error}") from None
        if inflated is None:
            return None
        body = inflated
    walked = walk_records(body, header.count, header.base_timestamp_ms)
    if walked.fault:
        raise InvalidRecord(
            f"batch at position {position}: record {walked.record} of {header.count} cannot be "
            f"read: {_TEXTS[walked.fault]}"
        )
    return walked


def walk_records(body: Buffer, count: int, base_timestamp_ms: int) -> BodyCheck:
    """Use the kernel once it is loaded: a call costs no more than one record in plain Python."""
    if kernels_ready():
        return walk_by_kernel(body, count, base_timestamp_ms)
    if count >= WARM_RECORDS:
        load_kernels_soon()
    return walk_plainly(body, count, base_timestamp_ms)


def walk_by_kernel(body: Buffer, count: int, base_timestamp_ms: int) -> BodyCheck:
    """Check with the kernel, and load it if necessary; releases the GIL."""
    import numpy as np

    from cordwood.batch.header_table import readonly

    found = np.empty(4, np.int64)
    bytes_ = readonly(body)
    fault = kernels().check_records(bytes_, 0, len(bytes_), count, base_timestamp_ms, found)
    if fault:
        return BodyCheck(Fault(fault), int(found[0]))
    return BodyCheck(Fault.NONE, *found.tolist())


def walk_plainly(body: Buffer, count: int, base_timestamp_ms: int) -> BodyCheck:
    """Check in plain Python; the reference for the kernel."""
    data = bytes(body)
    end = len(data)
    if not 1 <= count <= end // RECORD_BYTES_MIN:
        return BodyCheck(Fault.COUNT, 0)
    oldest, newest, keyless = _INT64_END - 1, -_INT64_END, -1
    position = 0
    for record in range(count):
        length, position = _read_number(data, position, end)
        if position < 0 or not RECORD_BYTES_MIN - 1 <= length <= end - position:
            return BodyCheck(Fault.LENGTH, record)
        record_end = position + length
        time_delta, position = _read_number(data, position + 1, record_end, _VARLONG_BYTES)
        if position < 0:
            return BodyCheck(Fault.FIELDS, record)
        delta, position = _read_number(data, position, record_end)
        if position < 0:
            return BodyCheck(Fault.FIELDS, record)
        if delta != record:
            return BodyCheck(Fault.DELTA, record)
        length, position = _read_length(data, position, record_end)
        if position < 0:
            return BodyCheck(Fault.FIELDS, record)
        if length < 0:
            keyless = record if keyless < 0 else keyless
        else:
            position += length
        length, position = _read_length(data, position, record_end)
        if position < 0:
            return BodyCheck(Fault.FIELDS, record)
        position = _skip_headers(data, position + max(length, 0), record_end)
        if position < 0:
            return BodyCheck(Fault.HEADERS, record)
        if position != record_end:
            return BodyCheck(Fault.SHORT, record)
        time_ms = (base_timestamp_ms + time_delta + _INT64_END) % (2 * _INT64_END) - _INT64_END
        oldest, newest = min(oldest, time_ms), max(newest, time_ms)
    fault = Fault.NONE if position == end else Fault.LEFT_OVER
    return BodyCheck(fault, record) if fault else BodyCheck(fault, record, oldest, newest, keyless)


def _skip_headers(data: bytes, position: int, end: int) -> int:
    """The position after a record's headers; -1 if they are invalid."""
    if position < end and not data[position]:
        return position + 1
    count, position = _read_number(data, position, end)
    if position < 0 or not 0 <= count <= (end - position) // 2:
        return -1
    for _ in range(count):
        length, position = _read_length(data, position, end)
        if position < 0 or length < 0:
            return -1
        length, position = _read_length(data, position + length, end)
        if position < 0:
            return -1
        position += max(length, 0)
    return position


def _read_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a length (-1 = null) that fits before ``end``; position -1 if it is invalid."""
    if position < end and (byte := data[position]) < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = _read_number(data, position, end)
    if position < 0 or not -1 <= length <= end - position:
        return 0, -1
    return length, position


def _read_number(
    data: bytes, position: int, end: int, bytes_max: int = _VARINT_BYTES
) -> tuple[int, int]:
    """Read a zigzag varint and the position after it; position -1 if it is invalid."""
    if position < end and (byte := data[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number = shift = 0
    for at in range(position, min(end, position + bytes_max)):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> (32 if bytes_max == _VARINT_BYTES else 64):
                return 0, -1
            return (number >> 1) ^ -(number & 1), at + 1
        shift += 7
    return 0, -1
