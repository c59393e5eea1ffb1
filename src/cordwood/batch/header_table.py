"""Many batch headers at once: a table with one row per batch, walked and verified by a kernel.

For a large active segment at start-up, and the first step of every decode. It looks at headers and
checksums only; where the bytes end early it says how, and repairs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.header import Buffer
from cordwood.batch.kernels.loader import kernels

Longs: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]


class WalkEnd(StrEnum):
    """How the bytes end: at a batch boundary, within a batch, or in something that is none."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


_ENDS = (WalkEnd.CLEAN, WalkEnd.TORN, WalkEnd.CORRUPT)  # as the kernels number them


@dataclass(frozen=True, slots=True, eq=False)
class HeaderTable:
    """Headers of batches, a row each; the properties are columns that may be written to.

    ``positions`` and ``sizes`` are where a walk found the batches, or an encoder put them.
    """

    table: Longs  # (batches, kernels.TABLE_FIELDS)

    def __len__(self) -> int:
        """How many batches."""
        return len(self.table)

    @property
    def positions(self) -> Longs:
        """Where each batch starts."""
        return self.table[:, 0]

    @property
    def sizes(self) -> Longs:
        """Bytes of each batch, header included."""
        return self.table[:, 1]

    @property
    def base_offsets(self) -> Longs:
        """The first offset each batch covers."""
        return self.table[:, 2]

    @property
    def leader_epochs(self) -> Longs:
        """The leadership term each was stored in."""
        return self.table[:, 3]

    @property
    def attributes(self) -> Longs:
        """Codec, timestamp type and flags; see ``header``."""
        return self.table[:, 4]

    @property
    def last_offset_deltas(self) -> Longs:
        """The last offset each covers, less its base offset."""
        return self.table[:, 5]

    @property
    def last_offsets(self) -> Longs:
        """The last offset each batch covers (a copy)."""
        return self.base_offsets + self.last_offset_deltas

    @property
    def base_timestamps_ms(self) -> Longs:
        """What timestamp deltas count from: the delete horizon, when the batch has one."""
        return self.table[:, 6]

    @property
    def max_timestamps_ms(self) -> Longs:
        """The largest timestamp."""
        return self.table[:, 7]

    @property
    def producer_ids(self) -> Longs:
        """Who numbered the batch; -1 nobody."""
        return self.table[:, 8]

    @property
    def producer_epochs(self) -> Longs:
        """Which instance of that producer."""
        return self.table[:, 9]

    @property
    def base_sequences(self) -> Longs:
        """The producer's number of the base offset."""
        return self.table[:, 10]

    @property
    def counts(self) -> Longs:
        """Records really there."""
        return self.table[:, 11]

    def chosen(self, which: Any) -> HeaderTable:
        """The batches a mask or a list of indexes names (a copy)."""
        return HeaderTable(self.table[which])

    @classmethod
    def blank(cls, count: int) -> HeaderTable:
        """Rows of zeros without producer, to be filled by who plans batches."""
        table = np.zeros((count, kernels().TABLE_FIELDS), np.int64)
        table[:, 8:11] = -1
        return cls(table)


@dataclass(frozen=True, slots=True, eq=False)
class HeaderWalk:
    """The whole, intact batches from the start of some bytes, and how they end."""

    batches: HeaderTable
    valid_bytes: int
    end: WalkEnd


def walk_batches(data: Buffer | Bytes, *, verify: bool = True) -> HeaderWalk:
    """Walk batch by batch from the start, each checksum verified unless told otherwise.

    TORN: the last batch is cut short (a damaged length can look so too). CORRUPT: a whole batch
    whose checksum disagrees, or bytes that are no batch of format v2.
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
    """The bytes as the kernels take them: one read-only view, whatever holds them."""
    view = data.view() if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    view.flags.writeable = False
    return view
