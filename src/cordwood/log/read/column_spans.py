"""Convert decoded columns to the arguments of the compaction proof's kernels. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordwood.batch.columns import Columns, HeaderSpans, Spans
from cordwood.batch.header_table import Longs, readonly


def times_of(columns: Columns) -> Longs:
    """The timestamp of every row."""
    assert columns.timestamps_ms is not None
    return np.ascontiguousarray(columns.timestamps_ms)


def spans_of(spans: Spans | None) -> tuple[Any, Any, Any]:
    """The byte span of every row: the buffer, start positions and lengths."""
    assert spans is not None
    return (
        readonly(spans.data),
        np.ascontiguousarray(spans.starts),
        np.ascontiguousarray(spans.lengths),
    )


def headers_of(columns: Columns) -> tuple[Any, ...]:
    """The headers of every row."""
    headers = columns.headers or HeaderSpans.none(len(columns))
    names, contents = spans_of(headers.names), spans_of(headers.contents)
    return (np.ascontiguousarray(headers.rows), names[0], *names[1:], *contents[1:])
