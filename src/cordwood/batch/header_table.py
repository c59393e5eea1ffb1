"""Many batch headers at once: a table with one row per batch, read and verified by a kernel.

It serves recovery of a large active segment and the first step of every decode. It reads only
headers and checksums; it reports how the bytes end and repairs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.header import CONTROL_BIT, DELETE_HORIZON_BIT, TRANSACTIONAL_BIT, Buffer
from cordwood.batch.kernels.loader import kernels
from cordwood.model import Aborted

Longs: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]


class WalkEnd(StrEnum):
    """How the bytes end: at a batch boundary, inside a batch, or with an invalid batch."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


_ENDS = (WalkEnd.CLEAN, WalkEnd.TORN, WalkEnd.CORRUPT)  # in the order of the kernels' numbers


@dataclass(frozen=True, slots=True, eq=False)
class HeaderTable:
    """The headers of batches, one row each; the properties are writable columns.

    ``positions`` and ``sizes`` locate the batches in the bytes that were read or encoded.
    """

    table: Longs  # (batches, kernels.TABLE_FIELDS)

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.table)

    @property
    def positions(self) -> Longs:
        """The byte position where each batch starts."""
        return self.table[:, 0]

    @property
    def sizes(self) -> Longs:
        """The size of each batch in bytes, header included."""
        return self.table[:, 1]

    @property
    def base_offsets(self) -> Longs:
        """The first offset each batch covers."""
        return self.table[:, 2]

    @property
    def leader_epochs(self) -> Longs:
        """The leader epoch each batch was stored with."""
        return self.table[:, 3]

    @property
    def attributes(self) -> Longs:
        """Codec, timestamp type and flags; see ``header``."""
        return self.table[:, 4]

    @property
    def last_offset_deltas(self) -> Longs:
        """The last offset each batch covers, minus its base offset."""
        return self.table[:, 5]

    @property
    def last_offsets(self) -> Longs:
        """The last offset each batch covers (a copy)."""
        return self.base_offsets + self.last_offset_deltas

    @property
    def base_timestamps_ms(self) -> Longs:
        """The base of the timestamp deltas: the delete horizon, if the batch has one."""
        return self.table[:, 6]

    @property
    def max_timestamps_ms(self) -> Longs:
        """The maximum timestamp of each batch."""
        return self.table[:, 7]

    @property
    def producer_ids(self) -> Longs:
        """The producer id of each batch; -1 without one."""
        return self.table[:, 8]

    @property
    def producer_epochs(self) -> Longs:
        """The producer epoch of each batch."""
        return self.table[:, 9]

    @property
    def base_sequences(self) -> Longs:
        """The sequence number of each base offset."""
        return self.table[:, 10]

    @property
    def counts(self) -> Longs:
        """The number of records stored in each batch."""
        return self.table[:, 11]

    def chosen(self, which: Any) -> HeaderTable:
        """The batches selected by a mask or a list of indexes (a copy)."""
        return HeaderTable(self.table[which])

    @property
    def is_control(self) -> Mask:
        """A mask of control batches; those that compaction emptied hold no marker any more."""
        return self._has(CONTROL_BIT)

    @property
    def is_marker(self) -> Mask:
        """A mask of the batches that hold a transaction marker."""
        return self._has(CONTROL_BIT) & (self.counts > 0)

    @property
    def is_transactional(self) -> Mask:
        """A mask of the batches of transactions, markers included."""
        return self._has(TRANSACTIONAL_BIT)

    @property
    def has_delete_horizon(self) -> Mask:
        """A mask of the batches whose base timestamp is a delete horizon."""
        return self._has(DELETE_HORIZON_BIT)

    def _has(self, bit: int) -> Mask:
        mask: Mask = self.attributes & bit != 0
        return mask

    def is_aborted(self, aborted: Sequence[Aborted]) -> Mask:
        """A mask of the data batches that belong to these transactions."""
        mask = np.zeros(len(self), np.bool_)
        if not len(self) or not aborted:
            return mask
        first, last = int(self.base_offsets.min()), int(self.last_offsets.max())
        is_data = self.is_transactional & ~self.is_control
        for producer_id, first_offset, last_offset, _ in aborted:
            if first_offset <= last and last_offset >= first:
                mask |= (
                    is_data
                    & (self.producer_ids == producer_id)
                    & (self.base_offsets >= first_offset)
                    & (self.base_offsets <= last_offset)
                )
        return mask

    @classmethod
    def blank(cls, count: int) -> HeaderTable:
        """Rows of zeros without a producer, to be filled in."""
        table = np.zeros((count, kernels().TABLE_FIELDS), np.int64)
        table[:, 8:11] = -1
        return cls(table)


@dataclass(frozen=True, slots=True, eq=False)
class HeaderWalk:
    """The complete, intact batches from the start of the bytes, and how the bytes end."""

    batches: HeaderTable
    valid_bytes: int
    end: WalkEnd


def walk_batches(data: Buffer | Bytes, *, verify: bool = True) -> HeaderWalk:
    """Read batch by batch from the start, and verify checksums unless ``verify`` is False.

    TORN: the last batch is truncated (a damaged length can look the same). CORRUPT: a complete
    batch with a wrong checksum, or bytes that are not a batch of format v2.
    """
    bytes_ = readonly(data)
    kernel = kernels()
    result = np.zeros(2, np.int64)
    count = kernel.count_batches(bytes_, result)
    table = np.empty((count, kernel.TABLE_FIELDS), np.int64)
    intact = kernel.read_headers(bytes_, int(verify), table)
    batches = HeaderTable(table[:intact])
    if intact < count:
        valid_bytes = int(batches.positions[-1] + batches.sizes[-1]) if intact else 0
        return HeaderWalk(batches, valid_bytes, WalkEnd.CORRUPT)
    return HeaderWalk(batches, int(result[0]), _ENDS[result[1]])


def readonly(data: Buffer | Bytes) -> Bytes:
    """The bytes as a read-only array, the type the kernels take."""
    view = data.view() if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    view.flags.writeable = False
    return view
