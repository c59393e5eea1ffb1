"""Rewrite a group of neighbouring segments as one staged segment without superseded records.

Masks over columns decide which records stay, by the rules of ``decide.compaction``; a test compares
the two. A batch that loses nothing is copied byte for byte. A batch that loses some records is
encoded again; as in Kafka, its base offset, last offset, sequence, producer, epoch and codec do not
change, unless the topic sets another codec. A batch that loses all records is dropped, or kept as
an empty batch where its header is still needed. Every staged segment reaches the end of its range,
with an empty batch if necessary, so that recovery in the middle of a swap knows where it ends.

Each chunk is decoded again and its checksum compared before it is written. Offset and time indexes
are not staged: the swap reads every staged batch anyway and builds them then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.columns import Aborted, Columns, decode_columns, encode_columns
from cordwood.batch.header import CODEC_BITS, CONTROL_BIT, DELETE_HORIZON_BIT, Buffer, parse_header
from cordwood.batch.header_table import HeaderTable, Longs, readonly, walk_batches
from cordwood.batch.records import decode_batch, encode_batch, frame_batch
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.log.files.modes import make_shared_directory, open_shared, write_shared
from cordwood.log.format.layout import FileKind, file_name
from cordwood.log.format.manifest import StagedFile
from cordwood.log.format.producers import Aborted as AbortedEntry
from cordwood.log.format.producers import encode_aborted
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, Codec
from cordwood.pipeline.compact.digests import (
    DigestSource,
    DigestWriter,
    Summary,
    is_aborted,
    kernels,
    near,
    parse_secret,
    read_chunks,
)
from cordwood.pipeline.compact.superseded import Deltas, read_deltas

Mask = NDArray[np.bool_]
_COPY, _ENCODED, _MARKER = 0, 1, 2


class RewriteRules(NamedTuple):
    """The inputs of every decision, the same for all tasks of a pass."""

    now_ms: int
    delete_retention_ms: int
    passed_end: int  # every registered reader has reached this offset
    codec: Codec | None  # None: each batch keeps its codec
    aborted: tuple[AbortedEntry, ...]
    producers: tuple[tuple[int, int, int], ...]  # id, epoch, last data offset or -1; by id


class RewriteTask(NamedTuple):
    """One group to rewrite; ``numbers`` are the indexes of its segments within the pass."""

    sources: tuple[DigestSource, ...]
    numbers: tuple[int, ...]
    segments: int
    dead: tuple[str, ...]
    spent: str
    rules: RewriteRules
    staging: str
    digests: str
    topic_id: str
    secret: bytes
    bytes_max: int  # size limit of the result if the group has several segments


class Rewritten(NamedTuple):
    """A staged segment, and its share of the pass's totals."""

    base_offset: int
    end_offset: int
    records: int
    files: tuple[StagedFile, ...]
    digest: str
    removed_sum: int  # checksum of removed entries that were their key's newest: due tombstones
    removed_keys: int
    values_sum: int
    summary: Summary


@dataclass(slots=True)
class _Totals:
    removed: Any = field(default_factory=lambda: np.zeros(1, np.uint64))
    values: Any = field(default_factory=lambda: np.zeros(1, np.uint64))
    removed_keys: int = 0
    records: int = 0
    end_offset: int = 0
    leader_epoch: int = 0


