"""Partition and group the keys of many rows at once.

``partitions_of`` is Kafka's default partitioner (murmur2 of the key), so a record goes to the same
partition as with any Kafka producer. ``group`` numbers distinct byte strings in order of first
appearance, so that a decision is made once per distinct key or prefix.

Rows are spans, never Python objects. The loops are compiled kernels (``batch.kernels.keys``),
loaded on first use.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from cordwood.batch.columns import Spans, kernel_spans
from cordwood.batch.header_table import Ints, Longs
from cordwood.batch.kernels.loader import LazyKernels

_kernels = LazyKernels("keys")
NULL: Final = -1  # the group, or partition, of a row without a key


class KeyGroups(NamedTuple):
    """``ids[row]`` is the row's group, -1 for null; ``firsts[group]`` is its first row."""

    ids: Longs
    firsts: Longs


def partitions_of(keys: Spans, count: int) -> Longs:
    """The partition of each key, out of ``count`` partitions; -1 for null keys."""
    partitions = np.full(len(keys), NULL, np.int64)
    _kernels.partition(*kernel_spans(keys), count, partitions)
    return partitions


def group(keys: Spans) -> KeyGroups:
    """Group rows with equal keys."""
    rows = len(keys)
    ids, firsts = np.full(rows, NULL, np.int64), np.empty(rows, np.int64)
    slots = np.full(1 << max(4, (2 * rows).bit_length()), -1, np.int64)
    count = _kernels.group(*kernel_spans(keys), slots, ids, firsts)
    return KeyGroups(ids, firsts[:count])


def prefixes(keys: Spans) -> tuple[Spans, Any]:
    """Each key up to its first dot (null stays null), and a mask of the keys that are ASCII."""
    lengths: Ints = np.empty(len(keys), np.int32)
    plain: Ints = np.empty(len(keys), np.int32)
    _kernels.prefix(*kernel_spans(keys), lengths, plain)
    return Spans(keys.data, keys.starts, lengths), plain.astype(bool)
