"""Compare decoded records in full: timestamp, key, value and headers, with a kernel."""

from __future__ import annotations

from typing import Final

import numpy as np

from cordwood.batch.columns import Columns, kernel_headers, kernel_spans, kernel_times
from cordwood.batch.header_table import Longs
from cordwood.batch.kernels.loader import LazyKernels

COMPARED: Final = frozenset({"timestamp", "key", "value", "headers"})  # columns to decode
_kernels = LazyKernels("proofs")


def first_changed(old: Columns, new: Columns, rows: Longs) -> int:
    """The first row of ``new`` that differs from row ``rows[i]`` of ``old``; -1 if none does.

    Offsets are not compared: ``rows`` was found by them.
    """
    changed: int = _kernels.find_changed(
        np.ascontiguousarray(rows), kernel_times(old), kernel_times(new),
        kernel_spans(old.keys), kernel_spans(new.keys),
        kernel_spans(old.values), kernel_spans(new.values),
        kernel_headers(old), kernel_headers(new),
    )  # fmt: skip
    return changed
