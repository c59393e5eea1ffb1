"""Prove a compaction pass: the broker reads both logs itself before it replaces anything.

A job proposes staged segments to replace live ones. This module decides, from the broker's own
order and its own reading, whether the topic's policy allows the proposal:

* Every record that stays equals the record at its offset: key, value, headers and timestamp are
  compared in full, and so are the batch headers. Every batch of the old log is read with its
  checksum.
* Every dropped record was superseded by a later one of its key below the order's bound, had no key,
  or belonged to an aborted transaction; or it is a tombstone whose delete horizon is over and which
  every registered reader has passed, and then no older record of its key stays. Keys are compared
  by their 128-bit SipHash, with a secret made for this one proof.
* A marker is dropped only if its delete horizon is over, every reader has passed it, and its
  transaction has no batch left. A delete horizon is set once, from the order's time on. Headers
  of batches that hold a producer's last sequence stay.

The whole range of the order is read once, and the staged segments once (``batch_runs``). The keys
need bounded memory (``key_table``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.columns import Columns, kernel_times
from cordwood.batch.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
)
from cordwood.batch.header_table import Bytes, HeaderTable, Longs, Mask
from cordwood.batch.records import decode_batch
from cordwood.errors import CorruptBatch, CorruptionError, InvalidManifest
from cordwood.log.format.producers import WrongSnapshot, parse_aborted
from cordwood.log.lifecycle.key_table import ENTRIES_MAX, KeyTable
from cordwood.log.read.batch_runs import ReadBuffer, StagedLog, read_sealed
from cordwood.log.read.compaction_masks import EACH_BATCH, is_last_of_producer, is_past_horizon
from cordwood.log.read.record_comparison import COMPARED, first_changed
from cordwood.model import Aborted, SegmentInfo

_KEPT_BITS: Final = APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_UNTOUCHED: Final = frozenset({"key", "value"})

Run = tuple[Bytes, HeaderTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRules:
    """The part of the broker's order that concerns records."""

    now_ms: int
    delete_retention_ms: int
    passed_end: int  # every registered reader has reached this offset
    aborted: tuple[Aborted, ...]
    producers: tuple[tuple[int, int, int], ...]  # id, epoch, last data offset or -1
    codecs: frozenset[int] | None  # allowed for re-encoded batches; None: unchanged


class Stretch(NamedTuple):
    """Neighbouring live segments and the staged segment that replaces them, if any."""

    live: tuple[SegmentInfo, ...]
    staged: Path | None  # its log, which only the broker can change
    txnindex: bytes = b""


class Proof(NamedTuple):
    """Result of a proof that succeeded."""

    records: int
    dropped: int
    tombstones_end: int  # one past the last dropped tombstone or marker; 0 if none


def prove_pass(
    directory: Path,
    rules: PassRules,
    stretches: Sequence[Stretch],
    *,
    entries_max: int = ENTRIES_MAX,
) -> Proof:
    """Check a pass; raises ``InvalidManifest`` with the first offset that breaks a rule."""
    records = sum(info.records for stretch in stretches for info in stretch.live)
    with KeyTable(records, entries_max) as keys:
        checker = _Checker(rules, keys)
        for stretch in stretches:
            checker.check(directory, stretch)
        keys.check()
    return Proof(checker.records, checker.dropped, checker.tombstones_end)


# --- one stretch after another ------------------------------------------------------------------


