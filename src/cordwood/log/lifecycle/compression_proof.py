"""Prove that a compressed segment holds the records of the original, before it replaces it.

Both files are read from disk, the original with every checksum, and compared in full:

* Every record is there at its offset with the same timestamp, key, value and headers, and there are
  no others. Transaction markers and empty batches are the same bytes.
* A batch has the header it had, except for its codec, which is its old one or the topic's. A batch
  made of several is allowed only where none of them has a producer id or belongs to a transaction,
  and covers exactly their offsets.

Memory for one run of batches. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.header import CODEC_BITS
from cordwood.batch.header_table import Bytes, HeaderTable, Longs
from cordwood.batch.recoding import follows_on
from cordwood.config import MIB
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.log.lifecycle.compaction_proof import check_rest, refuse_at, refused
from cordwood.log.read.batch_runs import ReadBuffer, StagedLog, read_sealed
from cordwood.log.read.record_comparison import COMPARED, first_changed
from cordwood.model import Codec, SegmentInfo

RUN_BYTES: Final = MIB  # small, because its batches may be decompressed at the same time

Run = tuple[Bytes, HeaderTable]


def prove_compressed(
    directory: Path, info: SegmentInfo, staged: Path, codec: Codec, pace: Callable[[int], None]
) -> None:
    """Compare a live segment with the file that is to replace it; raises ``InvalidManifest``."""
    with staged.open("rb", buffering=0) as file:
        new = StagedLog(file.fileno(), ReadBuffer(RUN_BYTES))
        for data, batches in read_sealed(directory, info, ReadBuffer(RUN_BYTES)):
            _compare((data, batches), new.take(int(batches.last_offsets[-1])), codec)
            pace(len(data))
        _, rest = new.take(2**63 - 1)
        check_rest(rest, info.end_offset)


def _compare(run: Run, new_run: Run, codec: Codec) -> None:
    (data, batches), (new_data, new_batches) = run, new_run
    firsts, owners = _grouped(batches, new_batches)
    _check_headers(batches, new_batches, owners, codec)
    _check_merged(batches, new_batches, firsts)
    is_verbatim = batches.is_control | (batches.counts == 0)
    for row in np.flatnonzero(is_verbatim).tolist():
        copy = _bytes(new_data, new_batches, int(owners[row]))
        if not np.array_equal(_bytes(data, batches, row), copy):
            raise refused(int(batches.base_offsets[row]), "changes a marker or an empty batch")
    _check_records(data, new_data)


def _grouped(batches: HeaderTable, new_batches: HeaderTable) -> tuple[Longs, Longs]:
    """The first old batch of each new one, and the new batch of each old one."""
    if not len(new_batches):
        raise refused(int(batches.base_offsets[0]), "lacks the batch")
    at = np.searchsorted(new_batches.base_offsets, batches.base_offsets, side="right") - 1
    owners: Longs = np.maximum(at, 0)
    new_ends = new_batches.last_offsets
    refuse_at(
        batches.base_offsets, (at < 0) | (batches.last_offsets > new_ends[owners]), "cuts the batch"
    )
    firsts: Longs = np.searchsorted(owners, np.arange(len(new_batches)))
    lasts = np.searchsorted(owners, np.arange(len(new_batches)), side="right") - 1
    is_wrong = lasts < firsts
    firsts = np.minimum(firsts, len(batches) - 1)
    is_wrong |= new_batches.base_offsets != batches.base_offsets[firsts]
    is_wrong |= new_ends != batches.last_offsets[lasts]
    is_wrong |= new_batches.counts != np.bincount(
        owners, weights=batches.counts, minlength=len(new_batches)
    ).astype(np.int64)
    refuse_at(new_batches.base_offsets, is_wrong, "has a batch that is not in the original segment")
    return firsts, owners


def _check_headers(
    batches: HeaderTable, new_batches: HeaderTable, owners: Longs, codec: Codec
) -> None:
    """Check the fields that every batch must keep."""
    new = new_batches.chosen(owners)
    is_same = (
        (new.leader_epochs == batches.leader_epochs)
        & (new.producer_ids == batches.producer_ids)
        & (new.producer_epochs == batches.producer_epochs)
        & (new.base_sequences == batches.base_sequences)
        & ((new.attributes ^ batches.attributes) & ~CODEC_BITS == 0)
    )
    refuse_at(batches.base_offsets, ~is_same, "changes the header of the batch")
    codecs = new.attributes & CODEC_BITS
    is_allowed = (codecs == codec.value) | (codecs == batches.attributes & CODEC_BITS)
    refuse_at(batches.base_offsets, ~is_allowed, "changes the codec of the batch")


def _check_merged(batches: HeaderTable, new_batches: HeaderTable, firsts: Longs) -> None:
    """Check that merged batches could be merged, and the timestamps of all batches."""
    is_first = np.zeros(len(batches), np.bool_)
    is_first[firsts] = True
    refuse_at(batches.base_offsets, ~is_first & ~follows_on(batches), "merges the batch")
    base = batches.base_timestamps_ms[firsts]
    newest = np.maximum.reduceat(batches.max_timestamps_ms, firsts)
    is_same = (new_batches.base_timestamps_ms == base) & (new_batches.max_timestamps_ms == newest)
    refuse_at(new_batches.base_offsets, ~is_same, "changes the timestamp of the batch")


def _check_records(data: Bytes, new_data: Bytes) -> None:
    try:
        old = decode_columns(data, wanted=COMPARED, verify=False)
        new = decode_columns(new_data, wanted=COMPARED, verify=False)
    except CorruptBatch as error:
        raise CorruptionError(f"a batch cannot be read: {error}") from None
    if not np.array_equal(old.offsets, new.offsets):
        count = min(len(old), len(new))
        differs = np.flatnonzero(old.offsets[:count] != new.offsets[:count])
        at = int(differs[0]) if len(differs) else count
        rest = old.offsets if at < len(old) else new.offsets
        raise refused(int(rest[at]), "adds or lacks the record")
    changed = first_changed(old, new, np.arange(len(old)))
    if changed >= 0:
        raise refused(int(old.offsets[changed]), "changes the record")


def _bytes(data: Bytes, batches: HeaderTable, row: int) -> Bytes:
    start = int(batches.positions[row])
    return data[start : start + int(batches.sizes[row])]