def rewrite(task: RewriteTask) -> Rewritten | None:
    """Write the group's staged files; raises ``CorruptionError`` if a chunk does not read back.

    Returns None, and leaves no files, if a group of several segments exceeds ``bytes_max``: the
    size was estimated from the share of records that stay, and these records are larger.
    """
    base_offset, end_offset = task.sources[0].base_offset, task.sources[-1].end_offset
    staging = Path(task.staging)
    make_shared_directory(staging)
    log = staging / file_name(base_offset, FileKind.LOG)
    secret = parse_secret(task.secret)
    digest = Path(task.digests) / f"{log.name}.{staging.name}"
    writer = DigestWriter(digest, task.topic_id, base_offset, secret)
    sums, totals = hashlib.sha256(), _Totals()
    try:
        with open_shared(log) as out:
            for source, number in zip(task.sources, task.numbers, strict=True):
                dead = read_deltas(task.dead, task.segments, number)
                spent = read_deltas([task.spent], task.segments, number)
                thinner = _BatchCleaner(source, dead, spent, range_end=end_offset, task=task)
                for piece in _pieces(thinner, totals, writer):
                    out.write(piece)
                    sums.update(piece)
                if len(task.sources) > 1 and out.tell() > task.bytes_max:
                    _give_up(log, writer)
                    return None
            if totals.end_offset < end_offset:
                piece = _filler(end_offset, totals.leader_epoch)
                writer.add(piece)
                out.write(piece)
                sums.update(piece)
        summary = writer.finish()
    except BaseException:
        writer.discard()
        raise
    stat = log.stat()
    live = DigestSource(str(log), base_offset, end_offset, stat.st_size, stat.st_mtime_ns)
    named = digest.with_name(live.digest_name)
    digest.rename(named)
    files = [StagedFile(name=log.name, size_bytes=stat.st_size, sha256=sums.hexdigest())]
    files += _stage_aborted(task, staging, base_offset, end_offset)
    return Rewritten(
        base_offset, end_offset, totals.records, tuple(files), str(named),
        int(totals.removed[0]), totals.removed_keys, int(totals.values[0]), summary,
    )  # fmt: skip


def _give_up(log: Path, writer: DigestWriter) -> None:
    writer.discard()
    log.unlink()


def _pieces(thinner: _BatchCleaner, totals: _Totals, writer: DigestWriter) -> Any:
    """Yield what is left of a segment chunk by chunk, each decoded and compared first."""
    try:
        for data in read_chunks(thinner.source):
            kept = thinner.thin(data)
            expected = kept.add_to(totals)
            if not kept.data:
                continue
            found = np.zeros(1, np.uint64)
            _sum_values(writer.add(kept.data), None, found)
            if int(found[0]) != expected:
                raise CorruptionError(
                    f"{thinner.source.path}: what was written does not read back as it was; "
                    "nothing was replaced"
                )
            yield kept.data
    except CorruptBatch as error:
        raise CorruptionError(
            f"{thinner.source.path}: {error}; restore this segment from a copy"
        ) from error


def _filler(end_offset: int, leader_epoch: int) -> bytes:
    """Encode an empty batch whose last offset is the last one of the range."""
    return frame_batch(
        b"",
        base_offset=end_offset - 1,
        leader_epoch=leader_epoch,
        attributes=0,
        last_offset_delta=0,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_PRODUCER,
        base_sequence=NO_PRODUCER,
        count=0,
    )


def _stage_aborted(
    task: RewriteTask, staging: Path, base_offset: int, end_offset: int
) -> list[StagedFile]:
    """Stage the index of aborted transactions that end in this group and had batches left.

    A transaction without a batch before this pass is left out.
    """
    spent: set[int] = set()
    for source, number in zip(task.sources, task.numbers, strict=True):
        deltas = read_deltas([task.spent], task.segments, number)
        spent |= {source.base_offset + delta for delta in deltas.tolist()}
    entries = [
        AbortedEntry(*entry)
        for entry in task.rules.aborted
        if base_offset <= entry[2] < end_offset and entry[2] not in spent
    ]
    if not entries:
        return []
    data = encode_aborted(entries)
    path = staging / file_name(base_offset, FileKind.TXNINDEX)
    write_shared(path, data)
    sha256 = hashlib.sha256(data).hexdigest()
    return [StagedFile(name=path.name, size_bytes=len(data), sha256=sha256)]


# --- one chunk ------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    """A run of whole batches and its decoded columns."""

    data: Buffer
    batches: HeaderTable
    columns: Columns
    owners: Any  # the index of each row's batch


