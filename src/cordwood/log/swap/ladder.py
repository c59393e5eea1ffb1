"""The swap: staged segments replace live ones, as a whole, once, and resumable after any crash.

The steps are Kafka's, with a directory sync between them so that a power cut cannot reorder them:

1. staged files, which the broker has claimed (``claim``), are moved into the partition directory as
   ``.cleaned``; sync
2. all but the lowest segment become ``.swap``; sync
3. the lowest segment becomes ``.swap``; sync: **from here on the new segments are the log**
4. the old segments become ``.deleted``; sync
5. ``.swap`` loses its suffix; sync

At start-up ``recover_swaps`` determines from the names alone which step was reached. While a
``.cleaned`` file exists at or below a ``.swap`` file, the old log is valid and the swap is undone;
otherwise the swap is finished. Steps 1 to 3 are implemented here. Steps 4 and 5 are in
``Partition.replace``, because readers must move from the old files to the new ones in between.

``verify_staged`` reads the claimed files and may run on any thread. ``apply_swap`` only renames
(or copies, if staging is on another filesystem) and runs on the writer thread. This module never
decides what to compact and never touches the active segment.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from cordwood.decide.compression import CompressionResult
from cordwood.errors import CordwoodError, CorruptionError, InvalidManifest, PartitionOffline
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.layout import (
    CLEANED,
    SEGMENT_FACTS,
    SEGMENT_KINDS,
    SWAP,
    FileKind,
    SegmentFile,
    file_path,
    parse_file_name,
)
from cordwood.log.format.manifest import (
    Manifest,
    StagedFile,
    StagedSegment,
    plan_swap,
)
from cordwood.log.format.producers import ABORTED_BYTES
from cordwood.log.format.scan import BatchWalk, read_fd
from cordwood.log.format.segment_stats import SegmentStats, encode_stats, parse_stats
from cordwood.log.read.segment import Segment
from cordwood.log.read.survey import Survey, survey
from cordwood.log.staging.claim import COPY_BYTES, Claim
from cordwood.model import SegmentInfo
from cordwood.plural import plural

logger = logging.getLogger("cordwood.log")


class Verified(NamedTuple):
    """A job whose staged files have been read and checked, with the results."""

    manifest: Manifest
    surveys: Mapping[int, Survey]  # by base offset
    directory: Path  # holds the files; only the broker writes to it
    compression: CompressionResult | None = None  # of segments that the broker compressed itself


class SwapTarget(Protocol):
    """The partition that a job swaps segments of."""

    @property
    def directory(self) -> Path:
        """Where its files are."""
        ...

    def segments(self) -> tuple[SegmentInfo, ...]:
        """All segments, oldest first; the last one is active."""
        ...

    def replace(
        self, old: Sequence[int], new: Sequence[int], surveys: Mapping[int, Survey], /
    ) -> None:
        """Do steps 4 and 5; both sequences are base offsets."""
        ...


def verify_staged(claim: Claim, files: Files, *, interval_bytes: int, now_ms: int) -> Verified:
    """Check every claimed file (size, sha256, every batch), then sync it.

    Takes long; safe on any thread. Raises ``InvalidManifest``, naming the file that differs from
    the manifest.
    """
    manifest, staging = claim
    surveys = {}
    for segment in manifest.segments:
        for staged in segment.files:
            _check_sum(staging / staged.name, staged)
            file = files.open_existing(staging / staged.name)
            try:
                files.sync_data(file)
            finally:
                files.close(file)
        try:
            found = survey(
                staging / segment.log.name,
                segment.base_offset,
                interval_bytes=interval_bytes,
                created_ms=now_ms,
                verify=True,
            )
        except CorruptionError as error:
            raise InvalidManifest(f"{error}; or run the job again") from None
        _check_survey(segment, found.stats, is_last=segment is manifest.segments[-1])
        surveys[segment.base_offset] = found
    return Verified(manifest, surveys, staging)


def apply_swap(
    partition: SwapTarget,
    job: Verified,
    *,
    files: Files,
    topic_id: str,
    hashes: Mapping[int, str],
) -> None:
    """Swap in a verified job on the writer thread; ``StaleManifest`` means nothing has changed.

    An error before step 3 is undone here. From step 3 on the error is ``PartitionOffline``: opening
    the partition again finishes the swap.
    """
    manifest = job.manifest
    old = plan_swap(manifest, partition.segments(), topic_id, hashes)
    _check_present(job.directory, manifest)
    try:
        _bring_in(job.directory, partition.directory, manifest, files)
    except CordwoodError as error:
        if not _take_back(partition.directory, files):
            raise _offline(manifest, error) from error
        raise
    try:
        partition.replace(old, tuple(job.surveys), job.surveys)
    except CordwoodError as error:
        raise _offline(manifest, error) from error


def recover_swaps(directory: Path, files: Files) -> bool:
    """Finish or undo an interrupted swap; returns whether there was one.

    Called before a partition's segments are listed. Removing ``.deleted`` files is left to the
    partition: no recovery makes them live again.
    """
    cleaned, swapped = _named(directory, CLEANED), _named(directory, SWAP)
    if not cleaned and not swapped:
        return False
    lowest = min((name.base_offset for name in cleaned), default=None)
    valid = [name for name in swapped if lowest is None or name.base_offset < lowest]
    _remove(directory, [name for name in swapped if name not in valid], cleaned, files)
    _finish(valid, directory, files)
    logger.info("swap.recovered directory=%s finished=%s", directory, bool(valid))
    return True


def _remove(
    directory: Path, swapped: list[SegmentFile], cleaned: list[SegmentFile], files: Files
) -> None:
    """Undo a swap. The ``.cleaned`` files go last, because they mark the swap as not valid."""
    for name in swapped:
        files.unlink(_path(directory, name))
    files.sync_dir(directory)
    for name in cleaned:
        files.unlink(_path(directory, name))


def _finish(swapped: list[SegmentFile], directory: Path, files: Files) -> None:
    """Delete the files that valid ``.swap`` files replace, then give those their live names."""
    logs = [name for name in swapped if name.kind is FileKind.LOG]
    if logs:
        start = min(name.base_offset for name in logs)
        end = max(_next_offset(_path(directory, name), name.base_offset) for name in logs)
        # An emptied segment covers no offset, but still replaces the one with its base offset.
        end = max(end, *(name.base_offset + 1 for name in logs))
        _forget_stats(directory, start, end, files)
        _delete_live(directory, start, end, files)
    files.sync_dir(directory)
    for name in swapped:
        files.rename(_path(directory, name), _path(directory, name._replace(suffix="")))
    files.sync_dir(directory)


def _forget_stats(directory: Path, start: int, end: int, files: Files) -> None:
    """Remove the stats of old files, which must not be applied to new files of the same name."""
    path = directory / SEGMENT_FACTS
    stats = parse_stats(path.read_bytes()) if path.exists() else {}
    kept = [line for base, line in stats.items() if not start <= base < end]
    if len(kept) < len(stats):
        files.write_whole(path, encode_stats(kept))


def _delete_live(directory: Path, start: int, end: int, files: Files) -> None:
    for name in _named(directory, ""):
        if name.kind in SEGMENT_KINDS and start <= name.base_offset < end:
            files.unlink(_path(directory, name))


def _bring_in(staging: Path, directory: Path, manifest: Manifest, files: Files) -> None:
    """Do steps 1 to 3, after removing anything that an earlier job could not undo."""
    is_clear = _take_back(directory, files)
    assert is_clear, "a partition in the middle of a swap is offline"
    for segment in manifest.segments:
        for staged in segment.files:
            _move(staging / staged.name, directory / (staged.name + CLEANED), files)
    files.sync_dir(directory)
    lowest, *others = manifest.segments
    for segments in (reversed(others), [lowest]):
        for segment in segments:
            for staged in segment.files:
                path = directory / staged.name
                files.rename(path.with_name(path.name + CLEANED), path.with_name(path.name + SWAP))
        files.sync_dir(directory)


def _take_back(directory: Path, files: Files) -> bool:
    """Undo an unfinished ``_bring_in``; returns False if it has passed the point of no return."""
    cleaned, swapped = _named(directory, CLEANED), _named(directory, SWAP)
    if swapped and not cleaned:
        return False
    if cleaned:
        _remove(directory, swapped, cleaned, files)
    return True


def _move(source: Path, target: Path, files: Files) -> None:
    """Rename, or copy and sync if staging is on another filesystem."""
    if _is_same_filesystem(source, target.parent):
        files.rename(source, target)
        return
    files.unlink(target)
    file = files.create(target)
    try:
        position = 0
        with source.open("rb") as reading:
            while data := reading.read(COPY_BYTES):
                files.write_at(file, data, position)
                position += len(data)
        files.sync_data(file)
    finally:
        files.close(file)


def _is_same_filesystem(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _check_present(staging: Path, manifest: Manifest) -> None:
    """Check that every staged file exists with its size; a job applied before has none left."""
    for segment in manifest.segments:
        for staged in segment.files:
            path = staging / staged.name
            is_file = path.is_file() and not path.is_symlink()
            if not is_file or path.stat().st_size != staged.size_bytes:
                raise InvalidManifest(f"{path} does not match the manifest; run the job again")


def _check_sum(path: Path, staged: StagedFile) -> None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as reading:
            size_bytes = os.fstat(reading.fileno()).st_size
            sha256 = hashlib.file_digest(reading, "sha256").hexdigest()
    except OSError as error:
        raise InvalidManifest(f"{path}: {error.strerror}; run the job again") from None
    if (size_bytes, sha256) != (staged.size_bytes, staged.sha256):
        raise InvalidManifest(f"{path} does not match the manifest; run the job again")


def _check_survey(segment: StagedSegment, found: SegmentStats, *, is_last: bool) -> None:
    """Check that all batches lie in the segment, and that the last segment is filled to its end.

    A start-up in the middle of the swap learns from the last batch how far the swap reaches.
    """
    is_within = found.end_offset <= segment.end_offset
    reaches = found.end_offset == segment.end_offset or not is_last
    if not (is_within and reaches and found.records == segment.records):
        raise InvalidManifest(
            f"{segment.log.name} has {plural(found.records, 'record')} up to offset "
            f"{found.end_offset}, but "
            f"the manifest says {segment.records} up to {segment.end_offset}; run the job again"
        )


def _next_offset(path: Path, base_offset: int) -> int:
    with path.open("rb") as reading:
        size_bytes = os.fstat(reading.fileno()).st_size
        walk = BatchWalk(read_fd(reading.fileno()), size_bytes, base_offset, verify=False)
        for _ in walk:
            pass
    if walk.problem:
        raise CorruptionError(f"{path}: {walk.problem}; restore this segment from a copy")
    return walk.next_offset


def _named(directory: Path, suffix: str) -> list[SegmentFile]:
    """The segment files with this suffix, in order."""
    parsed = [parse_file_name(entry.name) for entry in directory.iterdir()]
    return sorted(name for name in parsed if name and name.suffix == suffix)


def _offline(manifest: Manifest, error: CordwoodError) -> PartitionOffline:
    return PartitionOffline(
        f"{manifest.topic_partition} went offline during the swap of job {manifest.job} "
        f"({error}); restart the broker to finish the swap"
    )


def _path(directory: Path, name: SegmentFile) -> Path:
    return directory / f"{name.base_offset:020d}{name.kind.value}{name.suffix}"


# --- steps 4 and 5 ----------------------------------------------------------------------------


def survey_staged(
    directory: Path, base_offset: int, interval_bytes: int, created_ms: int
) -> Survey:
    """Survey the segment that stands in the directory as ``.swap``."""
    path = file_path(directory, base_offset, FileKind.LOG, SWAP)
    return survey(path, base_offset, interval_bytes=interval_bytes, created_ms=created_ms)


def take_live_names(files: Files, directory: Path, bases: Sequence[int]) -> None:
    """Remove the ``.swap`` suffix of these segments' files; the caller syncs the directory."""
    for base_offset in bases:
        for kind in SEGMENT_KINDS:
            path = file_path(directory, base_offset, kind, SWAP)
            if path.exists():
                files.rename(path, file_path(directory, base_offset, kind))


def live_segments(
    directory: Path,
    surveys: Sequence[Survey],
    end_offset: int,
    descriptors: FileCache,
    interval_bytes: int,
) -> list[Segment]:
    """Create the new segments; the last one covers offsets up to ``end_offset``.

    Their indexes are in memory and flagged wrong on disk, so that they get written.
    """
    ends = [later.stats.base_offset for _, later in pairwise(surveys)]
    segments = []
    for found, end in zip(surveys, [*ends, end_offset], strict=True):
        txnindex = file_path(directory, found.stats.base_offset, FileKind.TXNINDEX)
        aborted_bytes = txnindex.stat().st_size if txnindex.exists() else 0
        stats = found.stats._replace(end_offset=end, aborted_count=aborted_bytes // ABORTED_BYTES)
        segment = Segment(directory, stats, found.sparse, descriptors, interval_bytes)
        segment.is_index_wrong = True
        segments.append(segment)
    return segments
