"""Rewrite batches in another codec, and merge small neighbours so that they compress.

A batch of one line does not compress: its neighbours have what it repeats. So neighbours without a
producer id are merged into batches of about ``MERGED_BYTES``. All other batches keep their
boundaries, because a producer's sequences, a transaction, a marker or a delete horizon belongs to a
batch as it is. Of these only the codec changes: the bytes of the records are the same after
decompression. Offsets, timestamps, keys, values and headers never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns, reframed
from cordwood.batch.compression import compress, decompress
from cordwood.batch.header import APPEND_TIME_BIT, CODEC_BITS, HEADER_BYTES
from cordwood.batch.header_table import Bytes, HeaderTable, Mask
from cordwood.model import NO_PRODUCER, Codec

MERGED_BYTES: Final = 64 * 1024  # larger batches compress lines of 100 bytes hardly better
SMALL_BYTES: Final = HEADER_BYTES + 64  # a batch this small does not shrink


class Recoding(NamedTuple):
    """The codec to write, its levels, and the largest merged batch before compression."""

    codec: Codec
    levels: Mapping[Codec, int]
    merged_bytes: int = MERGED_BYTES


class MergeGroup(NamedTuple):
    """Neighbouring batches by row, ``end`` excluded; more than one are merged."""

    start: int
    end: int


def recode(
    data: Bytes, batches: HeaderTable, recoding: Recoding, *, is_start: bool
) -> Iterator[bytes | bytearray | memoryview]:
    """Yield the batches of a run, rewritten; every buffer holds whole batches.

    The first batch of a segment (``is_start``) stays alone, since its timestamp is the segment's.
    """
    view = data.data
    merged: list[MergeGroup] = []
    for group in plan_merges(batches, recoding.merged_bytes, is_start=is_start):
        if group.end - group.start > 1:
            merged.append(group)
            continue
        if merged:
            yield _merge(view, batches, merged, recoding)
            merged = []
        yield _recode_one(view, batches, group.start, recoding)
    if merged:
        yield _merge(view, batches, merged, recoding)


def plan_merges(
    batches: HeaderTable, merged_bytes: int = MERGED_BYTES, *, is_start: bool = False
) -> Iterator[MergeGroup]:
    """Yield groups that cover all batches in order; those of one group may be merged."""
    follows = follows_on(batches)
    follows[1:2] &= not is_start
    chains = [*np.flatnonzero(~follows).tolist(), len(batches)]
    ends = np.cumsum(batches.sizes)
    for start, chain_end in pairwise(chains):
        at = start
        while at < chain_end:
            spent = int(ends[at - 1]) if at else 0
            fits = int(np.searchsorted(ends, spent + merged_bytes, side="right"))
            end = max(at + 1, min(fits, chain_end))
            yield MergeGroup(at, end)
            at = end


def follows_on(batches: HeaderTable) -> Mask:
    """Mask of the batches that may be merged with the one before them.

    Both are uncompressed, have records and no producer id, and are no part of a transaction. With
    timestamps of the broker, all records of a batch have one timestamp, so it must be the same.
    """
    is_plain = (
        (batches.producer_ids == NO_PRODUCER)
        & (batches.producer_epochs == NO_PRODUCER)
        & (batches.base_sequences == NO_PRODUCER)
        & (batches.attributes & ~APPEND_TIME_BIT == 0)
        & (batches.counts > 0)
    )
    mask = np.zeros(len(batches), np.bool_)
    is_append_time = batches.attributes[1:] & APPEND_TIME_BIT != 0
    mask[1:] = (
        is_plain[1:]
        & is_plain[:-1]
        & (batches.attributes[1:] == batches.attributes[:-1])
        & (batches.leader_epochs[1:] == batches.leader_epochs[:-1])
        & (batches.base_offsets[1:] == batches.last_offsets[:-1] + 1)
        & (~is_append_time | (batches.max_timestamps_ms[1:] == batches.max_timestamps_ms[:-1]))
    )
    return mask


def _merge(
    view: memoryview, batches: HeaderTable, groups: list[MergeGroup], recoding: Recoding
) -> bytearray:
    """Encode adjacent groups, each as one batch."""
    rows = batches.chosen(slice(groups[0].start, groups[-1].end))
    end = int(rows.positions[-1] + rows.sizes[-1])
    columns = decode_columns(view[int(rows.positions[0]) : end], verify=False)
    firsts = np.array([group.start for group in groups]) - groups[0].start
    lasts = np.array([group.end for group in groups]) - groups[0].start - 1
    made = rows.chosen(firsts)
    made.counts[:] = np.add.reduceat(rows.counts, firsts)
    made.last_offset_deltas[:] = rows.last_offsets[lasts] - rows.base_offsets[firsts]
    made.attributes[:] |= recoding.codec.value
    return encode_columns(columns, made, recoding.levels)


def _recode_one(
    view: memoryview, batches: HeaderTable, row: int, recoding: Recoding
) -> bytes | bytearray | memoryview:
    """Return one batch in the codec, or as it is if it has no records or would not shrink."""
    attributes, size = int(batches.attributes[row]), int(batches.sizes[row])
    position = int(batches.positions[row])
    batch = view[position : position + size]
    old, new = Codec(attributes & CODEC_BITS), recoding.codec
    if old is new or batches.is_control[row] or not batches.counts[row]:
        return batch
    if old is Codec.NONE and size <= SMALL_BYTES:
        return batch
    records = decompress(old, batch[HEADER_BYTES:])
    body = compress(new, records, recoding.levels.get(new))
    if new is not Codec.NONE and len(body) + HEADER_BYTES >= size:
        return batch
    return reframed(batch, body, attributes & ~CODEC_BITS | new.value)
