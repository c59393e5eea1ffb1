"""Encodes columns as batches with kernels.

Rows come from decoded batches, so that compaction can rewrite batches and keep their headers, or
from Arrow buffers, for the sink and the router.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cordwood.batch.columns import Columns, HeaderSpans, Spans, kernel_spans, kernel_times
from cordwood.batch.compression import compress
from cordwood.batch.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
    seal,
)
from cordwood.batch.header_table import HeaderTable, Longs
from cordwood.batch.kernels.loader import kernels
from cordwood.model import NO_PRODUCER, Codec, TimestampType


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
    times = kernel_times(columns)
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


def encode_columns(
    columns: Columns,
    batches: HeaderTable | None = None,
    levels: Mapping[Codec, int] = MappingProxyType({}),
) -> bytearray:
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
        kernel_times(columns),
        kernel_spans(keys),
        kernel_spans(values),
        np.ascontiguousarray(headers.rows),
        kernel_spans(headers.names),
        kernel_spans(headers.contents),
        out,
    )
    del out  # a bytearray with an exported buffer cannot shrink
    del data[size:]
    written = HeaderTable(table)
    return _packed(data, written, levels) if bool((written.attributes & CODEC_BITS).any()) else data


def _cuts(columns: Columns, batch_bytes: int) -> Longs:
    """The row numbers where batches start, and the end; each batch has at least one row."""
    sizes = np.full(len(columns), kernels().RECORD_OVERHEAD, np.int64)
    for spans in (columns.keys, columns.values):
        if spans is not None:
            sizes += np.maximum(spans.lengths, 0)
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(columns):
        before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        fits = int(np.searchsorted(ends, before + batch_bytes, side="right"))
        cuts.append(max(fits, cuts[-1] + 1))
    return np.array(cuts, np.int64)


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


def _packed(data: bytearray, batches: HeaderTable, levels: Mapping[Codec, int]) -> bytearray:
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
        batch = view[position : position + size]
        body = compress(codec, batch[HEADER_BYTES:], levels.get(codec))
        packed += reframed(batch, body, attributes & ~CODEC_BITS | codec.value)
    return packed


def reframed(batch: memoryview, body: bytes, attributes: int) -> bytearray:
    """A batch with the header of ``batch`` but other attributes, and ``body`` as its records."""
    data = bytearray(batch[:HEADER_BYTES])
    data[8:12] = (HEADER_BYTES - LOG_OVERHEAD + len(body)).to_bytes(4, "big")
    data[21:23] = attributes.to_bytes(2, "big")
    data += body
    seal(data, 0, len(data))
    return data
