"""Hashed keys of a compaction pass: check that each key's newest record stays where it was.

Keys are compared by their 128-bit SipHash with a secret that is new for each table. Memory is
bounded by ``ENTRIES_MAX`` keys at a time; more keys are partitioned into unnamed files first.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.columns import Columns, kernel_spans
from cordwood.batch.header_table import Mask
from cordwood.batch.kernels.loader import LazyKernels
from cordwood.errors import CorruptionError, InvalidManifest

_digest_kernels = LazyKernels("digests")
_kernels = LazyKernels("proofs")
ENTRIES_MAX: Final = 3_000_000  # 20 bytes each, plus a hash table
ENTRY_WORDS: Final = 5

Entries = NDArray[np.uint32]


class KeyTable:
    """The keys of all records, in log order; in memory or in unnamed files."""

    def __init__(self, records: int, entries_max: int) -> None:
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64).copy()
        self._parts = max(1, -(-records // entries_max))
        is_held = self._parts == 1
        self._held: Entries = np.empty((records if is_held else 0, ENTRY_WORDS), np.uint32)
        self._count = 0
        count = 0 if is_held else self._parts
        self._files = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115 - see __exit__

    def add(self, columns: Columns, is_keyed: Mask, dropped: Mask, past: Mask) -> None:
        """Add rows; rows without a key are ignored, since they may be dropped at any time."""
        assert columns.values is not None
        entries = self._space(len(columns))
        count = _digest_kernels.digest_keys(
            kernel_spans(columns.keys), np.ascontiguousarray(columns.values.lengths),
            np.ascontiguousarray(columns.offsets), 0, self._secret, entries,
        )  # fmt: skip
        entries = entries[:count]
        flags = dropped.astype(np.uint32) | (past.astype(np.uint32) << 1)
        entries[:, 4] = flags if count == len(flags) else flags[is_keyed]
        if self._files:
            self._write(entries)
        else:
            self._count += count

    def _space(self, rows: int) -> Entries:
        """The array for the entries of ``rows`` rows; in memory, behind those added before."""
        if self._files:
            return np.empty((rows, ENTRY_WORDS), np.uint32)
        if self._count + rows > len(self._held):
            raise CorruptionError("a segment has more records than when it was sealed")
        return self._held[self._count : self._count + rows]

    def _write(self, entries: Entries) -> None:
        parts = (entries[:, 0].astype(np.uint64) * np.uint64(self._parts)) >> np.uint64(32)
        order = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[order], np.arange(self._parts + 1))
        for number, file in enumerate(self._files):
            file.write(entries[order[bounds[number] : bounds[number + 1]]].tobytes())

    def check(self) -> None:
        """Raise ``InvalidManifest`` unless the newest record of every key is where it was."""
        for entries in self._all():
            slots = np.full(1 << max(4, (2 * len(entries)).bit_length()), -1, np.int32)
            row = _kernels.find_unjustified(entries, slots)
            if row >= 0 and entries[row, 4] & 1:
                raise InvalidManifest(
                    "the pass drops a record that no later record of its key replaces, or a "
                    "tombstone before its delete horizon; nothing was replaced"
                )
            if row >= 0:
                raise InvalidManifest(
                    "the pass drops a tombstone and keeps an older record of its key, which "
                    "would reappear; nothing was replaced"
                )

    def _all(self) -> Iterator[Entries]:
        if not self._files:
            yield self._held[: self._count]
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), np.uint32).reshape(-1, ENTRY_WORDS).copy()

    def __enter__(self) -> Self:
        """Return the table itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
