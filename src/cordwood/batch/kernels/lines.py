# mypy: ignore-errors
# ruff: noqa: PLR0917
# See ``llvm_intrinsics``: numba types these functions, not mypy.
"""The numba kernel that encodes ingress lines as batches; ``batch.lines`` defines a line.

As in ``batches``: a fixed signature, no allocation, and the GIL is released. The plain-Python
implementation in ``batch.lines`` gives the same bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cordwood.batch.kernels.llvm_intrinsics import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    COUNT,
    LAST_DELTA,
    LONG,
    LONGS,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    READ,
    SEQUENCE,
    TABLE,
    WRITE,
    copy32,
    copy_bytes,
    count_bits,
    kernel,
    load64,
    match32,
    part,
    put_header,
    put_varint,
    shared,
    trailing_zeros,
    varint_size,
)

INTRINSICS_DIGEST: Final = "4983e1410ea8df38"

# Why a line was rejected; ``REASONS`` in ``batch.lines`` has the texts.
LINE_FIELDS: Final = 1
LINE_KEY_EMPTY: Final = 2
LINE_KEY_LONG: Final = 3
LINE_KEY_CONTROL: Final = 4
LINE_TIMESTAMP: Final = 5
LINE_NUMBER: Final = 6

# Columns of the table of blocks: the inputs, then the results.
BLOCK_END: Final = 0  # in the chunk
BLOCK_PRODUCER_ID: Final = 1
BLOCK_PRODUCER_EPOCH: Final = 2
BLOCK_LAST_N: Final = 3  # the newest n, before and after; -1 for none
BLOCK_OUT_END: Final = 4  # in the output
BLOCK_RECORDS: Final = 5
BLOCK_REFUSED: Final = 6
BLOCK_DUPLICATES: Final = 7

KEY_BYTES_MAX: Final = 249
LINE_OVERHEAD: Final = 40  # at most: the bytes a record adds to its line
WIDE: Final = 32  # bytes compared or copied at a time
_SEQUENCES: Final = 2**31
_NEWLINE: Final = 10
_RETURN: Final = 13
_BAR: Final = 124
_ONES: Final = np.uint64(0x0101010101010101)
_TENTH: Final = (2**63 - 1) // 10
_TENS: Final = np.uint64(0xF0F0F0F0F0F0F0F0)
_ZEROS: Final = np.uint64(0x3030303030303030)
_SIXES: Final = np.uint64(0x0606060606060606)
_SPACES: Final = np.uint64(0x2020202020202020)
_DELETES: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGHS: Final = np.uint64(0x8080808080808080)


@part
def _find(data: Any, start: int, end: int, byte: int) -> int:
    """The first position of ``byte``, or ``end``: 32 bytes at a time while available, then 8.

    It may read past ``end``, within the data, but ignores matches there.
    """
    position = start
    size = len(data)
    while position < end and position + WIDE <= size:
        found = match32(data, position, np.uint8(byte))
        if found:
            return min(position + trailing_zeros(found), end)
        position += WIDE
    pattern = np.uint64(byte) * _ONES
    while position < end and position + 8 <= size:
        word = load64(data, position) ^ pattern
        zeros = (word - _ONES) & ~word & _HIGHS  # the lowest bit set marks the first zero byte
        if zeros:
            return min(position + (trailing_zeros(zeros) >> 3), end)
        position += 8
    while position < end and data[position] != byte:
        position += 1
    return min(position, end)


@part
def _read_decimal(data: Any, start: int, end: int) -> int:
    """The number that the digits represent, up to 2**63 - 1; -1 if it is larger."""
    number = np.int64(0)
    for position in range(start, end):
        digit = np.int64(data[position]) - 48
        if number > _TENTH or (number == _TENTH and digit > 7):
            return np.int64(-1)
        number = number * 10 + digit
    return number


@part
def _is_decimal(data: Any, start: int, end: int) -> bool:
    """Whether the range contains only digits of a number below 2**63."""
    position = start
    while position + 8 <= end:
        word = load64(data, position)
        if (word & _TENS) != _ZEROS or ((word + _SIXES) & _TENS) != _ZEROS:
            return False
        position += 8
    while position < end:
        if data[position] < 48 or data[position] > 57:
            return False
        position += 1
    return start < end and (end - start <= 18 or _read_decimal(data, start, end) >= 0)


@part
def _check_key(data: Any, start: int, end: int) -> int:
    if start == end:
        return LINE_KEY_EMPTY
    if end - start > KEY_BYTES_MAX:
        return LINE_KEY_LONG
    position = start
    while position + 8 <= end:
        word = load64(data, position)
        deletes = word ^ _DELETES
        if ((word - _SPACES) & ~word | (deletes - _ONES) & ~deletes) & _HIGHS:
            return LINE_KEY_CONTROL
        position += 8
    while position < end:
        if data[position] < 32 or data[position] == 127:
            return LINE_KEY_CONTROL
        position += 1
    return 0


@part
def _check_line(chunk: Any, first: int, bars: Any, stop: int) -> int:
    """0, or why ``chunk[first:stop]`` with separators at ``bars`` is invalid."""
    if bars[2] == stop:
        return LINE_FIELDS
    reason = _check_key(chunk, first, bars[0])
    if reason != 0:
        return reason
    if not _is_decimal(chunk, bars[0] + 1, bars[1]):
        return LINE_TIMESTAMP
    if not _is_decimal(chunk, bars[1] + 1, bars[2]):
        return LINE_NUMBER
    return 0


@part
def _line_size(first: int, bars: Any, stop: int) -> int:
    """The size of a line's record, without its length and offset delta."""
    key = bars[0] - first
    time = bars[1] - bars[0] - 1
    n = bars[2] - bars[1] - 1
    value = stop - bars[2] - 1
    return (
        8  # attributes, timestamp delta, header count and the two header names
        + varint_size(key) + key + varint_size(time) + time
        + varint_size(n) + n + varint_size(value) + value
    )  # fmt: skip


