"""Converts batches to columns and back with kernels: many batches per call, only wanted columns.

Decoding finds where keys and values are (spans into the input, without copying); ``arrow``
gathers them for Spark. Encoding takes spans from decoded batches, so that compaction can rewrite
batches and keep their headers, or from Arrow buffers, for the sink and the router.

Kernels read only the wanted columns, so damage elsewhere in a record goes unnoticed here;
``validation`` checks everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from cordwood.batch.compression import INFLATED_BYTES_MAX, compress, decompress
from cordwood.batch.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
    Buffer,
    seal,
)
from cordwood.batch.header_table import (
    Bytes,
    HeaderTable,
    Ints,
    Longs,
    WalkEnd,
    readonly,
    walk_batches,
)
from cordwood.batch.kernels.loader import kernels
from cordwood.batch.records import RECORD_BYTES_MIN
from cordwood.errors import CorruptBatch
from cordwood.model import NO_PRODUCER, Codec, TimestampType

COLUMNS: Final = frozenset({"offset", "timestamp", "timestamp_type", "key", "value", "headers"})
OFFSET_END: Final = 2**63 - 1
NO_OFFSETS: Final = np.empty(0, np.int64)
_NO_BYTES: Final = readonly(b"")


class Aborted(NamedTuple):
    """An aborted transaction, whose records no reader may see."""

    producer_id: int
    first_offset: int
    last_offset: int


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


# --- decoding -------------------------------------------------------------------------------


def decode_columns(
    data: Buffer | Bytes,
    *,
    start_offset: int = 0,
    end_offset: int = OFFSET_END,
    skipped: Longs = NO_OFFSETS,
    wanted: frozenset[str] = COLUMNS,
    aborted: Sequence[Aborted | tuple[int, int, int]] = (),
    verify: bool = True,
    size_max: int = INFLATED_BYTES_MAX,
) -> Columns:
    """The records of concatenated batches with offsets in [start, end); raises ``CorruptBatch``.

    Control batches and batches of ``aborted`` transactions are left out. So are the records at
    ``skipped`` offsets; then both these offsets and the batches must be in ascending order. A
    truncated last batch is ignored: ``size_bytes`` is where it starts. ``size_max`` bounds the
    decompressed size of one batch. The columns refer to ``data``, which must not change.
    """
    assert wanted <= COLUMNS, f"there is no column {', '.join(wanted - COLUMNS)}"
    bytes_ = readonly(data)
    walk = walk_batches(bytes_, verify=verify)
    if walk.end is WalkEnd.CORRUPT:
        raise CorruptBatch(f"no intact batch at position {walk.valid_bytes} of {len(bytes_)} bytes")
    _check_spans(walk.batches)
    batches = _select(walk.batches, start_offset, end_offset, aborted)
    bodies = _bodies(bytes_, batches, size_max)
    columns = _scan(bodies, batches, (start_offset, end_offset, skipped), wanted)
    return replace(
        columns,
        size_bytes=walk.valid_bytes,
        next_offset=int(walk.batches.last_offsets[-1]) + 1 if len(walk.batches) else -1,
    )


def _check_spans(batches: HeaderTable) -> None:
    """Check offsets, codecs and counts, so that decoding cannot overflow int64."""
    bad = (
        (batches.base_offsets < 0)
        | (batches.last_offset_deltas < 0)
        | (batches.base_offsets > OFFSET_END - batches.last_offset_deltas)
        | (batches.attributes & CODEC_BITS > Codec.ZSTD.value)
        | ((batches.counts == 0) & (batches.sizes != HEADER_BYTES))
    )
    if bool(bad.any()):
        position = int(batches.positions[int(np.argmax(bad))])
        raise CorruptBatch(f"batch at position {position}: offsets, codec or count that cannot be")


def _select(
    batches: HeaderTable,
    start_offset: int,
    end_offset: int,
    aborted: Sequence[Aborted | tuple[int, int, int]],
) -> HeaderTable:
    is_chosen = (
        (batches.attributes & CONTROL_BIT == 0)
        & (batches.last_offsets >= start_offset)
        & (batches.base_offsets < end_offset)
        & (batches.counts != 0)
    )
    is_transactional = batches.attributes & TRANSACTIONAL_BIT != 0
    for producer_id, first_offset, last_offset in aborted:
        is_chosen &= ~(
            is_transactional
            & (batches.producer_ids == producer_id)
            & (batches.base_offsets >= first_offset)
            & (batches.base_offsets <= last_offset)
        )
    return batches if bool(is_chosen.all()) else batches.chosen(is_chosen)


class _Bodies(NamedTuple):
    """Where the records of each batch are: in the input, or in one buffer after decompression."""

    data: Bytes
    starts: Longs
    ends: Longs


def _bodies(data: Bytes, batches: HeaderTable, size_max: int) -> _Bodies:
    starts = batches.positions + HEADER_BYTES
    ends = batches.positions + batches.sizes
    codecs = batches.attributes & CODEC_BITS
    if not bool(codecs.any()):
        return _Bodies(data, starts, ends)
    parts = [
        decompress(Codec(codec), data[start:end].data, size_max)
        for codec, start, end in zip(codecs.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    sizes = np.array([len(part) for part in parts], np.int64)
    arena_ends = np.cumsum(sizes)
    return _Bodies(readonly(b"".join(parts)), arena_ends - sizes, arena_ends)


def _scan(
    bodies: _Bodies, batches: HeaderTable, chosen: tuple[int, int, Longs], wanted: frozenset[str]
) -> Columns:
    kernel = kernels()
    _check_counts(batches, bodies)
    rows = int(batches.counts.sum())
    keys, values, headers = (
        _room(bodies.data, rows if name in wanted else 0) for name in ("key", "value", "headers")
    )
    offsets, batch_rows = np.empty(rows, np.int64), np.empty(rows, np.int32)
    times = np.empty(rows if "timestamp" in wanted else 0, np.int64)
    flags = (
        ("timestamp" in wanted) * kernel.WANT_TIME
        | ("key" in wanted) * kernel.WANT_KEY
        | ("value" in wanted) * kernel.WANT_VALUE
        | ("headers" in wanted) * kernel.WANT_HEADERS
    )
    kept = kernel.scan_records(
        bodies.data,
        np.ascontiguousarray(batches.table),
        bodies.starts,
        bodies.ends,
        *chosen,
        flags,
        offsets,
        times,
        batch_rows,
        *((spans.starts, spans.lengths) for spans in (keys, values, headers)),
    )
    if kept < 0:
        raise _corrupt(batches, -1 - kept)
    return Columns(
        batches=batches,
        batch_rows=batch_rows[:kept],
        offsets=offsets[:kept],
        timestamps_ms=times[:kept] if "timestamp" in wanted else None,
        keys=keys.chosen(slice(kept)) if "key" in wanted else None,
        values=values.chosen(slice(kept)) if "value" in wanted else None,
        headers=_scan_headers(headers.chosen(slice(kept))) if "headers" in wanted else None,
    )


def _room(data: Bytes, rows: int) -> Spans:
    """Allocate spans for a kernel to fill."""
    return Spans(data, np.empty(rows, np.int64), np.empty(rows, np.int32))


def _check_counts(batches: HeaderTable, bodies: _Bodies) -> None:
    """Check, before allocating, that no count exceeds what the bytes could hold."""
    records_max = (bodies.ends - bodies.starts) // RECORD_BYTES_MIN
    bad = (batches.counts < 0) | (batches.counts > records_max)
    if bool(bad.any()):
        raise _corrupt(batches, int(np.argmax(bad)))


def _corrupt(batches: HeaderTable, batch: int) -> CorruptBatch:
    return CorruptBatch(
        f"batch at offset {int(batches.base_offsets[batch])} (position "
        f"{int(batches.positions[batch])}): its records cannot be read"
    )


def _scan_headers(headers: Spans) -> HeaderSpans:
    """Split the headers of records whose header counts are in ``lengths``."""
    rows = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(headers.lengths, dtype=np.int64, out=rows[1:])
    total = int(rows[-1])
    names, contents = _room(headers.data, total), _room(headers.data, total)
    found = kernels().scan_headers(
        (headers.data, headers.starts, headers.lengths),
        (names.starts, names.lengths),
        (contents.starts, contents.lengths),
    )
    assert found == total, "the first scan counted them"
    return HeaderSpans(rows, names, contents)


# --- encoding -------------------------------------------------------------------------------


def plan_batches(
    columns: Columns,
    *,
    batch_bytes: int = 1024 * 1024,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE,
    base_offset: int | None = None,
    last_offset: int | None = None,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
    leader_epoch: int = 0,
    is_transactional: bool = False,
    delete_horizon_ms: int | None = None,
) -> HeaderTable:
    """Headers for new batches of the rows, each of about ``batch_bytes`` uncompressed.

    Each batch covers the offsets from its first to its last row; ``base_offset`` and
    ``last_offset`` extend the first and the last batch. Sequences follow the offsets, starting at
    ``base_sequence``.
    """
    assert len(columns), "a batch needs a record, or a header of its own"
    cuts = _cuts(columns, batch_bytes)
    batches = HeaderTable.blank(len(cuts) - 1)
    firsts, lasts = columns.offsets[cuts[:-1]].copy(), columns.offsets[cuts[1:] - 1].copy()
    if base_offset is not None:
        firsts[0] = base_offset
    if last_offset is not None:
        lasts[-1] = last_offset
    times = _times(columns)
    batches.base_offsets[:] = firsts
    batches.last_offset_deltas[:] = lasts - firsts
    batches.counts[:] = np.diff(cuts)
    batches.leader_epochs[:] = leader_epoch
    batches.base_timestamps_ms[:] = (
        times[cuts[:-1]] if delete_horizon_ms is None else delete_horizon_ms
    )
    batches.max_timestamps_ms[:] = np.maximum.reduceat(times, cuts[:-1])
    batches.attributes[:] = (
        codec.value
        | (APPEND_TIME_BIT if timestamp_type is TimestampType.APPEND else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    batches.producer_ids[:] = producer_id
    batches.producer_epochs[:] = producer_epoch
    if base_sequence != NO_PRODUCER:
        batches.base_sequences[:] = (base_sequence + firsts - firsts[0]) % 2**31
    return batches


def encode_columns(columns: Columns, batches: HeaderTable | None = None) -> bytearray:
    """Encode rows as batches: each of ``batches`` takes its ``counts`` rows, with their offsets.

    Headers are kept (a count of 0 makes an empty 61-byte batch), except for the maximum timestamp,
    which is computed from the rows. Without ``batches``, ``plan_batches`` makes them.
    """
    if batches is None:
        batches = plan_batches(columns)
    _assert_fit(columns, batches)
    keys = columns.keys or Spans.nulls(len(columns))
    values = columns.values or Spans.nulls(len(columns))
    headers = columns.headers or HeaderSpans.none(len(columns))
    kernel = kernels()
    bound = (
        keys.size_bytes
        + values.size_bytes
        + headers.names.size_bytes
        + headers.contents.size_bytes
        + len(columns) * kernel.RECORD_OVERHEAD
        + len(headers.names) * kernel.HEADER_OVERHEAD
        + len(batches) * HEADER_BYTES
    )
    table = batches.table.copy()
    data = bytearray(bound)
    out = np.frombuffer(data, np.uint8)
    size = kernel.encode_batches(
        table,
        np.ascontiguousarray(columns.offsets),
        np.ascontiguousarray(_times(columns)),
        _arguments(keys),
        _arguments(values),
        np.ascontiguousarray(headers.rows),
        _arguments(headers.names),
        _arguments(headers.contents),
        out,
    )
    del out  # a bytearray with an exported buffer cannot shrink
    del data[size:]
    written = HeaderTable(table)
    return _packed(data, written) if bool((written.attributes & CODEC_BITS).any()) else data


def _cuts(columns: Columns, batch_bytes: int) -> Longs:
    """The row numbers where batches start, and the end; each batch has at least one row."""
    sizes = np.full(len(columns), kernels().RECORD_OVERHEAD, np.int64)
    for spans in (columns.keys, columns.values):
        if spans is not None:
            sizes += np.maximum(spans.lengths, 0)
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(columns):
        spent = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        fits = int(np.searchsorted(ends, spent + batch_bytes, side="right"))
        cuts.append(max(fits, cuts[-1] + 1))
    return np.array(cuts, np.int64)


def _times(columns: Columns) -> Longs:
    assert columns.timestamps_ms is not None, "records need their timestamps to be encoded"
    return columns.timestamps_ms


def _arguments(spans: Spans) -> tuple[Bytes, Longs, Ints]:
    return (
        readonly(spans.data),
        np.ascontiguousarray(spans.starts),
        np.ascontiguousarray(spans.lengths),
    )


def _assert_fit(columns: Columns, batches: HeaderTable) -> None:
    """Assert that rows and headers agree, because the kernel does not check again."""
    assert int(batches.counts.sum()) == len(columns), "every row has its batch"
    ends = np.cumsum(batches.counts)
    owners = np.repeat(np.arange(len(batches)), batches.counts)
    deltas = columns.offsets - batches.base_offsets[owners]
    assert bool((deltas >= 0).all()), "rows lie in their batch"
    assert bool((deltas <= batches.last_offset_deltas[owners]).all()), "rows lie in their batch"
    rises = np.diff(columns.offsets) > 0
    rises[ends[(ends > 0) & (ends < len(columns))] - 1] = True  # batches need not be in order
    assert bool(rises.all()), "offsets rise within a batch"


def _packed(data: bytearray, batches: HeaderTable) -> bytearray:
    """The batches with their records compressed as their attributes require."""
    packed = bytearray()
    view = memoryview(data)
    for attributes, count, position, size in zip(
        batches.attributes.tolist(),
        batches.counts.tolist(),
        batches.positions.tolist(),
        batches.sizes.tolist(),
        strict=True,
    ):
        codec = Codec(attributes & CODEC_BITS) if count else Codec.NONE
        head = bytearray(view[position : position + HEADER_BYTES])
        body = compress(codec, view[position + HEADER_BYTES : position + size])
        head[8:12] = (HEADER_BYTES - LOG_OVERHEAD + len(body)).to_bytes(4, "big")
        head[21:23] = (attributes & ~CODEC_BITS | codec.value).to_bytes(2, "big")
        start = len(packed)
        packed += head
        packed += body
        seal(packed, start, len(packed) - start)
    return packed