@dataclass(slots=True)
class _Checker:
    rules: PassRules
    keys: KeyTable
    records: int = 0
    dropped: int = 0
    tombstones_end: int = 0
    _open: set[int] = field(default_factory=set)  # producers with an open transaction
    _buffer: ReadBuffer = field(default_factory=ReadBuffer)
    _new_buffer: ReadBuffer = field(default_factory=ReadBuffer)

    def check(self, directory: Path, stretch: Stretch) -> None:
        """Read a stretch and, beside it, the segment that replaces it."""
        if stretch.staged is None:
            for data, batches in self._live(directory, stretch):
                self._add_untouched(data, batches)
            return
        with stretch.staged.open("rb", buffering=0) as file:
            new = StagedLog(file.fileno(), self._new_buffer)
            for data, batches in self._live(directory, stretch):
                self._compare((data, batches), new.take(int(batches.last_offsets[-1])))
            _, rest = new.take(2**63 - 1)
            check_rest(rest, stretch.live[-1].end_offset)
        self._check_aborted(stretch)

    def _live(self, directory: Path, stretch: Stretch) -> Iterator[Run]:
        for info in stretch.live:
            yield from read_sealed(directory, info, self._buffer)

    def _add_untouched(self, data: Bytes, batches: HeaderTable) -> None:
        columns = _decode(data, _UNTOUCHED, self.rules.aborted)
        self._track_transactions(batches)
        self._add(columns, np.zeros(len(columns), bool))

    def _compare(self, run: Run, new_run: Run) -> None:
        (data, batches), (new_data, new_batches) = run, new_run
        at = _matched(batches, new_batches)
        removable = self._track_transactions(batches)
        _check_headers(batches, new_batches, at, self.rules)
        self._check_dropped_batches(batches, at[at >= 0])
        self._check_markers(run, new_run, at, removable)
        old, new = _decode(data, COMPARED, self.rules.aborted), _decode(new_data, COMPARED)
        dropped = _check_kept(old, new)
        _check_times(batches, new_batches, at, new)
        self._add(old, dropped)

    def _track_transactions(self, batches: HeaderTable) -> Mask:
        """Track open transactions; returns which markers have no batch left in the log."""
        removable, is_marker = np.zeros(len(batches), bool), batches.is_marker
        is_event = batches.is_transactional & (is_marker | ~batches.is_control)
        for row in np.flatnonzero(is_event).tolist():
            producer_id = int(batches.producer_ids[row])
            if not is_marker[row]:
                self._open.add(producer_id)
            elif producer_id in self._open:
                self._open.remove(producer_id)
            else:
                removable[row] = True
        return removable

    def _add(self, columns: Columns, dropped: Mask) -> None:
        """Add the keys of these rows, and whether each row is dropped."""
        assert columns.keys is not None
        assert columns.values is not None
        is_keyed = columns.keys.lengths >= 0
        rows = columns.batch_rows
        past = (columns.values.lengths < 0) & self._is_past(columns.batches, columns.offsets, rows)
        self.keys.add(columns, is_keyed, dropped, past)
        self.records += len(columns)
        self.dropped += int(dropped.sum())
        gone = columns.offsets[dropped & past & is_keyed]
        if len(gone):
            self.tombstones_end = max(self.tombstones_end, int(gone[-1]) + 1)

    def _is_past(self, batches: HeaderTable, offsets: Longs, rows: Any) -> Mask:
        rules = self.rules
        return is_past_horizon(batches, rows, offsets, rules.now_ms, rules.passed_end)

    # --- batches ------------------------------------------------------------------------------

    def _check_dropped_batches(self, batches: HeaderTable, kept: Longs) -> None:
        """Check that batch headers with a producer's last sequence stay."""
        is_gone = np.ones(len(batches), bool)
        is_gone[kept] = False
        if is_gone.any():
            refuse_at(
                batches.base_offsets,
                is_gone & is_last_of_producer(batches, self.rules.producers),
                "drops the batch that holds the last sequence of a producer",
            )

    def _check_markers(self, run: Run, new_run: Run, at: Longs, removable: Mask) -> None:
        """Check that markers are unchanged, and dropped only when allowed, as are new horizons."""
        (data, batches), (new_data, new_batches) = run, new_run
        new_at = {int(old): new for new, old in enumerate(at.tolist()) if old >= 0}
        is_past = removable & self._is_past(batches, batches.base_offsets, EACH_BATCH)
        for row in np.flatnonzero(batches.is_marker).tolist():
            offset = int(batches.base_offsets[row])
            new = new_at.get(row)
            if new is None or not new_batches.counts[new]:
                if not is_past[row]:
                    raise refused(offset, "drops a transaction marker that is still needed")
                self.tombstones_end = max(self.tombstones_end, offset + 1)
                continue
            before = decode_batch(data.data, int(batches.positions[row]))
            if decode_batch(new_data.data, int(new_batches.positions[new])) != before:
                raise refused(offset, "changes a transaction marker")
            is_new_horizon = (
                new_batches.attributes[new] & ~batches.attributes[row] & DELETE_HORIZON_BIT
            )
            if is_new_horizon and not removable[row]:
                raise refused(
                    offset, "sets a delete horizon on a marker whose transaction still has records"
                )

    def _check_aborted(self, stretch: Stretch) -> None:
        """Check that the staged transaction index lists only transactions the broker knows."""
        known = set(self.rules.aborted)
        try:
            entries = parse_aborted(stretch.txnindex)
        except WrongSnapshot as error:
            raise refused(
                stretch.live[0].base_offset, f"has a transaction index: {error}"
            ) from None
        for entry in entries:
            if entry not in known:
                raise refused(entry.first_offset, "marks a transaction as aborted that was not")


def _matched(batches: HeaderTable, new_batches: HeaderTable) -> Longs:
    """For each new batch the index of the old one with its base offset; -1 if there is none."""
    at = np.searchsorted(batches.base_offsets, new_batches.base_offsets)
    at = np.minimum(at, len(batches) - 1)
    matched: Longs = np.where(batches.base_offsets[at] == new_batches.base_offsets, at, -1)
    return matched


