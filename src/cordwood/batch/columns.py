"""Records as columns: the form in which kernels decode, filter and encode many of them at once.

Keys, values and headers are spans into other bytes, so that nothing is copied before it must be.
``column_decoder`` makes columns from batches, ``column_encoder`` makes batches from columns, and
``arrow`` converts columns to Arrow and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cordwood.batch.header import APPEND_TIME_BIT
from cordwood.batch.header_table import Bytes, HeaderTable, Ints, Longs, readonly

COLUMNS: Final = frozenset({"offset", "timestamp", "timestamp_type", "key", "value", "headers"})
NO_OFFSETS: Final = np.empty(0, np.int64)
_NO_BYTES: Final = readonly(b"")


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """A column of byte strings: row ``i`` is ``lengths[i]`` bytes at ``starts[i]``; -1 is null."""

    data: Bytes
    starts: Longs
    lengths: Ints

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes | None:
        """One row as bytes."""
        length = int(self.lengths[row])
        start = int(self.starts[row])
        return None if length < 0 else self.data[start : start + length].tobytes()

    def chosen(self, which: Any) -> Spans:
        """The rows selected by a mask, slice or list of indexes; shares the bytes."""
        return Spans(self.data, self.starts[which], self.lengths[which])

    @property
    def size_bytes(self) -> int:
        """The total size of all rows."""
        return int(np.maximum(self.lengths, 0).sum(dtype=np.int64))

    @classmethod
    def nulls(cls, count: int) -> Spans:
        """A column of nulls."""
        return cls(_NO_BYTES, np.zeros(count, np.int64), np.full(count, -1, np.int32))

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Spans:
        """A column from Python values."""
        lengths = np.array([-1 if v is None else len(v) for v in values], np.int32)
        ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
        return cls(
            readonly(b"".join(v or b"" for v in values)), ends - np.maximum(lengths, 0), lengths
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeaderSpans:
    """A column of record headers: row ``i`` has those from ``rows[i]`` up to ``rows[i + 1]``."""

    rows: Longs
    names: Spans
    contents: Spans

    def chosen(self, which: Any) -> HeaderSpans:
        """The rows selected by a mask, slice or list of indexes."""
        firsts, counts = self.rows[:-1][which], np.diff(self.rows)[which]
        ends = np.cumsum(counts, dtype=np.int64)
        within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(ends - counts, counts)
        headers = np.repeat(firsts, counts) + within
        rows = np.concatenate([np.zeros(1, np.int64), ends])
        return HeaderSpans(rows, self.names.chosen(headers), self.contents.chosen(headers))

    @classmethod
    def none(cls, count: int) -> HeaderSpans:
        """A column without any headers."""
        return cls(np.zeros(count + 1, np.int64), Spans.nulls(0), Spans.nulls(0))


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Decoded records. Offsets are always present; other columns only if they were wanted."""

    batches: HeaderTable  # the batches the rows come from
    batch_rows: Ints  # the index in ``batches`` of each row
    offsets: Longs
    timestamps_ms: Longs | None = None
    keys: Spans | None = None
    values: Spans | None = None
    headers: HeaderSpans | None = None
    size_bytes: int = 0  # bytes of complete batches; a truncated last one is not counted
    next_offset: int = -1  # one past the last offset that any batch covers, also a control batch

    @classmethod
    def of(
        cls,
        offsets: Longs,
        timestamps_ms: Longs,
        *,
        keys: Spans | None = None,
        values: Spans | None = None,
        headers: HeaderSpans | None = None,
    ) -> Columns:
        """Rows to encode that belong to no batch yet."""
        rows = np.zeros(len(offsets), np.int32)
        return cls(HeaderTable.blank(1), rows, offsets, timestamps_ms, keys, values, headers)

    def __len__(self) -> int:
        """The number of records."""
        return len(self.offsets)

    @property
    def timestamp_types(self) -> Ints:
        """Per row: 0 for producer time, 1 for broker time."""
        bits: Ints = (self.batches.attributes & APPEND_TIME_BIT != 0).astype(np.int32)
        types: Ints = bits[self.batch_rows]
        return types

    def chosen(self, which: Any) -> Columns:
        """The rows selected by a mask, slice or list of indexes; ``batches`` is unchanged."""
        return replace(
            self,
            batch_rows=self.batch_rows[which],
            offsets=self.offsets[which],
            timestamps_ms=None if self.timestamps_ms is None else self.timestamps_ms[which],
            keys=self.keys and self.keys.chosen(which),
            values=self.values and self.values.chosen(which),
            headers=self.headers and self.headers.chosen(which),
        )


# --- as arguments of kernels ----------------------------------------------------------------


def kernel_times(columns: Columns) -> Longs:
    """The timestamp of every row."""
    assert columns.timestamps_ms is not None, "timestamps were wanted, or are needed to encode"
    return np.ascontiguousarray(columns.timestamps_ms)


def kernel_headers(columns: Columns) -> tuple[Any, ...]:
    """The headers of every row; names and contents share their bytes."""
    headers = columns.headers or HeaderSpans.none(len(columns))
    names, contents = kernel_spans(headers.names), kernel_spans(headers.contents)
    return (np.ascontiguousarray(headers.rows), *names, *contents[1:])


def kernel_spans(spans: Spans | None) -> tuple[Bytes, Longs, Ints]:
    """The bytes, start positions and lengths of every row."""
    assert spans is not None, "the column was wanted"
    return (
        readonly(spans.data),
        np.ascontiguousarray(spans.starts),
        np.ascontiguousarray(spans.lengths),
    )
