"""Make different bytes with the same CRC32C, as anyone who can write to staging can.

CRC32C is linear over bits, so a few free bytes are enough to reach any checksum by solving a system
of linear equations. The CRC32C of the batch inside is valid too.
"""

from __future__ import annotations

from cordwood.batch.header import crc32c
from cordwood.batch.records import encode_batch
from cordwood.model import Record

FREE_BYTES = 16


def forged_batch(data: bytes, key: bytes, word: bytes) -> bytes:
    """Return a batch with the size and CRC32C of ``data`` whose value begins with ``word``.

    Both batches have one record; the value in ``data`` must be longer.
    """
    directory = len(data) - len(_batch(key, word + bytes(FREE_BYTES)))
    assert directory >= 0, "the value is too short to forge"

    def make(bits: int) -> bytes:
        return _batch(key, word + bytes(directory) + bits.to_bytes(FREE_BYTES, "little"))

    base = crc32c(make(0))
    columns = [crc32c(make(1 << bit)) ^ base for bit in range(8 * FREE_BYTES)]
    found = make(_solve(columns, crc32c(data) ^ base))
    assert (len(found), crc32c(found)) == (len(data), crc32c(data))
    return found


def _batch(key: bytes, value: bytes) -> bytes:
    return bytes(encode_batch([Record(0, 1, key, value)]))


def _solve(columns: list[int], wanted: int) -> int:
    """Return a bit for each column; the marked columns add up to ``wanted`` modulo two."""
    basis: dict[int, tuple[int, int]] = {}  # highest bit -> value, and the columns that produce it
    for number, column in enumerate(columns):
        value, made = column, 1 << number
        while value and (top := value.bit_length()) in basis:
            value, made = value ^ basis[top][0], made ^ basis[top][1]
        if value:
            basis[value.bit_length()] = value, made
    result = 0
    while wanted:
        value, made = basis[wanted.bit_length()]
        wanted, result = wanted ^ value, result ^ made
    return result
