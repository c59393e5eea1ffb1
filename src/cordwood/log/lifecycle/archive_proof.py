"""Prove that an archive bundle holds the records of the log: the broker reads and compares both.

RECLAIM deletes segments because a bundle holds their records. So no claim of a job about its bundle
is trusted: the bundle is read beside the log, batch by batch.

* Every batch of the log that has records is in the bundle with the same offsets; where the bundle
  begins or ends inside a batch, the overlapping part is. Equal bytes need no further check.
  Otherwise (a batch that was split, or compacted or compressed since), the header must agree in
  producer, sequence, leader epoch and transaction, and every record of the log must be there with
  its offset, timestamp, key, value and headers, compared in full.
* Every transaction marker of the bundle is in the log: a marker decides which records a restore
  brings back.
* A bundle may hold records at offsets the log no longer has, because compaction removed them after
  they were archived. They cannot be compared and are counted (``unproven_records``); none of them
  takes the place of a record the log has.

A proof stays valid: records never change, and compaction only removes some. Both sides are
streamed, with memory for one run of batches. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final, NamedTuple, Protocol

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.columns import Columns, kernel_times
from cordwood.batch.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    CONTROL_BIT,
    SEQUENCE_MODULUS,
    TRANSACTIONAL_BIT,
    parse_header,
)
from cordwood.batch.header_table import Bytes, HeaderTable, Mask, WalkEnd, readonly, walk_batches
from cordwood.batch.records import decode_batch
from cordwood.config import MIB
from cordwood.decide.archive import Span
from cordwood.errors import CordwoodError, CorruptBatch, CorruptionError, OffsetOutOfRange
from cordwood.log.format.bundle import BundleTotals, checked_runs
from cordwood.log.read.record_comparison import COMPARED, first_changed
from cordwood.log.read.snapshot import ReadSlice
from cordwood.model import NO_PRODUCER, TopicPartition

READ_BYTES: Final = 4 * MIB
_KEPT_BITS: Final = APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_TIMES: Final = frozenset({"timestamp"})


class Unproven(Exception):
    """It cannot be determined whether the bundle holds the records; it is not known to be wrong."""


class ReadableLog(Protocol):
    """The methods of a partition that are used here."""

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that can be read."""
        ...

    def read(self, offset: int, max_bytes: int, *, end_offset: int | None = None) -> ReadSlice:
        """Whole batches from the one that holds ``offset``."""
        ...


class BundleProof(NamedTuple):
    """Content of a bundle, counted from its records."""

    records: int  # without transaction markers
    first_ms: int  # -1 without records
    newest_ms: int
    transactional: bool
    unproven_records: int  # at offsets the log no longer has


class Run(NamedTuple):
    """Batches and the buffer that holds them."""

    data: Bytes
    batches: HeaderTable

    @property
    def bytes(self) -> Bytes:
        """The bytes from the first batch to the last."""
        start = int(self.batches.positions[0])
        return self.data[start : int(self.batches.positions[-1] + self.batches.sizes[-1])]


class Batch(NamedTuple):
    """One row of a header table and the buffer that holds its bytes."""

    data: Bytes
    table: HeaderTable
    row: int

    @property
    def base_offset(self) -> int:
        """The first offset it covers."""
        return int(self.table.base_offsets[self.row])

    @property
    def last_offset(self) -> int:
        """The last offset it covers."""
        return self.base_offset + int(self.table.last_offset_deltas[self.row])

    @property
    def is_control(self) -> bool:
        """Whether it is a transaction marker."""
        return bool(self.table.attributes[self.row] & CONTROL_BIT)

    @property
    def bytes(self) -> Bytes:
        """Its bytes as stored."""
        start = int(self.table.positions[self.row])
        return self.data[start : start + int(self.table.sizes[self.row])]


def prove_bundle(
    source: IO[bytes], tp: TopicPartition, span: Span, log: ReadableLog
) -> BundleProof:
    """Compare a bundle with the log; raises ``CorruptionError`` where they contradict each other.

    Raises ``Unproven`` where the log cannot be read, or lacks a batch that the proof needs.
    """
    own, seen, totals = _OwnLog(log, span), _Unmatched(), BundleTotals()
    start = span.start
    for data, batches in checked_runs(source, tp, span):
        bundle = Run(readonly(data), batches)
        last = int(batches.last_offsets[-1])
        _compare(bundle, own.take(last), Span(start, last + 1), seen)
        start = last + 1
        totals.add_batches(batches)
        for part in _decodable(bundle):
            totals.add_times(kernel_times(_decode(part, _TIMES)))
    rest = Span(start, span.end)
    for run in own.take(span.end - 1):
        for row in range(len(run.batches)):
            if _records_inside(Batch(*run, row), rest):
                raise _lacks(max(start, int(run.batches.base_offsets[row])))
    own.check_start(seen)
    return BundleProof(
        totals.records, totals.first_ms, totals.newest_ms, totals.transactional, seen.records
    )


