"""What opening a partition directory results in: its segments, and a report for the operator."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.epochs import Epochs
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.layout import FileKind
from cordwood.log.format.producers import Producers
from cordwood.log.format.scan import End
from cordwood.log.format.segment_stats import SegmentStats
from cordwood.log.read.segment import Segment
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.log")


@dataclass(slots=True)
class Recovery:
    """What opening a partition found and did."""

    end: End = End.CLEAN
    is_durable: bool = False  # the files are as a clean close leaves them
    next_offset: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0
    torn_copy: Path | None = None  # a copy of the bytes that were cut off
    rebuilt: list[str] = field(default_factory=list)  # names of rebuilt files
    notes: list[str] = field(default_factory=list)  # other messages for the operator

    def report(self, tp: TopicPartition) -> None:
        """Log the result."""
        logger.info(
            "partition.opened partition=%s seq_resume=%d end=%s cut_bytes=%d scanned_bytes=%d",
            tp, self.next_offset, self.end.value, self.cut_bytes, self.scanned_bytes,
        )  # fmt: skip
        for note in self.notes:
            logger.warning("partition.recovery_note partition=%s %s", tp, note)

    def note_rebuilt(self, segment: Segment) -> None:
        """Note that the indexes of this segment were rebuilt."""
        for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
            if (name := segment.path(kind).name) not in self.rebuilt:
                self.rebuilt.append(name)


@dataclass(slots=True)
class Loaded:
    """The state of a partition as loaded from its files."""

    segments: tuple[Segment, ...]  # the last one is active
    producers: Producers
    epochs: Epochs
    recovery: Recovery

    def clean_end(self) -> CleanEnd:
        """The state that a later close need not write again."""
        is_durable = self.recovery.is_durable
        return CleanEnd(self.segments if is_durable else (), self.segments[-1].size_bytes)


class CleanEnd(NamedTuple):
    """Segments that are unchanged since their last clean close."""

    segments: tuple[Segment, ...]
    active_bytes: int

    def holds(self, segments: tuple[Segment, ...]) -> bool:
        """Whether ``segments`` are still unchanged."""
        is_same = segments is self.segments and segments[-1].size_bytes == self.active_bytes
        return is_same and not any(segment.is_index_wrong for segment in segments)


def open_segment(
    directory: Path,
    base_offset: int,
    interval_bytes: int,
    created_ms: int,
    descriptors: FileCache,
) -> Segment:
    """Create an empty active segment in memory."""
    index = MemoryIndex(base_offset, interval_bytes)
    stats = SegmentStats.blank(base_offset, created_ms)
    segment = Segment(directory, stats, index, descriptors, interval_bytes)
    segment.is_sealed = False
    return segment
