"""Clean one run of batches: remove superseded, aborted and expired records.

Masks over columns decide which records stay, by the rules of ``decide.compaction``; a test compares
the two. A batch that loses nothing is copied byte for byte. A batch that loses some records is
encoded again; as in Kafka, its base offset, last offset, sequence, producer, epoch and codec do not
change, unless the topic sets another codec. A batch that loses all records is dropped, or kept as
an empty batch where its header is still needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns
from cordwood.batch.columns import Columns
from cordwood.batch.header import CODEC_BITS, DELETE_HORIZON_BIT, Buffer, parse_header
from cordwood.batch.header_table import HeaderTable, Longs, Mask, walk_batches
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.log.read.compaction_masks import (
    EACH_BATCH,
    Producer,
    is_last_of_producer,
    is_past_horizon,
)
from cordwood.model import Aborted, Codec

_COPY, _ENCODED, _MARKER = 0, 1, 2


class RewriteRules(NamedTuple):
    """The inputs of every decision, the same for all tasks of a pass."""

    now_ms: int
    delete_retention_ms: int
    passed_end: int  # every registered reader has reached this offset
    codec: Codec | None  # None: each batch keeps its codec
    levels: dict[Codec, int]  # of compression
    aborted: tuple[Aborted, ...]
    producers: tuple[Producer, ...]


class _Chunk(NamedTuple):
    """A run of whole batches and its decoded columns."""

    data: Buffer
    batches: HeaderTable
    columns: Columns
    owners: Any  # the index of each row's batch


class CleanedRun(NamedTuple):
    """What is left of a run of batches, and the rows it was encoded from."""

    data: Buffer
    columns: Columns
    kept: Mask
    removed: Columns  # due tombstones
    end_offset: int  # after the last batch that stays; 0 if none does
    leader_epoch: int


class BatchCleaner:
    """Removes superseded, aborted and expired records from a segment's chunks."""

    def __init__(
        self, rules: RewriteRules, superseded: Longs, markers: Longs, *, range_end: int
    ) -> None:
        """Take the offsets of superseded records and of removable markers, both ascending."""
        self._rules = rules
        self._superseded = superseded
        self._removable_markers = markers
        self._range_end = range_end
        self._horizon_ms = rules.now_ms + rules.delete_retention_ms

    def clean(self, data: Buffer) -> CleanedRun:
        """Clean one run of whole batches."""
        batches = walk_batches(data, verify=False).batches
        first = np.searchsorted(self._superseded, batches.base_offsets[0])
        columns = decode_columns(data, skipped=self._superseded[first:])
        owners = np.searchsorted(batches.positions, columns.batches.positions)[columns.batch_rows]
        chunk = _Chunk(data, batches, columns, owners)
        assert columns.keys is not None
        assert columns.values is not None
        is_lost = batches.is_aborted(self._rules.aborted)[owners]
        is_tombstone = (columns.keys.lengths >= 0) & (columns.values.lengths < 0)
        is_past = self._is_past(batches, owners, columns.offsets)
        is_removed = is_tombstone & ~is_lost & is_past
        kept = ~is_lost & ~is_removed  # superseded rows are not decoded; keyless rows stay
        actions = self._plan_actions(chunk, kept, is_tombstone)
        return CleanedRun(
            data=self._assemble(chunk, kept, actions),
            columns=columns,
            kept=kept,
            removed=columns.chosen(is_removed),
            end_offset=_end(batches, actions),
            leader_epoch=int(batches.leader_epochs[-1]),
        )

    def _is_past(self, batches: HeaderTable, rows: Any, offsets: Longs) -> Mask:
        rules = self._rules
        return is_past_horizon(batches, rows, offsets, rules.now_ms, rules.passed_end)

    def _plan_actions(self, chunk: _Chunk, kept: Mask, is_tombstone: Mask) -> _BatchActions:
        batches, owners = chunk.batches, chunk.owners
        counts = np.bincount(owners[kept], minlength=len(batches))
        tombstones = np.bincount(owners[kept & is_tombstone], minlength=len(batches))
        is_marker = batches.is_marker
        is_removable = is_marker & _is_in(self._removable_markers, batches.base_offsets)
        is_over = is_removable & self._is_past(batches, EACH_BATCH, batches.base_offsets)
        counts = np.where(is_marker, np.where(is_over, 0, batches.counts), counts)
        has_records, has_horizon = counts > 0, batches.has_delete_horizon
        is_needed = is_last_of_producer(batches, self._rules.producers)
        is_needed |= batches.last_offsets + 1 == self._range_end
        return _BatchActions(
            counts=counts,
            is_kept=has_records | is_needed,
            is_marked=has_records & ~has_horizon & ((tombstones > 0) | is_removable),
            is_recoded=has_records & _is_recoded(batches, self._rules.codec) & ~is_marker,
        )

    # --- encoding the result ------------------------------------------------------------------

    def _assemble(self, chunk: _Chunk, kept: Mask, actions: _BatchActions) -> Buffer:
        """Return the batches that stay, in order; unchanged runs are copied as they are."""
        data, batches = chunk.data, chunk.batches
        is_changed = actions.is_kept & (
            (actions.counts != batches.counts) | actions.is_marked | actions.is_recoded
        )
        if not bool(is_changed.any()) and bool(actions.is_kept.all()):
            return data
        is_remarked = is_changed & batches.is_control & (actions.counts > 0)
        is_encoded = is_changed & ~is_remarked
        encoded = self._encode(chunk, kept, actions, is_encoded)
        markers = b"".join(
            self._mark(data, int(position)) for position in batches.positions[is_remarked]
        )
        sources = np.where(is_remarked, _MARKER, np.where(is_encoded, _ENCODED, _COPY))
        positions, sizes = batches.positions.copy(), batches.sizes.copy()
        for which, made in ((is_encoded, encoded), (is_remarked, markers)):
            walk = walk_batches(made, verify=False).batches
            positions[which], sizes[which] = walk.positions, walk.sizes
        chosen = actions.is_kept
        return _join((data, encoded, markers), sources[chosen], positions[chosen], sizes[chosen])

    def _encode(self, chunk: _Chunk, kept: Mask, actions: _BatchActions, which: Mask) -> bytearray:
        """Encode batches that lose records, or get a delete horizon or another codec."""
        made = chunk.batches.chosen(which)
        made.counts[:] = actions.counts[which]
        is_marked, is_empty = actions.is_marked[which], actions.counts[which] == 0
        attributes = made.attributes.copy()
        if self._rules.codec is not None:
            attributes = attributes & ~CODEC_BITS | self._rules.codec.value
        attributes[is_marked] |= DELETE_HORIZON_BIT
        attributes[is_empty] &= ~(DELETE_HORIZON_BIT | CODEC_BITS)
        made.attributes[:] = attributes
        made.base_timestamps_ms[is_marked] = self._horizon_ms
        made.base_timestamps_ms[is_empty] = made.max_timestamps_ms[is_empty]
        columns = chunk.columns.chosen(kept & which[chunk.owners])
        return encode_columns(columns, made, self._rules.levels)

    def _mark(self, data: Buffer, position: int) -> bytes:
        """Encode a marker with a delete horizon; markers are few enough for plain Python."""
        header = parse_header(data, position)
        return encode_batch(
            decode_batch(data, position),
            timestamp_type=header.timestamp_type,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            max_timestamp_ms=header.max_timestamp_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            leader_epoch=header.leader_epoch,
            is_transactional=header.is_transactional,
            is_control=True,
            delete_horizon_ms=self._horizon_ms,
        )


