"""Rewrite one sealed segment in another codec, ready to be swapped in.

The new segment is written to a directory of its own under ``claimed``, where only the broker
writes, and goes through the checks and the swap of a compaction job. A crash before the swap leaves
files there, which the next start removes. The original is read with every checksum and never
changed. All calls block; they are safe on any thread.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.batch.header_table import HeaderTable
from cordwood.batch.recoding import Recoding, recode
from cordwood.batch.records import empty_batch
from cordwood.decide.compression import is_worthwhile
from cordwood.log.files.disk import Files, OpenFile
from cordwood.log.format.layout import FileKind, file_name, file_path
from cordwood.log.format.manifest import Manifest, Replaced, StagedFile, StagedSegment
from cordwood.log.lifecycle.compression_proof import RUN_BYTES, prove_compressed
from cordwood.log.read.batch_runs import ReadBuffer, read_sealed
from cordwood.log.staging.claim import CLAIMED_NAME, Claim, release_claim
from cordwood.log.swap.ladder import Verified, verify_staged
from cordwood.model import SegmentInfo, TopicPartition

JOB_PREFIX: Final = "compress-"


class Original(NamedTuple):
    """A live sealed segment and the partition it belongs to."""

    tp: TopicPartition
    topic_id: str
    directory: Path
    info: SegmentInfo
    sha256: str | None
    interval_bytes: int  # between index entries


def compress_segment(
    original: Original,
    recoding: Recoding,
    data: Path,
    files: Files,
    pace: Callable[[int], None],
) -> Verified | None:
    """Write, check and prove the compressed segment; None if it is not worth a swap.

    ``pace`` is called with the bytes processed; it waits, or raises to stop. Raises
    ``CorruptionError`` if the original is damaged.
    """
    job = f"{JOB_PREFIX}{secrets.token_hex(8)}"
    files.mkdir(data / CLAIMED_NAME)
    directory = data / CLAIMED_NAME / job
    files.mkdir(directory)
    try:
        staged = _stage(original, recoding, directory, files, _halved(pace))
        info = original.info
        if not is_worthwhile(info.size_bytes, staged.log.size_bytes, recoding.codec):
            release_claim(directory, files)
            return None
        claim = Claim(_manifest(job, original, staged), directory)
        verified = verify_staged(
            claim, files, interval_bytes=original.interval_bytes, now_ms=info.created_ms
        )
        path = directory / staged.log.name
        prove_compressed(original.directory, info, path, recoding.codec, _halved(pace))
    except Exception:
        release_claim(directory, files)
        raise
    return verified


def _halved(pace: Callable[[int], None]) -> Callable[[int], None]:
    """The segment is read twice: to rewrite it and to prove the result."""
    return lambda size_bytes: pace(size_bytes // 2)


def _stage(
    original: Original,
    recoding: Recoding,
    directory: Path,
    files: Files,
    pace: Callable[[int], None],
) -> StagedSegment:
    info = original.info
    written = _Written(files, directory / file_name(info.base_offset, FileKind.LOG))
    try:
        records = 0
        for piece, batches in _recoded(original, recoding):
            written.add(piece)
            records += int(batches.counts.sum())
            pace(int(batches.sizes.sum()))
    finally:
        written.close()
    staged = [written.staged()]
    index = file_path(original.directory, info.base_offset, FileKind.TXNINDEX)
    if index.exists():
        copy = _Written(files, directory / index.name)
        try:
            copy.add(index.read_bytes())
        finally:
            copy.close()
        staged.append(copy.staged())
    return StagedSegment(
        base_offset=info.base_offset,
        end_offset=info.end_offset,
        records=records,
        files=tuple(staged),
    )


def _recoded(original: Original, recoding: Recoding) -> Iterator[tuple[bytes, HeaderTable]]:
    """Yield the rewritten bytes of each run, with the headers they were made from."""
    info, is_start = original.info, True
    end_offset, epoch = info.base_offset, 0
    for data, batches in read_sealed(original.directory, info, ReadBuffer(RUN_BYTES)):
        yield b"".join(recode(data, batches, recoding, is_start=is_start)), batches
        is_start = False
        end_offset, epoch = int(batches.last_offsets[-1]) + 1, int(batches.leader_epochs[-1])
    if end_offset < info.end_offset:
        yield empty_batch(info.end_offset, epoch), HeaderTable.blank(0)


class _Written:
    """A new file that is written from start to end."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._file: OpenFile = files.create(path)
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0

    def add(self, data: bytes) -> None:
        self._files.write_at(self._file, data, self._size_bytes)
        self._sha256.update(data)
        self._size_bytes += len(data)

    def close(self) -> None:
        self._files.close(self._file)

    def staged(self) -> StagedFile:
        name, sha256 = self._file.path.name, self._sha256.hexdigest()
        return StagedFile(name=name, size_bytes=self._size_bytes, sha256=sha256)


def _manifest(job: str, original: Original, staged: StagedSegment) -> Manifest:
    info = original.info
    replaced = Replaced(
        base_offset=info.base_offset,
        end_offset=info.end_offset,
        size_bytes=info.size_bytes,
        sha256=original.sha256,
    )
    return Manifest(
        job=job,
        topic=original.tp.topic,
        topic_id=original.topic_id,
        partition=original.tp.partition,
        replaces=(replaced,),
        segments=(staged,),
    )