@dataclass(slots=True)
class _Unmatched:
    """What the bundle holds at offsets the log no longer has."""

    records: int = 0
    last_marker: int = -1  # offset of the last transaction marker


def _decodable(run: Run) -> Iterator[Bytes]:
    """The whole run, or single batches if any is compressed, since each may inflate to much."""
    if not bool((run.batches.attributes & CODEC_BITS).any()):
        yield run.data
        return
    for row in range(len(run.batches)):
        yield Batch(*run, row).bytes


class _OwnLog:
    """The batches of the log inside a span that have records, in order."""

    def __init__(self, log: ReadableLog, span: Span) -> None:
        self._log = log
        self._span = span
        self._start = max(span.start, log.log_start_offset)
        self._next = self._start
        self._held: list[Run] = []

    def take(self, last_offset: int) -> Iterator[Run]:
        """Yield the next batches that begin at or below ``last_offset``, in runs.

        A batch that ends later is yielded again next time.
        """
        while self._held or (self._next <= last_offset and self._next < self._span.end):
            if not self._held:
                self._read()
                continue
            data, batches = self._held.pop()
            count = int(np.searchsorted(batches.base_offsets, last_offset, side="right"))
            if count:
                yield Run(data, batches.chosen(slice(0, count)))
            taken = int(np.searchsorted(batches.last_offsets, last_offset, side="right"))
            if taken < len(batches):
                self._held.append(Run(data, batches.chosen(slice(taken, None))))
                return

    def check_start(self, seen: _Unmatched) -> None:
        """Raise ``Unproven`` if the log lacks a marker of the bundle and starts at or before it."""
        if seen.last_marker >= max(self._start, self._log.log_start_offset):
            raise Unproven(
                f"the bundle has a transaction marker at offset {seen.last_marker}, but the log "
                "no longer has one there"
            )

    def _read(self) -> None:
        asked = self._next
        try:
            part = self._log.read(asked, READ_BYTES, end_offset=self._span.end)
        except OffsetOutOfRange:
            if self._log.log_start_offset <= asked:
                raise
            self._next = self._log.log_start_offset  # earlier records were removed by policy
            return
        except CordwoodError as error:
            raise Unproven(f"the log cannot be read from offset {asked}: {error}") from None
        data = readonly(part.data)
        walk = walk_batches(data)
        if walk.end is not WalkEnd.CLEAN:
            raise Unproven(f"the log is damaged after offset {asked}; run `cordwood segment scrub`")
        assert part.next_offset > asked, "a read goes on"
        is_due = (walk.batches.counts > 0) & (walk.batches.last_offsets >= asked)
        if bool(is_due.any()):
            self._held = [Run(data, walk.batches.chosen(is_due))]
        self._next = part.next_offset


# --- a run of batches ---------------------------------------------------------------------------


def _compare(bundle: Run, own: Iterable[Run], span: Span, seen: _Unmatched) -> None:
    """Match every batch of the log with a batch in this run of the bundle; adds up the others."""
    batches = bundle.batches
    is_matched = np.zeros(len(batches), bool)
    for run in own:
        first = int(np.searchsorted(batches.base_offsets, run.batches.base_offsets[0]))
        rows = slice(first, first + len(run.batches))
        if _is_same_run(run, Run(bundle.data, batches.chosen(rows))):
            is_matched[rows] = True
            continue
        for row in range(len(run.batches)):
            is_matched[_find(Batch(*run, row), bundle, span, seen)] = True
    _add_unmatched(batches, ~is_matched & (batches.counts > 0), seen)


def _is_same_run(one: Run, other: Run) -> bool:
    """Whether both are the same contiguous batches, byte for byte."""
    if len(one.batches) != len(other.batches):
        return False
    for batches in (one.batches, other.batches):
        if not np.array_equal(batches.positions[1:], (batches.positions + batches.sizes)[:-1]):
            return False
    return np.array_equal(one.bytes, other.bytes)


