"""Parses one record of a batch in plain Python; the reference for the kernels.

    record: length varint · attributes i8=0 · timestampDelta varlong · offsetDelta varint
            · keyLength varint (-1 = null) · key · valueLength varint (-1 = null) · value
            · headerCount varint · (keyLength varint · key · valueLength varint · value)*

``records`` decodes with it, ``validation`` checks with it. It checks every length, count and delta
before it uses it, and reads nothing outside the record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from cordwood.model import Header

RECORD_BYTES_MIN: Final = 7  # an empty record: one byte for each of its seven fields
HEADER_KEY_ERRORS: Final = "surrogateescape"  # a key that is not UTF-8 survives a rewrite
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10


class Fault(IntEnum):
    """What is wrong with the records of a batch; kernels return these numbers."""

    NONE = 0
    COUNT = 1
    LENGTH = 2
    FIELDS = 3
    DELTA = 4
    HEADERS = 5
    SHORT = 6
    LEFT_OVER = 7


FAULT_TEXTS: Final = {
    Fault.COUNT: "the batch cannot hold as many records as it states",
    Fault.LENGTH: "its length does not fit the batch",
    Fault.FIELDS: "its fields do not fit its length",
    Fault.DELTA: "its offset delta does not match its position in the batch",
    Fault.HEADERS: "its headers do not fit its length",
    Fault.SHORT: "its fields are shorter than its length",
    Fault.LEFT_OVER: "bytes are left over after it",
}


class BadRecord(Exception):  # never leaves cordwood.batch
    """A record that cannot be parsed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class ParsedRecord(NamedTuple):
    """A record's fields as stored, and the position after it."""

    end: int
    time_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def parse_record(
    body: bytes, position: int, end: int, first_delta: int, last_delta: int
) -> ParsedRecord:
    """Parse the record at ``position``; raises ``BadRecord``.

    Its offset delta must be in ``[first_delta, last_delta]``.
    """
    length, position = _read_number(body, position, end)
    if position < 0 or not RECORD_BYTES_MIN - 1 <= length <= end - position:
        raise BadRecord(Fault.LENGTH)
    record_end = position + length
    time_delta, position = _read_number(body, position + 1, record_end, _VARLONG_BYTES)
    if position < 0:
        raise BadRecord(Fault.FIELDS)
    delta, position = _read_number(body, position, record_end)
    if position < 0:
        raise BadRecord(Fault.FIELDS)
    if not first_delta <= delta <= last_delta:
        raise BadRecord(Fault.DELTA)
    key, position = _read_bytes(body, position, record_end, Fault.FIELDS)
    value, position = _read_bytes(body, position, record_end, Fault.FIELDS)
    headers: tuple[Header, ...] = ()
    if position < record_end and not body[position]:
        position += 1
    else:
        headers, position = _read_headers(body, position, record_end)
    if position != record_end:
        raise BadRecord(Fault.SHORT)
    return ParsedRecord(position, time_delta, delta, key, value, headers)


def _read_headers(body: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = _read_number(body, position, end)
    if position < 0 or not 0 <= count <= (end - position) // 2:
        raise BadRecord(Fault.HEADERS)
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position, end, Fault.HEADERS)
        if key is None:
            raise BadRecord(Fault.HEADERS)
        value, position = _read_bytes(body, position, end, Fault.HEADERS)
        headers.append(Header(key.decode("utf-8", HEADER_KEY_ERRORS), value))
    return tuple(headers), position


def _read_bytes(body: bytes, position: int, end: int, fault: Fault) -> tuple[bytes | None, int]:
    """Read a length (-1 = null) and as many bytes, which must end before ``end``."""
    length, position = _read_number(body, position, end)
    if position < 0 or not -1 <= length <= end - position:
        raise BadRecord(fault)
    if length < 0:
        return None, position
    return body[position : position + length], position + length


def _read_number(
    body: bytes, position: int, end: int, bytes_max: int = _VARINT_BYTES
) -> tuple[int, int]:
    """Read a zigzag varint and the position after it; position -1 if it is invalid."""
    if position < end and (byte := body[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number = shift = 0
    for at in range(position, min(end, position + bytes_max)):
        byte = body[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> (32 if bytes_max == _VARINT_BYTES else 64):
                return 0, -1
            return (number >> 1) ^ -(number & 1), at + 1
        shift += 7
    return 0, -1
