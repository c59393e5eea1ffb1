"""Decodes batches to columns with kernels: many batches per call, only the wanted columns.

Decoding finds where keys and values are (spans into the input, without copying). Kernels read only
the wanted columns, so damage elsewhere in a record goes unnoticed here; ``validation`` checks
everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cordwood.batch.columns import COLUMNS, NO_OFFSETS, Columns, HeaderSpans, Spans
from cordwood.batch.compression import INFLATED_BYTES_MAX, decompress
from cordwood.batch.header import CODEC_BITS, CONTROL_BIT, HEADER_BYTES, Buffer
from cordwood.batch.header_table import Bytes, HeaderTable, Longs, WalkEnd, readonly, walk_batches
from cordwood.batch.kernels.loader import kernels
from cordwood.batch.record_parser import RECORD_BYTES_MIN
from cordwood.errors import CorruptBatch
from cordwood.model import OFFSET_MAX, Aborted, Codec


def decode_columns(
    data: Buffer | Bytes,
    *,
    start_offset: int = 0,
    end_offset: int = OFFSET_MAX,
    skipped: Longs = NO_OFFSETS,
    wanted: frozenset[str] = COLUMNS,
    aborted: Sequence[Aborted] = (),
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
        | (batches.base_offsets > OFFSET_MAX - batches.last_offset_deltas)
        | (batches.attributes & CODEC_BITS > Codec.ZSTD.value)
        | ((batches.counts == 0) & (batches.sizes != HEADER_BYTES))
    )
    if bool(bad.any()):
        position = int(batches.positions[int(np.argmax(bad))])
        raise CorruptBatch(
            f"batch at position {position}: the header has impossible offsets, codec or count"
        )


def _select(
    batches: HeaderTable,
    start_offset: int,
    end_offset: int,
    aborted: Sequence[Aborted],
) -> HeaderTable:
    is_chosen = (
        (batches.attributes & CONTROL_BIT == 0)
        & (batches.last_offsets >= start_offset)
        & (batches.base_offsets < end_offset)
        & (batches.counts != 0)
    )
    if aborted:
        is_chosen &= ~batches.is_aborted(aborted)
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
        _allocate(bodies.data, rows if name in wanted else 0)
        for name in ("key", "value", "headers")
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


def _allocate(data: Bytes, rows: int) -> Spans:
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
    names, contents = _allocate(headers.data, total), _allocate(headers.data, total)
    count = kernels().scan_headers(
        (headers.data, headers.starts, headers.lengths),
        (names.starts, names.lengths),
        (contents.starts, contents.lengths),
    )
    assert count == total, "the first scan counted them"
    return HeaderSpans(rows, names, contents)
