# mypy: ignore-errors
# ruff: noqa: PLR0917, ANN001, ANN201, ANN202
# Numba types these functions by their signatures; see ``batch.kernels.llvm_intrinsics``.
"""Numba kernels over key digests: hash keys, find superseded entries, compute checksums of sets.

An entry is five 32-bit words: a 128-bit keyed hash, highest word first, and the record's offset
within its segment with the highest bit set for a tombstone. The callers are ``digests``,
``superseded`` and ``rewrite`` in ``pipeline.compact``, and ``log.lifecycle.key_table``.
"""

from __future__ import annotations

import numpy as np
from numba import types

from cordwood.batch.kernels.llvm_intrinsics import (
    INTS,
    LONG,
    LONGS,
    READ,
    SPANS,
    WRITE,
    kernel,
    load64,
    part,
)

INTRINSICS_DIGEST = "4983e1410ea8df38"

ENTRIES = types.Array(types.uint32, 2, "C")
SLOTS = types.Array(types.int32, 1, "C")
WORDS = types.Array(types.uint64, 1, "C")

_LOW = np.uint64(0xFFFFFFFF)
_TOMBSTONE = np.uint32(0x80000000)
_DELTA = np.uint32(0x7FFFFFFF)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)


@part
def _rotate(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@part
def _round(v0, v1, v2, v3):
    """One SipHash round."""
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@part
def _siphash(data, start, length, key0, key1):
    """SipHash-2-4 with a 128-bit result: without the secret nobody can construct collisions."""
    v0 = np.uint64(0x736F6D6570736575) ^ key0
    v1 = np.uint64(0x646F72616E646F6D) ^ key1 ^ np.uint64(0xEE)
    v2 = np.uint64(0x6C7967656E657261) ^ key0
    v3 = np.uint64(0x7465646279746573) ^ key1
    position = start
    end = start + length
    while position + 8 <= end:
        word = load64(data, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    word = np.uint64(length & 0xFF) << np.uint64(56)
    for index in range(end - position):
        word |= np.uint64(data[position + index]) << np.uint64(8 * index)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@part
def _mix(word):
    """Make every bit of the result depend on every bit of the word."""
    word ^= word >> np.uint64(33)
    word *= _MIX1
    word ^= word >> np.uint64(33)
    word *= _MIX2
    return word ^ (word >> np.uint64(33))


@kernel(SPANS, INTS, LONGS, LONG, WORDS, ENTRIES)
def digest_keys(keys, value_lengths, offsets, base_offset, secret, entries):
    """Write an entry for each row with a key; returns how many."""
    data, starts, lengths = keys
    count = np.int64(0)
    for row in range(len(starts)):
        if lengths[row] < 0:
            continue
        high, low = _siphash(data, starts[row], np.int64(lengths[row]), secret[0], secret[1])
        entries[count, 0] = np.uint32(high >> np.uint64(32))
        entries[count, 1] = np.uint32(high & _LOW)
        entries[count, 2] = np.uint32(low >> np.uint64(32))
        entries[count, 3] = np.uint32(low & _LOW)
        delta = np.uint32(offsets[row] - base_offset)
        entries[count, 4] = delta | _TOMBSTONE if value_lengths[row] < 0 else delta
        count += 1
    return count


@kernel(ENTRIES, LONG, LONGS, ENTRIES)
def scatter(entries, shift, starts, out):
    """Sort entries into buckets by their highest bits, in order; advances ``starts``."""
    for row in range(len(entries)):
        bucket = np.int64(entries[row, 0] >> np.uint32(shift))
        to = starts[bucket]
        starts[bucket] = to + 1
        for word in range(5):
            out[to, word] = entries[row, word]
    return len(entries)


@kernel(ENTRIES, SLOTS, WRITE)
def find_superseded(entries, slots, dead):
    """Mark each entry that a later one of its key supersedes; returns the number of keys.

    Entries are in log order. The length of ``slots`` is a power of two and more than the entries;
    all slots are -1.
    """
    mask = np.int64(len(slots) - 1)
    keys = np.int64(0)
    for row in range(len(entries)):
        slot = np.int64(entries[row, 1]) & mask
        while True:
            found = slots[slot]
            if found < 0:
                keys += 1
                break
            if (
                entries[found, 0] == entries[row, 0]
                and entries[found, 1] == entries[row, 1]
                and entries[found, 2] == entries[row, 2]
                and entries[found, 3] == entries[row, 3]
            ):
                dead[found] = 1
                break
            slot = (slot + 1) & mask
        slots[slot] = row
    return keys


@kernel(ENTRIES, LONGS, WRITE, WORDS)
def sum_entries(entries, bases, wanted, total):
    """Add a hash of each wanted entry (key, offset, tombstone) to ``total``; returns how many.

    The sum does not depend on the order of the entries.
    """
    count = np.int64(0)
    for row in range(len(entries)):
        if wanted[row]:
            high = (np.uint64(entries[row, 0]) << np.uint64(32)) | np.uint64(entries[row, 1])
            low = (np.uint64(entries[row, 2]) << np.uint64(32)) | np.uint64(entries[row, 3])
            offset = np.uint64(bases[row] + np.int64(entries[row, 4] & _DELTA))
            flag = np.uint64(entries[row, 4] >> np.uint32(31))
            total[0] += _mix(high ^ _mix(low ^ _mix((offset << np.uint64(1)) | flag)))
            count += 1
    return count


@kernel(READ, LONGS, INTS, LONGS, LONGS, WRITE, WORDS)
def sum_values(data, starts, lengths, offsets, times, wanted, total):
    """Add a hash of each wanted row (offset, timestamp, value) to ``total``; returns how many.

    The sum does not depend on the order of the rows.
    """
    count = np.int64(0)
    for row in range(len(starts)):
        if not wanted[row]:
            continue
        word = _mix(np.uint64(offsets[row]) ^ _mix(np.uint64(times[row])))
        word = _mix(word ^ np.uint64(np.int64(lengths[row])))
        position = starts[row]
        end = position + max(np.int64(lengths[row]), 0)
        while position + 8 <= end:
            word = _rotate((word ^ load64(data, position)) * _MIX1, 29)
            position += 8
        for index in range(position, end):
            word = (word ^ np.uint64(data[index])) * _MIX2
        total[0] += _mix(word)
        count += 1
    return count
