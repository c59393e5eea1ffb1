"""Write the files beside a ``.log``. Each can be rebuilt, so a crash between two does no harm.

The caller syncs the directory once, after the last file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from cordwood.log.files.disk import Files
from cordwood.log.format.epochs import Epochs, encode_epochs
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.layout import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    SEGMENT_FACTS,
    FileKind,
    encode_metadata,
    file_path,
)
from cordwood.log.format.producers import Producers, encode_aborted
from cordwood.log.format.segment_stats import SegmentStats, encode_stats
from cordwood.log.read.segment import Segment


def write_index(files: Files, segment: Segment) -> None:
    """Write both index files, and the ``.txnindex`` if the segment has aborted transactions."""
    assert isinstance(segment.index, MemoryIndex)
    contents = {
        FileKind.INDEX: segment.index.encode_offsets(),
        FileKind.TIMEINDEX: segment.index.encode_times(),
    }
    if segment.aborted:
        contents[FileKind.TXNINDEX] = encode_aborted(segment.aborted)
    for kind, data in contents.items():
        files.write_whole(segment.path(kind), data, sync_dir=False)


def write_snapshot(files: Files, directory: Path, offset: int, producers: Producers) -> None:
    """Write the state of the producers at ``offset``."""
    path = file_path(directory, offset, FileKind.SNAPSHOT)
    files.write_whole(path, producers.encode_snapshot(), sync_dir=False)


def write_stats(files: Files, directory: Path, stats: Iterable[SegmentStats]) -> None:
    """Write the stats of these segments; lines about any other segment are lost."""
    files.write_whole(directory / SEGMENT_FACTS, encode_stats(stats), sync_dir=False)


def write_epochs(files: Files, directory: Path, epochs: Epochs) -> None:
    """Write the leader epochs."""
    files.write_whole(directory / LEADER_EPOCHS, encode_epochs(epochs), sync_dir=False)


def write_metadata(files: Files, directory: Path, topic_id: UUID) -> None:
    """Write the topic id of the partition, unless the file already holds it."""
    path, text = directory / PARTITION_METADATA, encode_metadata(topic_id)
    try:
        is_whole = path.read_bytes() == text
    except FileNotFoundError:
        is_whole = False
    if not is_whole:
        files.write_whole(path, text, sync_data=False, sync_dir=False)