def _find(own: Batch, bundle: Run, span: Span, seen: _Unmatched) -> slice:
    """The rows of the bundle that hold a batch of the log; none if it has no records there.

    There is more than one if the batches were merged when the log was compressed, after the bundle
    was made.
    """
    first, last = max(own.base_offset, span.start), min(own.last_offset, span.end - 1)
    rows = slice(*np.searchsorted(bundle.batches.base_offsets, [first, last + 1]).tolist())
    copies = [Batch(*bundle, row) for row in range(rows.start, rows.stop)]
    if not copies or (copies[0].base_offset, copies[-1].last_offset) != (first, last):
        if _records_inside(own, span):
            raise _lacks(first)
        return slice(0, 0)
    if len(copies) > 1 or not np.array_equal(copies[0].bytes, own.bytes):
        seen.records += _check_same(own, copies)
    return rows


def _add_unmatched(batches: HeaderTable, is_other: Mask, seen: _Unmatched) -> None:
    """Add the batches that the log does not have."""
    is_control = batches.is_control
    markers = batches.base_offsets[is_other & is_control]
    if len(markers):
        seen.last_marker = int(markers[-1])
    seen.records += int(batches.counts[is_other & ~is_control].sum())


# --- one batch ----------------------------------------------------------------------------------


def _check_same(own: Batch, copies: Sequence[Batch]) -> int:
    """Raise unless ``copies`` have the header and records of ``own``; returns their extra records.

    Only a batch without a producer id may have been several.
    """
    for copy in copies:
        _check_header(own, copy)
    first, last = copies[0].base_offset, copies[-1].last_offset
    if own.is_control:
        before, after = (decode_batch(each.bytes.data) for each in (own, copies[0]))
        if before != after:
            raise _differs(own.base_offset, "a different transaction marker")
        return 0
    if len(copies) > 1 and own.table.producer_ids[own.row] != NO_PRODUCER:
        raise _differs(own.base_offset, "several batches of a producer, where there is one, rather")
    before_ = _decode(own.bytes, COMPARED)
    after_ = _decode(np.concatenate([copy.bytes for copy in copies]), COMPARED)
    inside = (before_.offsets >= first) & (before_.offsets <= last)
    ours = before_.chosen(inside)
    is_rising = bool((np.diff(after_.offsets) > 0).all())
    rows = np.searchsorted(after_.offsets, ours.offsets)
    is_there = rows < len(after_)
    is_there[is_there] = after_.offsets[rows[is_there]] == ours.offsets[is_there]
    if not is_rising or not bool(is_there.all()):
        missing = ours.offsets[~is_there]
        raise _lacks(int(missing[0]) if len(missing) else own.base_offset)
    changed = first_changed(after_, ours, rows)
    if changed >= 0:
        raise _differs(int(ours.offsets[changed]), "another record")
    return len(after_) - len(ours)


def _check_header(own: Batch, copy: Batch) -> None:
    before, after = parse_header(own.bytes.data), parse_header(copy.bytes.data)
    sequence = before.base_sequence
    if sequence >= 0:
        sequence = (sequence + after.base_offset - before.base_offset) % SEQUENCE_MODULUS
    bits = int(own.table.attributes[own.row]) ^ int(copy.table.attributes[copy.row])
    is_same = (before.leader_epoch, before.producer_id, before.producer_epoch, sequence) == (
        after.leader_epoch, after.producer_id, after.producer_epoch, after.base_sequence,
    )  # fmt: skip
    if not is_same or bits & _KEPT_BITS:
        raise _differs(copy.base_offset, "a different batch header")


def _records_inside(batch: Batch, span: Span) -> bool:
    """Whether the batch has records in the span; one that crosses its edge may not."""
    if span.start <= batch.base_offset and batch.last_offset < span.end:
        return True
    if batch.is_control:
        return span.start <= batch.base_offset < span.end
    offsets = _decode(batch.bytes, frozenset()).offsets
    return bool(((offsets >= span.start) & (offsets < span.end)).any())


def _decode(data: Bytes, wanted: frozenset[str]) -> Columns:
    try:
        return decode_columns(data, wanted=wanted, verify=False)
    except CorruptBatch as error:
        raise CorruptionError(f"a batch cannot be read: {error}") from None


def _lacks(offset: int) -> CorruptionError:
    return CorruptionError(
        f"the bundle lacks the record or marker that the log has at offset {offset}; archive the "
        "topic to another place with --dest"
    )


def _differs(offset: int, what: str) -> CorruptionError:
    return CorruptionError(
        f"the bundle has {what} than the log at offset {offset}; archive the topic to another "
        "place with --dest"
    )