@part
def _put_text(out: Any, position: int, chunk: Any, start: int, length: int) -> int:
    """Write a length and that many bytes of the chunk; may overwrite ``out`` beyond them.

    Like ``put_bytes``, but copies short fields 32 bytes at a time. That is why ``out`` has WIDE
    spare bytes, and why fields must be written in order.
    """
    if length < 64:
        out[position] = 2 * length
        position += 1
    else:
        position = put_varint(out, position, length)
    end = position + length
    if length > 128 or start + length + WIDE > len(chunk):
        return copy_bytes(out, position, chunk, start, length)
    while position < end:
        copy32(out, position, chunk, start)
        position += WIDE
        start += WIDE
    return end


@part
def _put_line(out: Any, position: int, length: int, delta: int, line: Any) -> int:
    chunk, first, bars, stop = line
    position = put_varint(out, position, length)
    out[position] = 0
    out[position + 1] = 0
    position = put_varint(out, position + 2, delta)
    position = _put_text(out, position, chunk, first, bars[0] - first)
    position = _put_text(out, position, chunk, bars[2] + 1, stop - bars[2] - 1)
    out[position] = 4  # two headers
    out[position + 1] = 4  # a name of two bytes: ts
    out[position + 2] = 116
    out[position + 3] = 115
    position = _put_text(out, position + 4, chunk, bars[0] + 1, bars[1] - bars[0] - 1)
    out[position] = 2  # a name of one byte: n
    out[position + 1] = 110
    return _put_text(out, position + 2, chunk, bars[1] + 1, bars[2] - bars[1] - 1)


@shared
def _end_batch(out: Any, start: int, end: int, table: Any) -> None:
    """Write the header of the open batch, and prepare the table's row for the next one."""
    table[0, LAST_DELTA] = table[0, COUNT] - 1
    put_header(out, start, end, table, 0)
    table[0, BASE_OFFSET] += table[0, COUNT]
    table[0, COUNT] = 0


