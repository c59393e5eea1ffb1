"""The broker's segment: a ``SegmentReader`` with stats, cached descriptors and known damage.

The active segment grows by ``note``; a sealed one never changes. Readers on any thread read through
a leased descriptor. Before a segment's file is renamed or deleted, the segment is *retired*: a
reader that has the file open continues with it; a reader that would have to open it gets
``Retired`` and retries with the partition's new read snapshot. A segment that is being truncated is
*void*: even data already read from it is discarded and read again.

All data is checked before it is returned: frames while they are walked, checksums as batches are
returned. A batch that fails raises ``BadBatch``; ``map_damage`` then determines the damaged range.
From then on reads in that range raise ``DamagedRecords``; reads before and after it are unaffected.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cordwood.batch.header import LOG_OVERHEAD, BatchHeader
from cordwood.errors import CorruptionError, TooManyOpenFiles
from cordwood.log.files.disk import as_cordwood
from cordwood.log.files.file_cache import FileCache
from cordwood.log.files.residency import is_resident
from cordwood.log.format.index import MemoryIndex, WrongIndex
from cordwood.log.format.layout import FileKind
from cordwood.log.format.scan import read_fd
from cordwood.log.format.segment_stats import SegmentStats
from cordwood.log.read.damage import (
    Area,
    BadBatch,
    Damage,
    Unreadable,
    damage_at,
    find_damage,
    next_damage,
)
from cordwood.log.read.segment_reader import SegmentReader
from cordwood.log.read.whole_batches import BatchRun, OffsetLimits
from cordwood.model import NO_TIMESTAMP, Aborted, SegmentInfo, SegmentState

RESUMED_MAX: Final = 64  # remembered positions where reads stopped


class Retired(Exception):  # never leaves cordwood.log: readers retry
    """The segment's file was renamed or deleted; the partition has a newer read snapshot."""


