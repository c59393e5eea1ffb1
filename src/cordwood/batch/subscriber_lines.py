"""Formats decoded records as the lines or frames that a subscriber reads, many per call.

``protocol.line.records`` defines the format and has a plain-Python implementation; tests check that
both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.columns import Columns
from cordwood.batch.header import Buffer
from cordwood.batch.kernels.loader import kernels
from cordwood.model import OFFSET_MAX, Aborted

_WANTED: Final = frozenset({"timestamp", "key", "value", "headers"})


def format_batches(
    data: Buffer,
    start_offset: int,
    aborted: Sequence[Aborted] = (),
    *,
    end_offset: int = OFFSET_MAX,
    is_framed: bool,
    partition: int | None = None,
) -> bytes:
    """Format the records of complete batches with offsets in [start, end); raises ``CorruptBatch``.

    Records of ``aborted`` transactions are left out. A ``partition`` is written before each seq.
    """
    columns = decode_columns(
        data, start_offset=start_offset, end_offset=end_offset, wanted=_WANTED, aborted=aborted
    )
    return format_columns(columns, is_framed=is_framed, partition=partition)


def format_columns(columns: Columns, *, is_framed: bool, partition: int | None = None) -> bytes:
    """Format records that were decoded with keys, values, timestamps and headers."""
    keys, values, headers = columns.keys, columns.values, columns.headers
    assert keys is not None
    assert values is not None
    assert headers is not None, "all were wanted"
    kernel = kernels()
    text_bytes = keys.size_bytes + values.size_bytes + headers.contents.size_bytes
    out = np.empty(2 * text_bytes + len(columns) * kernel.ROW_OVERHEAD, np.uint8)
    spans = [(s.data, s.starts, s.lengths) for s in (keys, values, headers.names, headers.contents)]
    size = kernel.format_lines(
        columns.offsets,
        columns.timestamps_ms,
        *spans[:2],
        headers.rows,
        *spans[2:],
        int(is_framed),
        -1 if partition is None else partition,
        out,
    )
    return out[:size].tobytes()