@shared
def _encode_block(
    chunk: Any,
    block: Any,
    batch_bytes_max: int,
    table: Any,
    out: Any,
    start: int,
    rejected: Any,
) -> int:
    """Write the batches of one block from ``out[start]`` on; returns where they end."""
    counts = block[BLOCK_PRODUCER_ID] >= 0
    last_n = block[BLOCK_LAST_N]
    end = len(chunk)
    line = np.int64(0)
    position = start  # ``start`` is where the open batch starts
    refused = np.int64(0)
    duplicates = np.int64(0)
    while line < end:
        newline = _find(chunk, line, end, _NEWLINE)
        first, stop, line = line, newline, newline + 1
        if stop > first and chunk[stop - 1] == _RETURN:
            stop -= 1
        if stop == first:
            continue
        bar1 = _find(chunk, first, stop, _BAR)
        bar2 = _find(chunk, min(bar1 + 1, stop), stop, _BAR)
        bar3 = _find(chunk, min(bar2 + 1, stop), stop, _BAR)
        bars = (bar1, bar2, bar3)
        reason = _check_line(chunk, first, bars, stop)
        if reason != 0:
            rejected[3 * refused] = first
            rejected[3 * refused + 1] = newline
            rejected[3 * refused + 2] = reason
            refused += 1
            continue
        follows = True
        n = np.int64(-1)
        if counts:
            n = _read_decimal(chunk, bar2 + 1, bar3)
            distance = (n - last_n) & (_SEQUENCES - 1)
            if last_n >= 0 and (distance == 0 or distance >= _SEQUENCES // 2):
                duplicates += 1
                continue
            follows = last_n >= 0 and distance == 1
            last_n = n
        fixed = _line_size(first, bars, stop)
        length = fixed + varint_size(table[0, COUNT])
        size = length + varint_size(length)
        if table[0, COUNT] > 0 and (not follows or position - start + size > batch_bytes_max):
            _end_batch(out, start, position, table)
            length = fixed + 1
            start = position
        if table[0, COUNT] == 0:
            position = start + BATCH_HEADER_BYTES
            if counts:
                table[0, SEQUENCE] = n & (_SEQUENCES - 1)
        position = _put_line(out, position, length, table[0, COUNT], (chunk, first, bars, stop))
        table[0, COUNT] += 1
    if table[0, COUNT] > 0:
        _end_batch(out, start, position, table)
    block[BLOCK_LAST_N] = last_n
    block[BLOCK_RECORDS] = table[0, BASE_OFFSET]
    block[BLOCK_REFUSED] = refused
    block[BLOCK_DUPLICATES] = duplicates
    return position


@kernel(READ, TABLE, LONG, TABLE, WRITE, LONGS)
def encode_lines(
    chunk: Any, blocks: Any, batch_bytes_max: int, table: Any, out: Any, rejected: Any
) -> int:
    """Encode blocks of lines as batches in ``out``; returns the bytes written.

    Each row of ``blocks`` has the end of its block in the chunk and, for numbered lines (producer
    id from 0), the producer and its newest n; the results are written to the same row. The row of
    ``table`` is a header with the timestamps. ``rejected`` gets start in the block, end and reason
    of each rejected line. ``out`` has LINE_OVERHEAD bytes more per line than the chunk, one header
    per batch (one per line if lines are numbered), and WIDE spare bytes.
    """
    start = np.int64(0)
    position = np.int64(0)
    refused = np.int64(0)
    for number in range(len(blocks)):
        block = blocks[number]
        table[0, BASE_OFFSET] = 0
        table[0, PRODUCER_ID] = block[BLOCK_PRODUCER_ID]
        table[0, PRODUCER_EPOCH] = block[BLOCK_PRODUCER_EPOCH]
        table[0, SEQUENCE] = -1
        position = _encode_block(
            chunk[start : block[BLOCK_END]],
            block,
            batch_bytes_max,
            table,
            out,
            position,
            rejected[3 * refused :],
        )
        start = block[BLOCK_END]
        refused += block[BLOCK_REFUSED]
        block[BLOCK_OUT_END] = position
    return position


@kernel(READ)
def count_lines(chunk: Any) -> int:
    """The number of newlines."""
    count = np.int64(0)
    position = np.int64(0)
    while position + WIDE <= len(chunk):
        count += count_bits(match32(chunk, position, np.uint8(_NEWLINE)))
        position += WIDE
    while position < len(chunk):
        count += chunk[position] == _NEWLINE
        position += 1
    return count
