"""Masks over batches and records for compaction: what has expired, and which headers must stay.

The job that rewrites segments and the broker that proves the result apply these rules to whole
columns; ``decide.compaction`` states them for single records. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from cordwood.batch.header_table import HeaderTable, Longs, Mask

Producer: TypeAlias = tuple[int, int, int]  # id, epoch, last data offset or -1
EACH_BATCH = slice(None)  # rows that are the batches themselves


def is_past_horizon(
    batches: HeaderTable, rows: Any, offsets: Longs, now_ms: int, passed_end: int
) -> Mask:
    """A mask of rows whose batch is past its delete horizon and which every reader has passed.

    ``rows`` is the batch of each row; every reader has reached ``passed_end``.
    """
    is_over = batches.has_delete_horizon & (batches.base_timestamps_ms <= now_ms)
    mask: Mask = is_over[rows] & (offsets < passed_end)
    return mask


def is_last_of_producer(batches: HeaderTable, producers: Sequence[Producer]) -> Mask:
    """A mask of batches whose header holds the last sequence or the epoch of a producer."""
    if not producers:
        return np.zeros(len(batches), bool)
    ids, epochs, lasts = np.array(sorted(producers), np.int64).T
    at = np.minimum(np.searchsorted(ids, batches.producer_ids), len(ids) - 1)
    is_known = (batches.producer_ids >= 0) & (ids[at] == batches.producer_ids)
    is_last = np.where(
        lasts[at] >= 0,
        batches.last_offsets == lasts[at],
        batches.is_control & (batches.producer_epochs == epochs[at]),
    )
    mask: Mask = is_known & is_last
    return mask
