"""Keys of many rows at once: which partition each goes to, and which of them are equal.

``partitions_of`` is Kafka's default partitioner (murmur2 of the key), so a record lands where any
Kafka producer would have put it. ``group`` numbers equal byte strings in the order they are first
met, comparing bytes, so that a decision is made once for each distinct key or prefix.

Rows are spans, never Python objects; the loops are in ``key_kernels``, loaded when first asked for.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from cordwood.batch.columns import Spans
from cordwood.batch.header_table import Ints, Longs, readonly

NULL: Final = -1  # the group, or partition, of a row without a key


class KeyGroups(NamedTuple):
    """``ids[row]`` is the row's group, -1 for null; ``firsts[group]`` the first row in it."""

    ids: Longs
    firsts: Longs


def partitions_of(keys: Spans, count: int) -> Longs:
    """Where each key belongs among ``count`` partitions; -1 for null keys."""
    found = np.full(len(keys), NULL, np.int64)
    _kernels().partition(*arguments(keys), count, found)
    return found


def group(keys: Spans) -> KeyGroups:
    """Equal keys together."""
    rows = len(keys)
    ids, firsts = np.full(rows, NULL, np.int64), np.empty(rows, np.int64)
    slots = np.full(1 << max(4, (2 * rows).bit_length()), -1, np.int64)
    count = _kernels().group(*arguments(keys), slots, ids, firsts)
    return KeyGroups(ids, firsts[:count])


def prefixes(keys: Spans) -> tuple[Spans, Any]:
    """Each key up to its first dot (null stays null), and a mask: which keys are all ASCII."""
    lengths: Ints = np.empty(len(keys), np.int32)
    plain: Ints = np.empty(len(keys), np.int32)
    _kernels().prefix(*arguments(keys), lengths, plain)
    return Spans(keys.data, keys.starts, lengths), plain.astype(bool)


def arguments(keys: Spans) -> tuple[Any, Any, Any]:
    """A column as kernels take it."""
    return (
        readonly(keys.data),
        np.ascontiguousarray(keys.starts),
        np.ascontiguousarray(keys.lengths),
    )


def _kernels() -> ModuleType:
    from cordwood.batch.kernels import keys as key_kernels

    return key_kernels