class _BatchActions(NamedTuple):
    """What happens to each batch of a chunk."""

    counts: Longs  # records that stay
    is_kept: Mask
    is_marked: Mask  # gets a delete horizon
    is_recoded: Mask


def _end(batches: HeaderTable, actions: _BatchActions) -> int:
    last = np.flatnonzero(actions.is_kept)
    return int(batches.last_offsets[last[-1]]) + 1 if len(last) else 0


def _is_recoded(batches: HeaderTable, codec: Codec | None) -> Mask:
    if codec is None:
        return np.zeros(len(batches), bool)
    differs: Mask = batches.attributes & CODEC_BITS != codec.value
    return differs


def _is_in(sorted_offsets: Longs, offsets: Longs) -> Mask:
    """Return a mask of the offsets that are in ``sorted_offsets``."""
    if not len(sorted_offsets):
        return np.zeros(len(offsets), bool)
    at = np.minimum(np.searchsorted(sorted_offsets, offsets), len(sorted_offsets) - 1)
    mask: Mask = sorted_offsets[at] == offsets
    return mask


def _join(buffers: Sequence[Buffer], sources: Longs, positions: Longs, sizes: Longs) -> bytes:
    """Join batches from several buffers in the given order; adjacent ones are copied as one run."""
    if not len(sources):
        return b""
    views = [memoryview(buffer) for buffer in buffers]
    breaks = (sources[1:] != sources[:-1]) | (positions[1:] != positions[:-1] + sizes[:-1])
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    ends = np.concatenate([starts[1:], [len(sources)]])
    return b"".join(
        views[sources[start]][positions[start] : positions[end - 1] + sizes[end - 1]]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    )
