"""Rewrite a group of neighbouring segments as one staged segment without superseded records.

``batch_cleaner`` decides which records stay. Every staged segment reaches the end of its range,
with an empty batch if necessary, so that recovery in the middle of a swap knows where it ends.

Each chunk is decoded again and its checksum compared before it is written. Offset and time indexes
are not staged: the swap reads every staged batch anyway and builds them then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from cordwood.batch.columns import Columns
from cordwood.batch.header import Buffer
from cordwood.batch.header_table import Longs, Mask, readonly, walk_batches
from cordwood.batch.records import empty_batch
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.log.files.modes import make_shared_directory, open_shared, write_shared
from cordwood.log.format.layout import FileKind, file_name
from cordwood.log.format.manifest import StagedFile
from cordwood.log.format.producers import encode_aborted
from cordwood.pipeline.compact.batch_cleaner import BatchCleaner, CleanedRun, RewriteRules
from cordwood.pipeline.compact.digests import (
    DigestWriter,
    Summary,
    Words,
    hash_keys,
    kernels,
    parse_secret,
)
from cordwood.pipeline.compact.sources import CHUNK_BYTES, DigestSource, read_chunks
from cordwood.pipeline.compact.superseded import read_deltas


class RewriteTask(NamedTuple):
    """One group to rewrite; ``numbers`` are the indexes of its segments within the pass."""

    sources: tuple[DigestSource, ...]
    numbers: tuple[int, ...]
    segments: int
    superseded: tuple[str, ...]
    removable_markers: str
    rules: RewriteRules
    staging: str
    digests: str
    topic_id: str
    secret: bytes
    bytes_max: int  # size limit of the result if the group has several segments
    chunk_bytes: int = CHUNK_BYTES


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


def rewrite(task: RewriteTask) -> Rewritten | None:
    """Write the group's staged files; raises ``CorruptionError`` if a chunk does not read back.

    Returns None, and leaves no files, if a group of several segments exceeds ``bytes_max``: the
    size was estimated from the share of records that stay, and these records are larger.
    """
    base_offset, end_offset = task.sources[0].base_offset, task.sources[-1].end_offset
    staging = Path(task.staging)
    make_shared_directory(staging)
    log = staging / file_name(base_offset, FileKind.LOG)
    digest = Path(task.digests) / f"{log.name}.{staging.name}"
    secret = parse_secret(task.secret)
    digests = DigestWriter(digest, task.topic_id, base_offset, secret)
    try:
        with open_shared(log) as file:
            out = _StagedLog(file, digests, secret, task.chunk_bytes)
            for source, number in zip(task.sources, task.numbers, strict=True):
                out.write_segment(source, _cleaner(task, source, number))
                if len(task.sources) > 1 and file.tell() > task.bytes_max:
                    digests.discard()
                    log.unlink()
                    return None
            out.fill(end_offset)
        summary = digests.finish()
    except BaseException:
        digests.discard()
        raise
    stat = log.stat()
    live = DigestSource(str(log), base_offset, end_offset, stat.st_size, stat.st_mtime_ns)
    named = digest.with_name(live.digest_name)
    digest.rename(named)
    files = [StagedFile(name=log.name, size_bytes=stat.st_size, sha256=out.sha256.hexdigest())]
    files += _stage_aborted(task, staging, base_offset, end_offset)
    return Rewritten(
        base_offset, end_offset, out.records, tuple(files), str(named),
        int(out.removed_sum[0]), out.removed_keys, int(out.values_sum[0]), summary,
    )  # fmt: skip


def _cleaner(task: RewriteTask, source: DigestSource, number: int) -> BatchCleaner:
    def offsets(paths: Sequence[str]) -> Longs:
        return read_deltas(paths, task.segments, number).astype(np.int64) + source.base_offset

    range_end = task.sources[-1].end_offset
    superseded, markers = offsets(task.superseded), offsets([task.removable_markers])
    return BatchCleaner(task.rules, superseded, markers, range_end=range_end)


class _StagedLog:
    """The staged log file with its digest, and the totals over its records."""

    def __init__(
        self, file: BinaryIO, digests: DigestWriter, secret: Words, chunk_bytes: int
    ) -> None:
        self.sha256 = hashlib.sha256()
        self.removed_sum = np.zeros(1, np.uint64)
        self.values_sum = np.zeros(1, np.uint64)
        self.removed_keys = 0
        self.records = 0
        self._file = file
        self._digests = digests
        self._secret = secret
        self._chunk_bytes = chunk_bytes
        self._end_offset = 0
        self._leader_epoch = 0

    def write_segment(self, source: DigestSource, cleaner: BatchCleaner) -> None:
        """Write what is left of a segment, chunk by chunk."""
        try:
            for data in read_chunks(source, self._chunk_bytes):
                self._write_chunk(source, cleaner.clean(data))
        except CorruptBatch as error:
            raise CorruptionError(
                f"{source.path}: {error}; restore this segment from a copy"
            ) from error

    def _write_chunk(self, source: DigestSource, run: CleanedRun) -> None:
        """Write a chunk after it was decoded again and its checksum compared."""
        removed = hash_keys(run.removed, source.base_offset, self._secret)
        bases = np.full(len(removed), source.base_offset, np.int64)
        wanted = np.ones(len(removed), np.uint8)
        self.removed_keys += kernels.sum_entries(removed, bases, wanted, self.removed_sum)
        self._leader_epoch = run.leader_epoch
        self._end_offset = max(self._end_offset, run.end_offset)
        expected = _sum_values(run.columns, run.kept)
        self.values_sum += expected
        if not run.data:
            return
        self.records += int(walk_batches(run.data, verify=False).batches.counts.sum())
        if _sum_values(self._digests.add(run.data)) != expected:
            raise CorruptionError(
                f"{source.path}: the rewritten records differ from the original ones; nothing was "
                "replaced"
            )
        self._write(run.data)

    def fill(self, end_offset: int) -> None:
        """Add an empty batch if the last one does not reach the end of the range."""
        if self._end_offset < end_offset:
            filler = empty_batch(end_offset, self._leader_epoch)
            self._digests.add(filler)
            self._write(filler)

    def _write(self, data: Buffer) -> None:
        self._file.write(data)
        self.sha256.update(data)


def _sum_values(columns: Columns, wanted: Mask | None = None) -> Words:
    """Return a checksum of the rows' values, offsets and timestamps."""
    values, times = columns.values, columns.timestamps_ms
    assert values is not None
    assert times is not None
    total = np.zeros(1, np.uint64)
    mask = np.ones(len(columns), np.uint8) if wanted is None else wanted.astype(np.uint8)
    kernels.sum_values(
        readonly(values.data), values.starts, values.lengths, columns.offsets, times, mask, total
    )
    return total


def _stage_aborted(
    task: RewriteTask, staging: Path, base_offset: int, end_offset: int
) -> list[StagedFile]:
    """Stage the index of aborted transactions that end in this group and had batches left.

    A transaction without a batch before this pass is left out.
    """
    without_batches: set[int] = set()
    for source, number in zip(task.sources, task.numbers, strict=True):
        deltas = read_deltas([task.removable_markers], task.segments, number)
        without_batches |= {source.base_offset + delta for delta in deltas.tolist()}
    entries = [
        entry
        for entry in task.rules.aborted
        if base_offset <= entry[2] < end_offset and entry[2] not in without_batches
    ]
    if not entries:
        return []
    data = encode_aborted(entries)
    path = staging / file_name(base_offset, FileKind.TXNINDEX)
    write_shared(path, data)
    sha256 = hashlib.sha256(data).hexdigest()
    return [StagedFile(name=path.name, size_bytes=len(data), sha256=sha256)]
