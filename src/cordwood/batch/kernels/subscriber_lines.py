# mypy: ignore-errors
# ruff: noqa: PLR0917, SIM110
# See ``llvm_intrinsics``: numba types these functions, not mypy.
"""The numba kernel that writes records as subscriber lines; see ``protocol.line.records``.

As in ``batches``: a fixed signature, no allocation, and the GIL is released.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cordwood.batch.kernels.llvm_intrinsics import (
    LONG,
    LONGS,
    SPANS,
    WRITE,
    copy_bytes,
    kernel,
    part,
    shared,
)

INTRINSICS_DIGEST: Final = "4983e1410ea8df38"

ROW_OVERHEAD: Final = 112  # at most: numbers, separators and escapes of one row
_BAR: Final = 124
_COLON: Final = 58
_BACKSLASH: Final = 92
_NEWLINE: Final = 10
_NUMBER_BYTES_MAX: Final = 19


@part
def _put_number(out: Any, position: int, number: int) -> int:
    if number < 0:
        out[position] = 45
        position += 1
        number = -number
    digits = np.int64(1)
    rest = number // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for place in range(position + digits - 1, position - 1, -1):
        out[place] = 48 + number % 10
        number //= 10
    return position + digits


@part
def _needs_escape(data: Any, start: int, length: int, with_bars: bool) -> bool:
    for position in range(start, start + length):
        byte = data[position]
        if byte in (_BACKSLASH, _NEWLINE) or (with_bars and byte == _BAR):
            return True
    return False


@shared
def _put_escaped(out: Any, to: int, data: Any, start: int, length: int, with_bars: bool) -> int:
    for position in range(start, start + length):
        byte = data[position]
        if byte in (_BACKSLASH, _NEWLINE) or (with_bars and byte == _BAR):
            out[to] = _BACKSLASH
            to += 1
            if byte == _NEWLINE:
                byte = np.uint8(110)
            elif byte == _BAR:
                byte = np.uint8(112)
        out[to] = byte
        to += 1
    return to


@part
def _put_field(out: Any, to: int, data: Any, start: int, length: int) -> int:
    if _needs_escape(data, start, length, True):
        return _put_escaped(out, to, data, start, length, True)
    return copy_bytes(out, to, data, start, length)


@part
def _put_null(out: Any, to: int) -> int:
    out[to] = _BACKSLASH
    out[to + 1] = 78
    return to + 2


@part
def _has_newline(data: Any, start: int, length: int) -> bool:
    for position in range(start, start + length):
        if data[position] == _NEWLINE:
            return True
    return False


@part
def _put_payload(out: Any, to: int, data: Any, start: int, length: int) -> int:
    """Write the payload of a line: unchanged unless it would break the line."""
    if length < 0:
        return _put_null(out, to)
    is_plain = length == 0 or data[start] != _BACKSLASH
    if is_plain and not _has_newline(data, start, length):
        return copy_bytes(out, to, data, start, length)
    out[to] = _BACKSLASH
    out[to + 1] = 101
    return _put_escaped(out, to + 2, data, start, length, False)


@part
def _is_number(data: Any, start: int, length: int) -> bool:
    if length < 1 or length > _NUMBER_BYTES_MAX:
        return False
    for position in range(start, start + length):
        if data[position] < 48 or data[position] > 57:
            return False
    return True


@kernel(LONGS, LONGS, SPANS, SPANS, LONGS, SPANS, SPANS, LONG, LONG, WRITE)
def format_lines(
    offsets: Any,
    times: Any,
    keys: Any,
    values: Any,
    rows: Any,
    names: Any,
    contents: Any,
    is_framed: int,
    partition: int,
    out: Any,
) -> int:
    """Write every row as a line or a frame; returns the bytes written.

    Each seq follows ``partition`` and a colon, unless that is negative.
    ``rows``, ``names`` and ``contents`` are a ``HeaderSpans``. ``out`` has twice the bytes of keys,
    values and header contents, plus ROW_OVERHEAD for each row.
    """
    to = np.int64(0)
    for row in range(len(offsets)):
        begin = to
        if is_framed:
            to += 4
        if partition >= 0:
            to = _put_number(out, to, partition)
            out[to] = _COLON
            to += 1
        to = _put_number(out, to, offsets[row] + 1)
        out[to] = _BAR
        to = _put_number(out, to + 1, times[row])
        out[to] = _BAR
        to += 1
        if keys[2][row] < 0:
            to = _put_null(out, to)
        else:
            to = _put_field(out, to, keys[0], keys[1][row], keys[2][row])
        out[to] = _BAR
        to += 1
        stamp = np.int64(-1)
        number = np.int64(-1)
        for header in range(rows[row], rows[row + 1]):
            name = names[1][header]
            size = names[2][header]
            length = contents[2][header]
            if size == 2 and names[0][name] == 116 and names[0][name + 1] == 115 and length > 0:
                stamp = header
            elif (
                size == 1
                and names[0][name] == 110
                and _is_number(contents[0], contents[1][header], length)
            ):
                number = header
        if stamp >= 0:
            to = _put_field(out, to, contents[0], contents[1][stamp], contents[2][stamp])
        out[to] = _BAR
        to += 1
        if number >= 0:
            to = copy_bytes(out, to, contents[0], contents[1][number], contents[2][number])
        length = values[2][row]
        if is_framed:
            if length >= 0:
                out[to] = _BAR
                to = copy_bytes(out, to + 1, values[0], values[1][row], length)
            size = to - begin - 4
            out[begin] = size & 255
            out[begin + 1] = (size >> 8) & 255
            out[begin + 2] = (size >> 16) & 255
            out[begin + 3] = (size >> 24) & 255
        else:
            out[to] = _BAR
            to = _put_payload(out, to + 1, values[0], values[1][row], length)
            out[to] = _NEWLINE
            to += 1
    return to
