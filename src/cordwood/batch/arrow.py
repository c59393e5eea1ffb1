"""Converts columns to Arrow and back, with the schema of Spark's Kafka source.

    key binary · value binary · topic string · partition int32 · offset int64
    · timestamp timestamp[us, UTC] · timestampType int32 · headers list<struct<key, value>>

In this package only this module imports pyarrow, and only when called, because a broker runs
without it. Reading from Arrow copies nothing; writing to Arrow copies the bytes of a column once,
in a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from cordwood.batch.columns import Columns, HeaderSpans, Spans
from cordwood.batch.header_table import Bytes, Longs, readonly
from cordwood.batch.kernels.loader import kernels

SPARK_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
ARROW_BYTES_MAX: Final = 2**31 - 1  # per column: its offsets are 32-bit
_WANTED: Final = {
    "key": "key",
    "value": "value",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
_MICROS_LAST: Final = (2**63 - 1) // 1000


def wanted_columns(names: Sequence[str]) -> frozenset[str]:
    """The columns to decode so that ``arrow_batch`` can return the named ones."""
    assert set(names) <= set(SPARK_COLUMNS), f"not all of {', '.join(names)} are columns"
    return frozenset(_WANTED[name] for name in names if name in _WANTED)


def arrow_batch(
    columns: Columns, topic: str, partition: int, names: Sequence[str] = SPARK_COLUMNS
) -> Any:
    """All rows as one ``pyarrow.RecordBatch`` with the named columns, in the given order."""
    import pyarrow as pa

    arrays = [_array(pa, name, columns, topic, partition) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def arrow_batches(
    columns: Columns,
    topic: str,
    partition: int,
    names: Sequence[str] = SPARK_COLUMNS,
    *,
    rows_max: int = 65_536,
    bytes_max: int = 64 * 1024 * 1024,
) -> Iterator[Any]:
    """The rows as batches of bounded size, however large they are after decompression."""
    parts = [spans for spans in (columns.keys, columns.values) if spans is not None]
    held_bytes = max((spans.data.nbytes for spans in parts), default=0)
    if 0 < len(columns) <= rows_max and held_bytes <= bytes_max:  # usual for a chunk of a file
        yield arrow_batch(columns, topic, partition, names)
        return
    sizes = np.zeros(len(columns), np.int64)
    for spans in parts:
        sizes += np.maximum(spans.lengths, 0)
    ends = np.cumsum(sizes)
    start = 0
    while start < len(columns):
        before = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, before + bytes_max, side="right"))
        end = min(max(fits, start + 1), start + rows_max)
        yield arrow_batch(columns.chosen(slice(start, end)), topic, partition, names)
        start = end


def arrow_schema(names: Sequence[str] = SPARK_COLUMNS) -> Any:
    """The ``pyarrow.Schema`` of the named columns."""
    import pyarrow as pa

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": _headers_type(pa),
    }
    return pa.schema([(name, types[name]) for name in names])


def columns_from_arrow(
    *,
    offsets: Longs,
    timestamps_ms: Longs,
    keys: Any = None,
    values: Any = None,
    headers: Any = None,
) -> Columns:
    """Rows to encode, from Arrow arrays: binary or string, and a list of header structs.

    The columns refer to the arrays' buffers without copying. A null header list means no headers.
    """
    return Columns.of(
        offsets,
        timestamps_ms,
        keys=None if keys is None else spans_from_arrow(keys),
        values=None if values is None else spans_from_arrow(values),
        headers=None if headers is None else _headers_from_arrow(headers),
    )


def spans_from_arrow(array: Any) -> Spans:
    """A binary or string array (also a large one) as spans into its buffers."""
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return Spans.nulls(len(array))
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    is_small = pa.types.is_binary(array.type) or pa.types.is_string(array.type)
    assert is_large or is_small, f"keys and values must be binary or string, not {array.type}"
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or not len(array):
        return Spans.nulls(len(array))
    stored = np.frombuffer(offset_buffer, np.int64 if is_large else np.int32)
    bounds: Longs = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(bounds).astype(np.int32)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    data = readonly(data_buffer) if data_buffer is not None else readonly(b"")
    return Spans(data, bounds[:-1], lengths)


# --- columns → Arrow ------------------------------------------------------------------------


def _array(pa: Any, name: str, columns: Columns, topic: str, partition: int) -> Any:
    """Build one Arrow column; its source must have been decoded."""
    if name == "topic":
        return _constant_text(pa, topic.encode(), len(columns))
    if name == "partition":
        return pa.array(np.full(len(columns), partition, np.int32))
    if name == "offset":
        return pa.array(columns.offsets)
    if name == "timestampType":
        return pa.array(columns.timestamp_types)
    source = {
        "key": columns.keys,
        "value": columns.values,
        "timestamp": columns.timestamps_ms,
        "headers": columns.headers,
    }[name]
    assert source is not None, f"{name} was not decoded"
    if isinstance(source, Spans):
        return _binary(pa, source, pa.binary())
    if isinstance(source, HeaderSpans):
        return _headers(pa, source)
    micros = np.clip(source, -_MICROS_LAST, _MICROS_LAST)
    micros *= 1000
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))


def _headers_type(pa: Any) -> Any:
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _constant_text(pa: Any, text: bytes, rows: int) -> Any:
    bounds = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    data = pa.py_buffer(text * rows)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(bounds), data], 0)


def _binary(pa: Any, spans: Spans, kind: Any) -> Any:
    rows = len(spans)
    size = spans.size_bytes
    assert size <= ARROW_BYTES_MAX, "more than Arrow's 32-bit offsets count: use arrow_batches"
    data = np.empty(size, np.uint8)
    bounds = np.empty(rows + 1, np.int32)
    valid: Bytes = np.zeros((rows + 7) // 8, np.uint8)
    nulls = kernels().gather(
        (spans.data, np.ascontiguousarray(spans.starts), np.ascontiguousarray(spans.lengths)),
        data,
        bounds,
        valid,
    )
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, rows, buffers, nulls)


def _headers(pa: Any, headers: HeaderSpans) -> Any:
    names = _binary(pa, headers.names, pa.string())
    contents = _binary(pa, headers.contents, pa.binary())
    pairs = pa.StructArray.from_arrays([names, contents], names=["key", "value"])
    bounds = pa.array(headers.rows.astype(np.int32))
    return pa.ListArray.from_arrays(bounds, pairs, type=_headers_type(pa))


def _headers_from_arrow(array: Any) -> HeaderSpans:
    counts = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    rows = np.zeros(len(array) + 1, np.int64)
    np.cumsum(counts, out=rows[1:])
    pairs = array.flatten()
    names, contents = (spans_from_arrow(part) for part in pairs.flatten())
    return HeaderSpans(rows, names, contents)
