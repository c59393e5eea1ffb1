"""Accept the loss of missing records, so that an offline partition can be served again.

The partition keeps its remaining records. It continues at the highest offset known to have been
written or read, so that no offset is assigned twice and no committed cursor skips new records.
Damaged bytes are not missing bytes: a partition whose files contradict their checksums stays
offline.

Every step may be repeated: a crash on the way leaves the partition offline, or finished.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.log.files.disk import Files
from cordwood.log.format.layout import SEGMENT_FACTS, FileKind, file_path, parse_file_name
from cordwood.log.write.partition import Partition
from cordwood.metadata.front import Metadata
from cordwood.model import TopicPartition

OFFSET_SANE_MAX: Final = 2**60  # a cursor beyond it is no evidence of records


class AcceptedLoss(NamedTuple):
    """The remaining offsets of a partition and the offset where it continues."""

    log_start_offset: int
    kept_end: int  # one past the last remaining record
    next_offset: int  # the offset of the next record


def accept_loss(
    path: Path,
    tp: TopicPartition,
    *,
    metadata: Metadata,
    files: Files,
    open_partition: Callable[[], Partition],
) -> AcceptedLoss:
    """Make the partition's files and the metadata agree again, keeping every remaining record.

    ``open_partition`` recovers the directory as a start does. If it raises because of damage,
    nothing is accepted. The caller opens the partition afterwards.
    """
    if not path.is_dir():
        files.mkdir(path)
        files.sync_dir(path.parent)
    bases = _log_bases(path)
    files.unlink(path / SEGMENT_FACTS)  # rebuilt from the remaining files
    kept_end = _repair(open_partition) if bases else 0
    next_offset = max(kept_end, _seen_end(metadata, tp))
    log_start = max(metadata.cluster.log_start(tp), bases[0]) if bases else next_offset
    if next_offset > kept_end or not bases:
        files.close(files.create(file_path(path, next_offset, FileKind.LOG)))
        files.sync_dir(path)
    sizes = {base: file_path(path, base, FileKind.LOG).stat().st_size for base in _log_bases(path)}
    entries = metadata.cluster.segments(tp).entries()
    gone = [
        e for e in entries if e.end_offset > log_start and sizes.get(e.base_offset) != e.size_bytes
    ]
    metadata.cluster.accept_loss(tp, log_start, next_offset, gone)
    return AcceptedLoss(log_start, max(kept_end, log_start), next_offset)


def _repair(open_partition: Callable[[], Partition]) -> int:
    """Recover the remaining files, truncating a torn tail; returns their end offset."""
    partition = open_partition()
    try:
        return partition.log_end_offset
    finally:
        partition.close()


def _seen_end(metadata: Metadata, tp: TopicPartition) -> int:
    """One past the highest offset known to have been written or read."""
    cursors = [
        at.offset for where, at in list(metadata.readers.cursors().items()) if where[1:] == tp
    ]
    seen = [offset for offset in cursors if offset <= OFFSET_SANE_MAX]
    entries = metadata.cluster.segments(tp).entries()
    return max(
        metadata.cluster.recovery_point(tp),
        metadata.cluster.log_start(tp),
        *(entry.end_offset for entry in entries[-1:]),
        *seen,
        0,
    )


def _log_bases(path: Path) -> list[int]:
    """Base offsets of the live ``.log`` files, in order."""
    parsed = [parse_file_name(entry.name) for entry in path.iterdir()]
    return sorted(f.base_offset for f in parsed if f and f.kind is FileKind.LOG and not f.suffix)
