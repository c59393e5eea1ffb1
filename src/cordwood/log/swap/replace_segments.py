"""The last step of a swap: ``.swap`` files get their live names and become segments.

``ladder`` brings them in as ``.swap`` and ``Partition.replace`` marks the old ones deleted. This
module turns the files into segments. It also builds their indexes and ignores any index that a job
has staged, because a broker trusts no index that it did not write.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.layout import SEGMENT_KINDS, SWAP, FileKind, file_path
from cordwood.log.format.producers import ABORTED_BYTES
from cordwood.log.read.segment import Segment
from cordwood.log.read.survey import Survey, survey


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
    ends = [later.facts.base_offset for _, later in pairwise(surveys)]
    segments = []
    for found, end in zip(surveys, [*ends, end_offset], strict=True):
        txnindex = file_path(directory, found.facts.base_offset, FileKind.TXNINDEX)
        aborted_bytes = txnindex.stat().st_size if txnindex.exists() else 0
        facts = found.facts._replace(end_offset=end, aborted_count=aborted_bytes // ABORTED_BYTES)
        segment = Segment(directory, facts, found.sparse, descriptors, interval_bytes)
        segment.is_index_wrong = True
        segments.append(segment)
    return segments
