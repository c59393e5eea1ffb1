"""Finds the records of a valid batch that a topic refuses: without a key, or with a bad timestamp.

``validation`` tells with one cheap pass whether there is any such record. This second pass is only
for batches that will be refused, so that the reply can name the records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cordwood.batch.header import Buffer
from cordwood.batch.kernels.loader import kernels_ready
from cordwood.batch.records import decode_batch
from cordwood.model import NO_TIMESTAMP

_INT64_MAX: Final = 2**63 - 1


class RecordRules(NamedTuple):
    """What a topic demands of each record; records without a timestamp are never mistimed."""

    needs_keys: bool
    oldest_ms: int = -_INT64_MAX - 1
    newest_ms: int = _INT64_MAX


class RefusedRecords(NamedTuple):
    """Indexes in the batch, ascending. A record without a key is not listed as mistimed too."""

    keyless: list[int]
    mistimed: list[tuple[int, int]]  # index, timestamp


def find_refused(batch: Buffer, rules: RecordRules, inflated_bytes_max: int) -> RefusedRecords:
    """Return the refused records of one batch; with kernels if they are loaded."""
    find = find_by_kernel if kernels_ready() else find_plainly
    return find(batch, rules, inflated_bytes_max)


def find_by_kernel(batch: Buffer, rules: RecordRules, inflated_bytes_max: int) -> RefusedRecords:
    """Find them with the column decoder."""
    import numpy as np

    from cordwood.batch.column_decoder import decode_columns

    columns = decode_columns(
        batch, wanted=frozenset({"timestamp", "key"}), verify=False, size_max=inflated_bytes_max
    )
    times, keys = columns.timestamps_ms, columns.keys
    assert times is not None
    assert keys is not None
    is_keyless = keys.lengths < 0 if rules.needs_keys else np.zeros(len(times), np.bool_)
    is_early = (times < max(rules.oldest_ms, -_INT64_MAX - 1)) & (times != NO_TIMESTAMP)
    is_mistimed = (is_early | (times > min(rules.newest_ms, _INT64_MAX))) & ~is_keyless
    mistimed = np.flatnonzero(is_mistimed)
    return RefusedRecords(
        np.flatnonzero(is_keyless).tolist(),
        list(zip(mistimed.tolist(), times[mistimed].tolist(), strict=True)),
    )


def find_plainly(batch: Buffer, rules: RecordRules, inflated_bytes_max: int) -> RefusedRecords:
    """Find them in plain Python; the reference for the kernel."""
    keyless: list[int] = []
    mistimed: list[tuple[int, int]] = []
    for index, record in enumerate(decode_batch(batch, size_max=inflated_bytes_max)):
        time_ms = record.timestamp_ms
        is_early = time_ms < rules.oldest_ms and time_ms != NO_TIMESTAMP
        if rules.needs_keys and record.key is None:
            keyless.append(index)
        elif is_early or time_ms > rules.newest_ms:
            mistimed.append((index, time_ms))
    return RefusedRecords(keyless, mistimed)
