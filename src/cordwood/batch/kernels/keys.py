# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, PLR0917, SIM110
# Numba types these functions by their signatures; see ``batch.kernels.llvm_intrinsics``.
"""Numba kernels over keys: hashes, prefixes, and equality. Only ``batch.key_groups`` calls them.

The spans come from decoded batches or from checked Arrow buffers; a length below 0 is null.
"""

from __future__ import annotations

import numpy as np

from cordwood.batch.kernels.llvm_intrinsics import INTS, LONG, LONGS, READ, kernel, part

INTRINSICS_DIGEST = "4983e1410ea8df38"

DOT = 0x2E
ASCII_END = 0x80


@part
def murmur2(data, start, length):
    """Kafka's key hash (murmur2) in 32-bit arithmetic."""
    mixer, rest = np.uint32(0x5BD1E995), length & 3
    found = np.uint32(0x9747B28C) ^ np.uint32(length)
    for at in range(start, start + length - rest, 4):
        word = (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        word = np.uint32(word * mixer)
        word = np.uint32((word ^ (word >> np.uint32(24))) * mixer)
        found = np.uint32(np.uint32(found * mixer) ^ word)
    tail = start + length - rest
    if rest >= 3:
        found ^= np.uint32(data[tail + 2]) << np.uint32(16)
    if rest >= 2:
        found ^= np.uint32(data[tail + 1]) << np.uint32(8)
    if rest >= 1:
        found = np.uint32((found ^ np.uint32(data[tail])) * mixer)
    found = np.uint32((found ^ (found >> np.uint32(13))) * mixer)
    return found ^ (found >> np.uint32(15))


@part
def is_equal(data, one, other, length):
    """Whether two ranges hold the same bytes."""
    for at in range(length):
        if data[one + at] != data[other + at]:
            return False
    return True


@kernel(READ, LONGS, INTS, LONG, LONGS)
def partition(data, starts, lengths, count, found):
    """Set ``found[row]`` to the key's partition; null keys are skipped."""
    for row in range(len(starts)):
        if lengths[row] >= 0:
            positive = np.int64(murmur2(data, starts[row], lengths[row])) & np.int64(0x7FFFFFFF)
            found[row] = positive % count
    return 0


@kernel(READ, LONGS, INTS, INTS, INTS)
def prefix(data, starts, lengths, found, plain):
    """Set ``found[row]`` to the bytes before the first dot, ``plain[row]`` to 1 if all ASCII."""
    for row in range(len(starts)):
        end, ascii_only = lengths[row], 1
        for at in range(lengths[row]):
            byte = data[starts[row] + at]
            if byte == DOT and end == lengths[row]:
                end = at
            if byte >= ASCII_END:
                ascii_only = 0
        found[row], plain[row] = end, ascii_only
    return 0


@kernel(READ, LONGS, INTS, LONGS, LONGS, LONGS)
def group(data, starts, lengths, slots, ids, firsts):
    """Number equal keys with an open-addressing hash table; ``len(slots)`` is a power of two."""
    mask, count = len(slots) - 1, 0
    for row in range(len(starts)):
        length = lengths[row]
        if length < 0:
            continue
        slot = np.int64(murmur2(data, starts[row], length)) & mask
        while True:
            found = slots[slot]
            if found < 0:
                slots[slot] = count
                firsts[count] = row
                found = count
                count += 1
                break
            first = firsts[found]
            if lengths[first] == length and is_equal(data, starts[first], starts[row], length):
                break
            slot = (slot + 1) & mask
        ids[row] = found
    return count