class Segment(SegmentReader):
    """A segment, shared by readers and the writer."""

    # fmt: off
    __slots__ = (
        "_file_cache", "_interval_bytes", "_resumed", "aborted", "aborted_count", "created_ms",
        "first_ms", "is_index_wrong", "is_retired", "is_sealed", "is_void", "newest_ms", "records",
    )
    # fmt: on

    def __init__(
        self,
        directory: Path,
        stats: SegmentStats,
        index: MemoryIndex | None,
        file_cache: FileCache,
        interval_bytes: int,
    ) -> None:
        """Create a segment from its stats. Without ``index`` it is sealed and indexed by files."""
        super().__init__(directory, stats.base_offset)
        self.end_offset = stats.end_offset
        self.size_bytes = stats.size_bytes
        self.records = stats.records
        self.first_ms = stats.first_ms
        self.newest_ms = stats.newest_ms
        self.created_ms = stats.created_ms
        self.aborted_count = stats.aborted_count
        self.aborted: tuple[Aborted, ...] = ()  # of the active segment; a sealed segment has a file
        self.is_sealed = True
        self.is_retired = False
        self.is_void = False
        self.is_index_wrong = False  # the index files are wrong; the index in memory is right
        self._file_cache = file_cache
        self._interval_bytes = interval_bytes  # for rebuilding the index
        self._resumed: dict[int, int] = {}  # offset → position where a read stopped
        self.index = index or self.file_index(stats.index_bytes, stats.timeindex_bytes)

    def info(self) -> SegmentInfo:
        """An immutable copy for the pure policies in ``decide``."""
        return SegmentInfo(
            base_offset=self.base_offset, end_offset=self.end_offset, size_bytes=self.size_bytes,
            records=self.records, first_ms=self.first_ms, newest_ms=self.newest_ms,
            created_ms=self.created_ms,
            state=SegmentState.SEALED if self.is_sealed else SegmentState.ACTIVE,
            index_bytes=0 if self.is_sealed else self.index_bytes,
            spread=0 if self.is_sealed else self.spread,
        )  # fmt: skip

    @property
    def index_bytes(self) -> int:
        """The size of the larger of its two indexes."""
        return max(self.index.sizes_bytes())

    @property
    def spread(self) -> int:
        """A number that differs between the segments of all partitions."""
        return zlib.crc32(b"%s/%d" % (self.directory.name.encode(), self.base_offset))

    def open_stats(self, durable_bytes: int) -> SegmentStats:
        """The stats of the active segment: its creation time and its synced size."""
        blank = SegmentStats.blank(self.base_offset, self.created_ms)
        return blank._replace(size_bytes=durable_bytes)

    def stats(self) -> SegmentStats:
        """The stats of the sealed segment, with its index in files and all bytes synced."""
        index_bytes, timeindex_bytes = self.index.sizes_bytes()
        return SegmentStats(
            base_offset=self.base_offset, end_offset=self.end_offset, size_bytes=self.size_bytes,
            records=self.records, first_ms=self.first_ms, newest_ms=self.newest_ms,
            created_ms=self.created_ms, index_bytes=index_bytes, timeindex_bytes=timeindex_bytes,
            aborted_count=self.aborted_count,
        )  # fmt: skip

    # --- the writer -------------------------------------------------------------------------

    def note(self, headers: Iterable[BatchHeader]) -> None:
        """Account for consecutive batches that were added at the end of the active segment."""
        assert not self.is_sealed
        index = self.index
        assert isinstance(index, MemoryIndex)
        position, records, header = self.size_bytes, self.records, None
        for header in headers:
            index.add(header, position)
            records += header.count
            position += LOG_OVERHEAD + header.batch_length
            if self.first_ms == NO_TIMESTAMP:
                self.first_ms = header.max_timestamp_ms
        if header is not None:
            self.end_offset = header.end_offset
        self.size_bytes, self.records = position, records
        self.newest_ms = index.newest.timestamp_ms

    def seal(self) -> None:
        """Mark the segment sealed and switch to the index files, dropping the index in memory."""
        self.index = self.file_index(*self.index.sizes_bytes())
        self.is_index_wrong = False
        self.is_sealed = True
        self.aborted = ()

    def retire(self) -> None:
        """Mark that the files are about to be renamed; call it before the first rename."""
        self.is_retired = True

    def forget(self) -> None:
        """Close its cached descriptors."""
        for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
            self._file_cache.forget((self, kind))

    # --- reading, any thread ----------------------------------------------------------------

    def reading(self, kind: FileKind = FileKind.LOG) -> AbstractContextManager[int]:
        """A context manager that leases a descriptor of one of its files; raises ``Retired``."""
        return self._file_cache.lease((self, kind), lambda: self._open(kind))

    def _open(self, kind: FileKind) -> int:
        path = self.path(kind)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if self.is_retired:
                raise Retired from None
            if kind is not FileKind.LOG:
                raise WrongIndex(f"{path} is gone") from None
            everything = 0, self.size_bytes, self.base_offset, self.end_offset
            raise Unreadable(self, Damage(*everything, "the file is gone")) from None
        except OSError as error:
            refusal = as_cordwood(error, "open", path)
            if isinstance(refusal, TooManyOpenFiles):  # the file itself is sound
                raise refusal from error
            raise CorruptionError(f"{path} cannot be opened: {error.strerror}") from error
        if self.is_retired:  # after a swap the name may belong to another file
            os.close(fd)
            raise Retired
        return fd

    def read_aborted(self) -> list[Aborted]:
        """The transactions whose abort marker is in this segment."""
        if not self.aborted_count or not self.is_sealed:
            return list(self.aborted)
        try:
            return super().read_aborted()
        except FileNotFoundError:
            if self.is_retired:
                raise Retired from None
            path = self.path(FileKind.TXNINDEX)
            raise CorruptionError(
                f"{path} is gone; restart the broker, which rebuilds it"
            ) from None

    def read(self, offset: int, max_bytes: int, end_offset: int, limit: int) -> BatchRun | None:
        """Return whole batches from the one that holds ``offset``, or the next after it.

        Batches that begin at ``end_offset`` or later, or at position ``limit`` or later, are
        ignored. Returns at least one batch, whatever its size; None if there is none.
        """
        with self.reading() as fd:
            position = self.locate(fd, offset, limit)
            if position is None:
                return None
            if self.damage:
                limit = min(limit, next_damage(self, position))
            # In a dense segment each base offset is known, although the checksum does not cover it.
            most = max(offset, self.base_offset) if self.is_dense else None
            limits = OffsetLimits(self.base_offset, self.end_offset, most)
            run = self.take(fd, position, max_bytes, end_offset, limit=limit, limits=limits)
        if self.is_void:
            raise Retired
        if run is not None:
            self._remember(run.next_offset, position + len(run.data))
        return run

    @property
    def is_dense(self) -> bool:
        """Whether there are no gaps between its offsets."""
        return self.records == self.end_offset - self.base_offset

    def resident_bytes(self, offset: int, max_bytes: int, limit: int) -> int | None:
        """How many bytes ``read`` would return without disk access; None if it might need the disk.

        None also if the position can only be found through an index file.
        """
        position = self._known_position(offset)
        if position is None:
            return None
        end = min(position + max_bytes, limit)
        if position >= end:
            return 0
        with self.reading() as fd:
            return end - position if is_resident(fd, position, end) else None

    def _known_position(self, offset: int) -> int | None:
        """The latest position at or before ``offset`` that is known in memory, if any."""
        if offset < self.base_offset:  # a read that continues from the previous segment
            return 0
        position = self._resumed.get(offset)
        if position is None and isinstance(self.index, MemoryIndex):
            entry = self.index.floor(offset)
            position = 0 if entry is None else entry.position
        return position

    def _remember(self, offset: int, position: int) -> None:
        if len(self._resumed) >= RESUMED_MAX:
            self._resumed.clear()
        self._resumed[offset] = position

    def locate(self, fd: int, offset: int, limit: int) -> int | None:
        """Like ``SegmentReader.locate``; remembers where the last reads stopped."""
        resumed = self._resumed.get(offset)
        if resumed is not None and offset > self.base_offset:
            if resumed >= limit:
                return None
            if int.from_bytes(os.pread(fd, 8, resumed), "big") >= offset:
                return resumed  # else a damaged offset misled the last read: walk
        return super().locate(fd, offset, limit)

    def corruption(self, problem: str, position: int) -> BadBatch | Retired:
        """The error for a bad batch, with a remedy; ``Retired`` if the file was just truncated."""
        if self.is_void:
            return Retired()
        text = f"{self.path()}: at position {position}: {problem}; restore this segment from a copy"
        return BadBatch(text, self, position)

    def map_damage(self, position: int, limit: int, end_offset: int) -> Damage | None:
        """Determine and remember the damaged range around a bad batch; None if there is none.

        Batches from position ``limit`` on, the first of which has offset ``end_offset``, are
        ignored.
        """
        try:
            entries = self.index.entries()
        except WrongIndex:
            entries = []
        with self.reading() as fd:
            area = Area(
                read_fd(fd), entries, self.base_offset, limit, end_offset, self.damage,
                is_dense=self.is_dense,
            )  # fmt: skip
            damage = find_damage(area, position)
        if damage is not None and damage_at(self.damage, damage.position) is None:
            self.damage = tuple(sorted((*self.damage, damage)))
        return damage

    def rebuild_index(self, fd: int) -> MemoryIndex:
        """Rebuild the index in memory from the log; the writer writes it to files later."""
        assert self.is_sealed, "the active segment's index is the writer's"
        index = MemoryIndex(self.base_offset, self._interval_bytes)
        for position, header in self.batches(fd, 0, self.size_bytes):
            index.add(header, position)
        index.seal()
        self.index = index
        self.is_index_wrong = True
        return index