class _Kept(NamedTuple):
    """What is left of a chunk, and the rows it was encoded from."""

    data: Buffer
    columns: Columns
    kept: Mask
    removed: Any  # digest entries of due tombstones
    base_offset: int
    end_offset: int
    leader_epoch: int

    def add_to(self, totals: _Totals) -> int:
        """Add the chunk to the totals; returns the checksum of the rows that stay."""
        bases = np.full(len(self.removed), self.base_offset, np.int64)
        wanted = np.ones(len(self.removed), np.uint8)
        totals.removed_keys += kernels().sum_entries(self.removed, bases, wanted, totals.removed)
        totals.leader_epoch = self.leader_epoch
        totals.end_offset = max(totals.end_offset, self.end_offset)
        found = np.zeros(1, np.uint64)
        _sum_values(self.columns, self.kept, found)
        totals.values += found
        if self.data:
            totals.records += int(walk_batches(self.data, verify=False).batches.counts.sum())
        return int(found[0])


def _sum_values(columns: Columns, wanted: Mask | None, total: Any) -> None:
    values, times = columns.values, columns.timestamps_ms
    assert values is not None
    assert times is not None
    mask = np.ones(len(columns), np.uint8) if wanted is None else wanted.astype(np.uint8)
    kernels().sum_values(
        readonly(values.data), values.starts, values.lengths, columns.offsets, times, mask, total
    )


