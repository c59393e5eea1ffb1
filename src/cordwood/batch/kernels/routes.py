# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, PLR0917
# Numba types this function by its signature; see ``batch.kernels.llvm_intrinsics``.
"""The numba kernel that writes routed records. Only ``pipeline.route.executor`` calls it.

A routed record is the original with a few headers added. Its key, value and headers are copied
unchanged. The added headers are encoded once for all records (``mark``), except for the offset.
"""

from __future__ import annotations

import numpy as np

from cordwood.batch.kernels.llvm_intrinsics import (
    BASE_OFFSET,
    BASE_TIME,
    BATCH_HEADER_BYTES,
    COUNT,
    LAST_DELTA,
    LONG,
    LONGS,
    MAX_TIME,
    READ,
    SPANS,
    TABLE,
    WRITE,
    copy_bytes,
    kernel,
    part,
    put_bytes,
    put_header,
    put_varint,
    varint_size,
)

INTRINSICS_DIGEST = "4983e1410ea8df38"

RECORD_OVERHEAD = 64  # at most: a record's numbers, its offset in digits, a length


@part
def _digits(number):
    """The number of decimal digits of a number that is not negative."""
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@part
def _put_digits(out, position, number, count):
    """Write a length and that many digits; returns the position after them."""
    position = put_varint(out, position, count)
    for place in range(position + count - 1, position - 1, -1):
        out[place] = np.uint8(48 + number % 10)
        number //= 10
    return position + count


@kernel(
    LONGS, LONGS, TABLE, LONGS, LONGS, SPANS, SPANS, LONGS, SPANS, SPANS, READ, LONG, LONG, WRITE
)
def relay(
    rows,
    ends,
    table,
    offsets,
    times,
    keys,
    values,
    header_rows,
    names,
    contents,
    mark,
    mark_headers,
    batch_bytes,
    out,
):
    """Write runs of rows as batches; ``ends`` is replaced by where each run's bytes end.

    Run ``r`` is ``rows[ends[r - 1]:ends[r]]``, in that order; its records are numbered from 0. A
    batch ends once it reaches ``batch_bytes``. ``table`` has one row, used for each header. After
    its own headers a record gets ``mark``: ``mark_headers`` headers, the last one without its
    value, which is the record's offset in digits. ``out`` has space for all spans, plus the mark
    and ``RECORD_OVERHEAD`` per row, plus a batch header for each run and each ``batch_bytes``.
    """
    position = np.int64(0)
    at = np.int64(0)
    for run in range(len(ends)):
        run_start, run_end = at, ends[run]
        while at < run_end:
            start, first = position, at
            position += BATCH_HEADER_BYTES
            base_time = times[rows[at]]
            newest = base_time
            while at < run_end and (at == first or position - start < batch_bytes):
                row = rows[at]
                time_delta = times[row] - base_time
                first_header, end_header = header_rows[row], header_rows[row + 1]
                own, own_bytes = np.int64(0), np.int64(0)
                if first_header < end_header:  # from the first name on they are contiguous
                    own = names[1][first_header]
                    last = end_header - 1
                    own_bytes = contents[1][last] + max(contents[2][last], 0) - own
                digits = _digits(offsets[row])
                count = end_header - first_header + mark_headers
                key_bytes, value_bytes = np.int64(keys[2][row]), np.int64(values[2][row])
                length = 1 + varint_size(time_delta) + varint_size(at - first) + varint_size(count)
                length += varint_size(key_bytes) + max(key_bytes, 0)
                length += varint_size(value_bytes) + max(value_bytes, 0)
                length += len(mark) + varint_size(digits) + digits
                if own_bytes:
                    length += varint_size(np.int64(names[2][first_header])) + own_bytes
                position = put_varint(out, position, length)
                out[position] = 0
                position = put_varint(out, position + 1, time_delta)
                position = put_varint(out, position, at - first)
                position = put_bytes(out, position, keys[0], keys[1][row], key_bytes)
                position = put_bytes(out, position, values[0], values[1][row], value_bytes)
                position = put_varint(out, position, count)
                if own_bytes:
                    position = put_varint(out, position, np.int64(names[2][first_header]))
                    position = copy_bytes(out, position, names[0], own, own_bytes)
                position = copy_bytes(out, position, mark, 0, len(mark))
                position = _put_digits(out, position, offsets[row], digits)
                newest = max(newest, times[row])
                at += 1
            table[0, BASE_OFFSET] = first - run_start
            table[0, LAST_DELTA] = at - first - 1
            table[0, COUNT] = at - first
            table[0, BASE_TIME] = base_time
            table[0, MAX_TIME] = newest
            put_header(out, start, position, table, 0)
        ends[run] = position
    return position
