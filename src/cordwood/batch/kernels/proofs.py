# mypy: ignore-errors
# ruff: noqa: PLR0917, ANN001, ANN201, ANN202
# Numba types these functions by their signatures; see ``batch.kernels.llvm_intrinsics``.
"""Numba kernels that compare compacted or archived records with the original log.

The callers are ``compaction_proof``, ``archive_proof`` and ``key_table`` in ``log.lifecycle``.
"""

from __future__ import annotations

import numpy as np
from numba import types

from cordwood.batch.kernels.llvm_intrinsics import INTS, LONGS, READ, SPANS, kernel, load64, part

INTRINSICS_DIGEST = "4983e1410ea8df38"

ENTRIES = types.Array(types.uint32, 2, "C")
SLOTS = types.Array(types.int32, 1, "C")
HEADERS = types.Tuple((LONGS, READ, LONGS, INTS, LONGS, INTS))  # rows, bytes, names, contents

DROPPED = np.uint32(1)
PAST = np.uint32(2)


@part
def _same(one, start, length, other, other_start, other_length):
    """Whether two byte strings are equal; null equals only null."""
    if length != other_length:
        return False
    end = start + length
    while start + 8 <= end:
        if load64(one, start) != load64(other, other_start):
            return False
        start += 8
        other_start += 8
    while start < end:
        if one[start] != other[other_start]:
            return False
        start += 1
        other_start += 1
    return True


@kernel(LONGS, LONGS, LONGS, SPANS, SPANS, SPANS, SPANS, HEADERS, HEADERS)
def find_changed(rows, times, new_times, keys, new_keys, values, new_values, headers, new_headers):
    """The first new row that differs from its old row in ``rows``; -1 if all are identical."""
    for new in range(len(rows)):
        old = rows[new]
        if times[old] != new_times[new]:
            return new
        for before, after in ((keys, new_keys), (values, new_values)):
            length = np.int64(before[2][old])
            new_length = np.int64(after[2][new])
            if not _same(before[0], before[1][old], length, after[0], after[1][new], new_length):
                return new
        first, new_first = headers[0][old], new_headers[0][new]
        count = headers[0][old + 1] - first
        if new_headers[0][new + 1] - new_first != count:
            return new
        for index in range(count):
            at, new_at = first + index, new_first + index
            if not _same(
                headers[1], headers[2][at], np.int64(headers[3][at]),
                new_headers[1], new_headers[2][new_at], np.int64(new_headers[3][new_at]),
            ):  # fmt: skip
                return new
            if not _same(
                headers[1], headers[4][at], np.int64(headers[5][at]),
                new_headers[1], new_headers[4][new_at], np.int64(new_headers[5][new_at]),
            ):  # fmt: skip
                return new
    return -1


@kernel(ENTRIES, SLOTS)
def find_unjustified(entries, slots):
    """The last entry in log order that breaks a rule; -1 if none does.

    An entry is a 128-bit key hash and flags. The newest entry of a key may be dropped only if it is
    a tombstone past its delete horizon (``PAST``), and then no older entry of that key may be kept.
    The length of ``slots`` is a power of two and more than the entries; all slots are -1.
    """
    mask = np.int64(len(slots) - 1)
    for row in range(len(entries) - 1, -1, -1):
        flags = entries[row, 4]
        slot = np.int64(entries[row, 1]) & mask
        while True:
            found = slots[slot]
            if found < 0:
                if flags & DROPPED and not flags & PAST:
                    return row
                slots[slot] = row
                break
            if (
                entries[found, 0] == entries[row, 0]
                and entries[found, 1] == entries[row, 1]
                and entries[found, 2] == entries[row, 2]
                and entries[found, 3] == entries[row, 3]
            ):
                if entries[found, 4] & DROPPED and not flags & DROPPED:
                    return row
                break
            slot = (slot + 1) & mask
    return -1