class _BatchCleaner:
    """Removes superseded, aborted and expired records from a segment's chunks."""

    def __init__(
        self,
        source: DigestSource,
        dead: Deltas,
        spent: Deltas,
        *,
        range_end: int,
        task: RewriteTask,
    ) -> None:
        rules = task.rules
        self.source = source
        self._dead = dead.astype(np.int64) + source.base_offset
        self._spent = spent.astype(np.int64) + source.base_offset
        self._range_end = range_end
        self._rules = rules
        self._secret = parse_secret(task.secret)
        self._aborted = [Aborted(*entry[:3]) for entry in rules.aborted]
        self._horizon_ms = rules.now_ms + rules.delete_retention_ms

    def thin(self, data: Buffer) -> _Kept:
        """Clean one run of whole batches."""
        batches = walk_batches(data, verify=False).batches
        dead = self._dead[np.searchsorted(self._dead, batches.base_offsets[0]) :]
        columns = decode_columns(data, skipped=dead)
        owners = np.searchsorted(batches.positions, columns.batches.positions)[columns.batch_rows]
        chunk = _Chunk(data, batches, columns, owners)
        assert columns.keys is not None
        assert columns.values is not None
        is_keyed = columns.keys.lengths >= 0
        is_lost = is_aborted(batches, near(self._aborted, batches))[owners]
        is_tombstone = is_keyed & (columns.values.lengths < 0)
        is_past = self._is_past(batches, owners, columns.offsets)
        is_removed = is_tombstone & ~is_lost & is_past
        kept = ~is_lost & ~is_removed  # superseded rows are not decoded; keyless rows stay
        fates = self._fates(chunk, kept, is_tombstone)
        return _Kept(
            data=self._assemble(chunk, kept, fates),
            columns=columns,
            kept=kept,
            removed=self._entries(columns, is_removed),
            base_offset=self.source.base_offset,
            end_offset=_end(batches, fates),
            leader_epoch=int(batches.leader_epochs[-1]),
        )

    def _is_past(self, batches: HeaderTable, owners: Any, offsets: Longs) -> Mask:
        """Return a mask of rows past their delete horizon that every reader has passed."""
        is_over = (batches.attributes & DELETE_HORIZON_BIT != 0) & (
            batches.base_timestamps_ms <= self._rules.now_ms
        )
        past: Mask = is_over[owners] & (offsets < self._rules.passed_end)
        return past

    def _entries(self, columns: Columns, wanted: Mask) -> Any:
        chosen = columns.chosen(wanted)
        assert chosen.keys is not None
        assert chosen.values is not None
        entries = np.empty((len(chosen), 5), np.uint32)
        kernels().digest_keys(
            (readonly(chosen.keys.data), chosen.keys.starts, chosen.keys.lengths),
            chosen.values.lengths, chosen.offsets, self.source.base_offset, self._secret, entries,
        )  # fmt: skip
        return entries

    def _fates(self, chunk: _Chunk, kept: Mask, is_tombstone: Mask) -> _BatchActions:
        batches, owners = chunk.batches, chunk.owners
        counts = np.bincount(owners[kept], minlength=len(batches))
        tombstones = np.bincount(owners[kept & is_tombstone], minlength=len(batches))
        has_horizon = batches.attributes & DELETE_HORIZON_BIT != 0
        is_marker = (batches.attributes & CONTROL_BIT != 0) & (batches.counts > 0)
        is_spent = is_marker & _is_in(self._spent, batches.base_offsets)
        rows = np.arange(len(batches))
        is_over = is_spent & self._is_past(batches, rows, batches.base_offsets)
        counts = np.where(is_marker, np.where(is_over, 0, batches.counts), counts)
        is_stale = _is_recoded(batches, self._rules.codec)
        return _BatchActions(
            counts=counts,
            is_kept=(counts > 0) | self._is_needed(batches),
            is_marked=(counts > 0) & ~has_horizon & ((tombstones > 0) | is_spent),
            is_recoded=(counts > 0) & is_stale & ~is_marker,
        )

    def _is_needed(self, batches: HeaderTable) -> Mask:
        """Return a mask of headers with a producer's last sequence or epoch, or the range's end."""
        is_end: Mask = batches.last_offsets + 1 == self._range_end
        if not self._rules.producers:
            return is_end
        ids, epochs, lasts = np.array(self._rules.producers, np.int64).T
        at = np.minimum(np.searchsorted(ids, batches.producer_ids), len(ids) - 1)
        is_known = (batches.producer_ids >= 0) & (ids[at] == batches.producer_ids)
        is_control = batches.attributes & CONTROL_BIT != 0
        is_last = np.where(
            lasts[at] >= 0,
            batches.last_offsets == lasts[at],
            is_control & (batches.producer_epochs == epochs[at]),
        )
        needed: Mask = is_end | (is_known & is_last)
        return needed

    # --- encoding the result ------------------------------------------------------------------

    def _assemble(self, chunk: _Chunk, kept: Mask, fates: _BatchActions) -> Buffer:
        """Return the batches that stay, in order; unchanged runs are copied as they are."""
        data, batches = chunk.data, chunk.batches
        is_changed = fates.is_kept & (
            (fates.counts != batches.counts) | fates.is_marked | fates.is_recoded
        )
        if not bool(is_changed.any()) and bool(fates.is_kept.all()):
            return data
        is_control = batches.attributes & CONTROL_BIT != 0
        is_remarked = is_changed & is_control & (fates.counts > 0)
        is_encoded = is_changed & ~is_remarked
        encoded = self._encode(chunk, kept, fates, is_encoded)
        markers = b"".join(
            self._mark(data, int(position)) for position in batches.positions[is_remarked]
        )
        sources = np.where(is_remarked, _MARKER, np.where(is_encoded, _ENCODED, _COPY))
        positions, sizes = batches.positions.copy(), batches.sizes.copy()
        for which, made in ((is_encoded, encoded), (is_remarked, markers)):
            walk = walk_batches(made, verify=False).batches
            positions[which], sizes[which] = walk.positions, walk.sizes
        chosen = fates.is_kept
        return _join((data, encoded, markers), sources[chosen], positions[chosen], sizes[chosen])

    def _encode(self, chunk: _Chunk, kept: Mask, fates: _BatchActions, which: Mask) -> bytearray:
        """Encode batches that lose records, or get a delete horizon or another codec."""
        made = chunk.batches.chosen(which)
        made.counts[:] = fates.counts[which]
        is_marked, is_empty = fates.is_marked[which], fates.counts[which] == 0
        attributes = made.attributes.copy()
        if self._rules.codec is not None:
            attributes = attributes & ~CODEC_BITS | self._rules.codec.value
        attributes[is_marked] |= DELETE_HORIZON_BIT
        attributes[is_empty] &= ~(DELETE_HORIZON_BIT | CODEC_BITS)
        made.attributes[:] = attributes
        made.base_timestamps_ms[is_marked] = self._horizon_ms
        made.base_timestamps_ms[is_empty] = made.max_timestamps_ms[is_empty]
        return encode_columns(chunk.columns.chosen(kept & which[chunk.owners]), made)

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


def _end(batches: HeaderTable, fates: _BatchActions) -> int:
    last = np.flatnonzero(fates.is_kept)
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
    found: Mask = sorted_offsets[at] == offsets
    return found


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
