# mypy: ignore-errors
# ruff: noqa: PLR0917
# See ``llvm_intrinsics``: numba types these functions, not mypy.
"""Numba kernels over batch bytes: the loops that run once per batch or record.

The modules of ``batch`` call them through ``loader.kernels()``. Importing this module compiles or
loads every kernel (each has a fixed signature, so nothing compiles later): seconds the first time,
a few hundred milliseconds from numba's cache. All kernels release the GIL.

A kernel trusts no length, count or delta in the bytes: it checks before it reads, and returns a
negative number or a fault code for invalid input. It never allocates: the caller passes arrays of
the documented size.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cordwood.batch.kernels.lines import LINE_OVERHEAD, WIDE, count_lines, encode_lines
from cordwood.batch.kernels.llvm_intrinsics import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIME,
    BATCH_HEADER_BYTES,
    COUNT,
    CRC_START,
    INTS,
    LAST_DELTA,
    LEADER_EPOCH,
    LONG,
    LONGS,
    MAX_TIME,
    NOTES,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    READ,
    SEQUENCE,
    SIZE,
    SPANS,
    TABLE,
    TABLE_FIELDS,
    WRITE,
    copy_bytes,
    crc,
    crc_portable,
    kernel,
    load64,
    part,
    put_bytes,
    put_header,
    put_varint,
    read_int,
    read_varint,
    read_varlong,
    shared,
    varint_size,
)
from cordwood.batch.kernels.subscriber_lines import ROW_OVERHEAD, format_lines

__all__ = [
    "BASE_TIME",
    "LINE_OVERHEAD",
    "MAX_TIME",
    "PRODUCER_EPOCH",
    "PRODUCER_ID",
    "ROW_OVERHEAD",
    "SEQUENCE",
    "TABLE_FIELDS",
    "WIDE",
    "check_records",
    "count_batches",
    "count_lines",
    "crc32c",
    "crc32c_portable",
    "encode_batches",
    "encode_lines",
    "format_lines",
    "gather",
    "read_headers",
    "scan_headers",
    "scan_records",
]

INTRINSICS_DIGEST: Final = "4983e1410ea8df38"

END_CLEAN: Final = 0
END_TORN: Final = 1
END_CORRUPT: Final = 2

# The parts of a record that a scan locates.
WANT_TIME: Final = 1
WANT_KEY: Final = 2
WANT_VALUE: Final = 4
WANT_HEADERS: Final = 8

RECORD_OVERHEAD: Final = 36  # at most: the numbers of a record without headers
HEADER_OVERHEAD: Final = 10  # at most: the two lengths of one header
_RECORD_MIN: Final = 7
APPEND_TIME: Final = 8

# What is wrong with a body, numbered as in ``validation.Fault``.
FAULT_COUNT: Final = 1
FAULT_LENGTH: Final = 2
FAULT_FIELDS: Final = 3
FAULT_DELTA: Final = 4
FAULT_HEADERS: Final = 5
FAULT_SHORT: Final = 6
FAULT_LEFT_OVER: Final = 7


@kernel(READ, LONG, LONG)
def crc32c(data: Any, start: int, end: int) -> int:
    """CRC-32C of a range, with the CPU instruction where available."""
    return crc(data, start, end)


@kernel(READ, LONG, LONG)
def crc32c_portable(data: Any, start: int, end: int) -> int:
    """The same without the CPU instruction; separate, so that tests can call it on any machine."""
    return crc_portable(data, start, end)


# --- batches --------------------------------------------------------------------------------


@kernel(READ, LONGS)
def count_batches(data: Any, result: Any) -> int:
    """The number of complete frames; ``result``: bytes they fill, and how the bytes end."""
    position = np.int64(0)
    count = np.int64(0)
    end = len(data)
    result[1] = END_CLEAN
    while position < end:
        if end - position < BATCH_HEADER_BYTES:
            result[1] = END_TORN
            break
        length = read_int(data, position + 8, 4)
        if length < BATCH_HEADER_BYTES - 12 or data[position + 16] != 2:
            result[1] = END_CORRUPT
            break
        if length + 12 > end - position:
            result[1] = END_TORN
            break
        position += length + 12
        count += 1
    result[0] = position
    return count


@kernel(READ, LONG, TABLE)
def read_headers(data: Any, verify: int, table: Any) -> int:
    """Fill the table with as many batches as ``count_batches`` counted; stop at a bad checksum."""
    position = np.int64(0)
    for batch in range(len(table)):
        size = read_int(data, position + 8, 4) + 12
        if verify:
            stated = read_int(data, position + 17, 4) & 0xFFFFFFFF
            if crc(data, position + CRC_START, position + size) != stated:
                return batch
        table[batch, POSITION] = position
        table[batch, SIZE] = size
        table[batch, BASE_OFFSET] = read_int(data, position, 8)
        table[batch, LEADER_EPOCH] = read_int(data, position + 12, 4)
        table[batch, ATTRIBUTES] = read_int(data, position + 21, 2)
        table[batch, LAST_DELTA] = read_int(data, position + 23, 4)
        table[batch, BASE_TIME] = read_int(data, position + 27, 8)
        table[batch, MAX_TIME] = read_int(data, position + 35, 8)
        table[batch, PRODUCER_ID] = read_int(data, position + 43, 8)
        table[batch, PRODUCER_EPOCH] = read_int(data, position + 51, 2)
        table[batch, SEQUENCE] = read_int(data, position + 53, 4)
        table[batch, COUNT] = read_int(data, position + 57, 4)
        position += size
    return len(table)


# --- batches → columns ----------------------------------------------------------------------


@part
def _read_length(data: Any, position: int, end: int) -> tuple[int, int]:
    """Read a length (-1 = null) that fits before ``end``; position -1 if it is invalid."""
    length, position = read_varint(data, position, end)
    if position < 0 or length < -1 or length > end - position:
        return np.int64(0), -1
    return length, position


@shared
def _skip_headers(data: Any, position: int, end: int, count: int) -> int:
    """Skip ``count`` headers; -1 if they are invalid."""
    for _ in range(count):
        length, position = _read_length(data, position, end)
        if position < 0 or length < 0:
            return -1
        length, position = _read_length(data, position + length, end)
        if position < 0:
            return -1
        position += max(length, 0)
    return position


@kernel(READ, TABLE, LONGS, LONGS, LONG, LONG, LONGS, LONG, LONGS, LONGS, INTS, NOTES, NOTES, NOTES)
def scan_records(
    data: Any,
    table: Any,
    starts: Any,
    ends: Any,
    start_offset: int,
    end_offset: int,
    skipped: Any,
    wanted: int,
    offsets: Any,
    times: Any,
    batches: Any,
    keys: Any,
    values: Any,
    headers: Any,
) -> int:
    """Locate the wanted parts of each record; returns the number of rows, or -1 - bad batch.

    Records outside [start_offset, end_offset) and those at ``skipped`` offsets, which ascend like
    the records, are left out. ``offsets`` and ``batches`` (the row of the table) have space for
    every record that the headers count; the other arrays too if they are wanted.
    """
    row = np.int64(0)
    skip = np.int64(0)
    for batch in range(len(table)):
        position = starts[batch]
        end = ends[batch]
        base = table[batch, BASE_OFFSET]
        is_append_time = table[batch, ATTRIBUTES] & APPEND_TIME
        count = table[batch, COUNT]
        if count < 0 or count > (end - position) // _RECORD_MIN:
            return -1 - batch
        last_delta = np.int64(-1)
        for _ in range(count):
            length, position = read_varint(data, position, end)
            if position < 0 or length < _RECORD_MIN - 1 or length > end - position:
                return -1 - batch
            record_end = position + length
            time_delta, position = read_varlong(data, position + 1, record_end)
            if position < 0:
                return -1 - batch
            delta, position = read_varint(data, position, record_end)
            if position < 0 or delta <= last_delta or delta > table[batch, LAST_DELTA]:
                return -1 - batch
            last_delta = delta
            offset = base + delta
            while skip < len(skipped) and skipped[skip] < offset:
                skip += 1
            if (
                offset < start_offset
                or offset >= end_offset
                or (skip < len(skipped) and skipped[skip] == offset)
            ):
                position = record_end
                continue
            offsets[row] = offset
            batches[row] = batch
            if wanted & WANT_TIME:
                if is_append_time:
                    times[row] = table[batch, MAX_TIME]
                else:
                    times[row] = table[batch, BASE_TIME] + time_delta
            if wanted & (WANT_KEY | WANT_VALUE | WANT_HEADERS):
                length, position = _read_length(data, position, record_end)
                if position < 0:
                    return -1 - batch
                if wanted & WANT_KEY:
                    keys[0][row] = position
                    keys[1][row] = length
                position += max(length, 0)
            if wanted & (WANT_VALUE | WANT_HEADERS):
                length, position = _read_length(data, position, record_end)
                if position < 0:
                    return -1 - batch
                if wanted & WANT_VALUE:
                    values[0][row] = position
                    values[1][row] = length
                position += max(length, 0)
            if wanted & WANT_HEADERS:
                header_count, position = read_varint(data, position, record_end)
                if position < 0 or header_count < 0 or header_count > (record_end - position) // 2:
                    return -1 - batch
                headers[0][row] = position
                headers[1][row] = header_count
                if _skip_headers(data, position, record_end, header_count) != record_end:
                    return -1 - batch
            position = record_end
            row += 1
        if position != end:
            return -1 - batch
    return row


@kernel(SPANS, NOTES, NOTES)
def scan_headers(headers: Any, names: Any, contents: Any) -> int:
    """Locate the headers that ``scan_records`` has checked; returns how many there are."""
    data, starts, counts = headers
    end = len(data)
    header = np.int64(0)
    for row in range(len(starts)):
        position = starts[row]
        for _ in range(counts[row]):
            length, position = _read_length(data, position, end)
            names[0][header] = position
            names[1][header] = length
            position += length
            length, position = _read_length(data, position, end)
            contents[0][header] = position
            contents[1][header] = length
            position += max(length, 0)
            header += 1
    return header


@kernel(SPANS, WRITE, INTS, WRITE)
def gather(spans: Any, out: Any, ends: Any, valid: Any) -> int:
    """Gather spans for Arrow: bytes, n + 1 offsets, a validity bitmap; returns the null count."""
    data, starts, lengths = spans
    position = np.int64(0)
    nulls = np.int64(0)
    ends[0] = 0
    for row in range(len(starts)):
        length = np.int64(lengths[row])
        if length < 0:
            nulls += 1
        else:
            valid[row >> 3] |= np.uint8(1 << (row & 7))
            position = copy_bytes(out, position, data, starts[row], length)
        ends[row + 1] = position
    return nulls


@part
def _read_short(data: Any, position: int, end: int, data_end: int) -> tuple[int, int]:
    """Like ``read_varint``, with a single load for a number of one or two bytes."""
    if data_end - position >= 8:
        word = load64(data, position)
        if not word & np.uint64(0x80):
            number = word & np.uint64(0x7F)
            position += 1
        elif not word & np.uint64(0x8000):
            number = (word & np.uint64(0x7F)) | ((word >> np.uint64(1)) & np.uint64(0x3F80))
            position += 2
        else:
            return read_varint(data, position, end)
        if position > end:
            return np.int64(0), -1
        return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1)), position
    return read_varint(data, position, end)


@kernel(READ, LONG, LONG, LONG, LONG, LONGS)
def check_records(
    data: Any, position: int, end: int, count: int, base_time: int, found: Any
) -> int:
    """Check that ``data[position:end]`` is ``count`` records whose offset deltas run from 0.

    Returns 0 or the fault. ``found``: the last record checked, the oldest and the newest timestamp,
    and the first record without a key (-1 if all have one).
    """
    found[0] = 0
    found[3] = -1
    if count < 1 or count > (end - position) // _RECORD_MIN:
        return FAULT_COUNT
    oldest = np.int64(0x7FFFFFFFFFFFFFFF)
    newest = -oldest - 1
    for record in range(count):
        found[0] = record
        length, position = _read_short(data, position, end, end)
        if position < 0 or length < _RECORD_MIN - 1 or length > end - position:
            return FAULT_LENGTH
        record_end = position + length
        position += 1
        if end - position >= 8 and not load64(data, position) & np.uint64(0x80):
            time_delta, position = _read_short(data, position, record_end, end)
        else:
            time_delta, position = read_varlong(data, position, record_end)
        if position < 0:
            return FAULT_FIELDS
        delta, position = _read_short(data, position, record_end, end)
        if position < 0:
            return FAULT_FIELDS
        if delta != record:
            return FAULT_DELTA
        length, position = _read_short(data, position, record_end, end)
        if position < 0 or length < -1 or length > record_end - position:
            return FAULT_FIELDS
        if length < 0 and found[3] < 0:
            found[3] = record
        position += max(length, 0)
        length, position = _read_short(data, position, record_end, end)
        if position < 0 or length < -1 or length > record_end - position:
            return FAULT_FIELDS
        position += max(length, 0)
        headers, position = _read_short(data, position, record_end, end)
        if position < 0 or headers < 0 or headers > (record_end - position) // 2:
            return FAULT_HEADERS
        if headers:
            position = _skip_headers(data, position, record_end, headers)
            if position < 0:
                return FAULT_HEADERS
        if position != record_end:
            return FAULT_SHORT
        time = base_time + time_delta
        oldest = min(oldest, time)
        newest = max(newest, time)
    found[1] = oldest
    found[2] = newest
    return 0 if position == end else FAULT_LEFT_OVER


# --- columns → batches ----------------------------------------------------------------------


@part
def _span_size(spans: Any, row: int) -> int:
    length = np.int64(spans[2][row])
    return varint_size(length) + max(length, 0)


@part
def _put_span(out: Any, position: int, spans: Any, row: int) -> int:
    return put_bytes(out, position, spans[0], spans[1][row], np.int64(spans[2][row]))


@kernel(TABLE, LONGS, LONGS, SPANS, SPANS, LONGS, SPANS, SPANS, WRITE)
def encode_batches(
    table: Any,
    offsets: Any,
    times: Any,
    keys: Any,
    values: Any,
    header_rows: Any,
    names: Any,
    contents: Any,
    out: Any,
) -> int:
    """Write each batch of the table with its COUNT rows, uncompressed; returns the bytes written.

    Sets POSITION, SIZE and (unless append time, or empty) MAX_TIME in the table. The headers of row
    ``r`` are ``header_rows[r]`` up to ``header_rows[r + 1]``. ``out`` has space for the spans and
    the overheads defined above.
    """
    row = np.int64(0)
    position = np.int64(0)
    for batch in range(len(table)):
        start = position
        position += BATCH_HEADER_BYTES
        newest = times[row] if table[batch, COUNT] else table[batch, MAX_TIME]
        for _ in range(table[batch, COUNT]):
            time_delta = times[row] - table[batch, BASE_TIME]
            delta = offsets[row] - table[batch, BASE_OFFSET]
            headers = header_rows[row + 1] - header_rows[row]
            length = 1 + varint_size(time_delta) + varint_size(delta) + varint_size(headers)
            length += _span_size(keys, row) + _span_size(values, row)
            for header in range(header_rows[row], header_rows[row + 1]):
                length += _span_size(names, header) + _span_size(contents, header)
            position = put_varint(out, position, length)
            out[position] = 0
            position = put_varint(out, position + 1, time_delta)
            position = put_varint(out, position, delta)
            position = _put_span(out, position, keys, row)
            position = _put_span(out, position, values, row)
            position = put_varint(out, position, headers)
            for header in range(header_rows[row], header_rows[row + 1]):
                position = _put_span(out, position, names, header)
                position = _put_span(out, position, contents, header)
            newest = max(newest, times[row])
            row += 1
        if not table[batch, ATTRIBUTES] & APPEND_TIME:
            table[batch, MAX_TIME] = newest
        table[batch, POSITION] = start
        table[batch, SIZE] = position - start
        put_header(out, start, position, table, batch)
    return position