def _check_headers(
    batches: HeaderTable, new_batches: HeaderTable, at: Longs, rules: PassRules
) -> None:
    """Check that each new batch header equals the old one, except for fields a pass may change."""
    _check_fillers(new_batches, at)
    which = at >= 0
    new, old = new_batches.chosen(which), batches.chosen(at[which])
    offsets = new.base_offsets
    refuse_at(offsets[1:], np.diff(offsets) <= 0, "has batches out of order")
    is_same = (
        (new.last_offset_deltas == old.last_offset_deltas)
        & (new.leader_epochs == old.leader_epochs)
        & (new.producer_ids == old.producer_ids)
        & (new.producer_epochs == old.producer_epochs)
        & (new.base_sequences == old.base_sequences)
        & ((new.attributes ^ old.attributes) & _KEPT_BITS == 0)
        & (new.counts <= old.counts)
    )
    refuse_at(offsets, ~is_same, "changes the header of the batch")
    codec, old_codec = new.attributes & CODEC_BITS, old.attributes & CODEC_BITS
    is_known = (codec == old_codec) | (new.counts == 0)
    if rules.codecs is not None:
        is_known |= np.isin(codec, list(rules.codecs))
    refuse_at(offsets, ~is_known, "changes the codec of the batch")
    has, had = new.has_delete_horizon, old.has_delete_horizon
    is_kept = np.where(had, new.base_timestamps_ms == old.base_timestamps_ms, ~has)
    is_given = ~had & (new.base_timestamps_ms >= rules.now_ms + rules.delete_retention_ms)
    refuse_at(
        offsets,
        (new.counts > 0) & (has | had) & ~(has & (is_kept | is_given)),
        "changes the delete horizon of the batch",
    )


def _check_fillers(new_batches: HeaderTable, at: Longs) -> None:
    """Check that a batch without an old counterpart is empty and has no producer."""
    is_filler = (
        (new_batches.counts == 0)
        & (new_batches.producer_ids < 0)
        & ~(new_batches.is_control | new_batches.is_transactional)
    )
    refuse_at(
        new_batches.base_offsets,
        (at < 0) & ~is_filler,
        "has a batch that is not in the original segments",
    )


def check_rest(batches: HeaderTable, end_offset: int) -> None:
    """Check that only empty batches, up to the end offset, follow the last old batch."""
    _check_fillers(batches, np.full(len(batches), -1, np.int64))
    if len(batches) and int(batches.last_offsets[-1]) >= end_offset:
        raise refused(int(batches.last_offsets[-1]), "extends past the segments it replaces")


# --- records --------------------------------------------------------------------------------


def _check_kept(old: Columns, new: Columns) -> Mask:
    """Check that each new record equals the old one at its offset; returns the dropped rows."""
    dropped = np.ones(len(old), bool)
    if not len(new):
        return dropped
    refuse_at(new.offsets[1:], np.diff(new.offsets) <= 0, "has records out of order")
    rows = np.searchsorted(old.offsets, new.offsets)
    rows = np.minimum(rows, max(len(old) - 1, 0))
    if not len(old):
        raise refused(
            int(new.offsets[0]), "has a record that is not in the original segments, or was aborted"
        )
    is_there = old.offsets[rows] == new.offsets
    refuse_at(
        new.offsets, ~is_there, "has a record that is not in the original segments, or was aborted"
    )
    changed = first_changed(old, new, rows)
    if changed >= 0:
        raise refused(int(new.offsets[changed]), "changes the record")
    dropped[rows] = False
    return dropped


def _check_times(batches: HeaderTable, new_batches: HeaderTable, at: Longs, new: Columns) -> None:
    """Check that the largest timestamp of a batch is unchanged, or that of its records."""
    newest = np.full(len(new_batches), -(2**63), np.int64)
    owners = np.searchsorted(new_batches.positions, new.batches.positions)[new.batch_rows]
    np.maximum.at(newest, owners, kernel_times(new))
    is_kept = (at >= 0) & (batches.max_timestamps_ms[at] == new_batches.max_timestamps_ms)
    is_wrong = (at >= 0) & ~is_kept & (newest != new_batches.max_timestamps_ms)
    refuse_at(new_batches.base_offsets, is_wrong, "changes the timestamp of the batch")


def _decode(data: Bytes, wanted: frozenset[str], aborted: Sequence[Aborted] = ()) -> Columns:
    try:
        return decode_columns(data, wanted=wanted, aborted=aborted, verify=False)
    except CorruptBatch as error:
        raise CorruptionError(f"a batch cannot be read: {error}") from None


def refuse_at(offsets: Longs, is_wrong: Any, what: str) -> None:
    """Raise ``InvalidManifest`` with the first offset that is wrong, if any is."""
    wrong = np.flatnonzero(is_wrong)
    if len(wrong):
        raise refused(int(offsets[wrong[0]]), what)


def refused(offset: int, what: str) -> InvalidManifest:
    """The error for a staged segment that breaks a rule."""
    return InvalidManifest(f"the pass {what} (offset {offset}); nothing was replaced")
