"""One segment: a run of batches in one file, with its stats and its sparse index.

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
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.batch.header import CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, crc32c
from cordwood.batch.kernels.loader import kernels_ready, load_kernels_soon
from cordwood.batch.records import decode_batch
from cordwood.errors import CorruptBatch, CorruptionError, TooManyOpenFiles
from cordwood.log.files.disk import as_cordwood
from cordwood.log.files.file_cache import FileCache
from cordwood.log.files.residency import is_resident
from cordwood.log.format.index import FileIndex, MemoryIndex, OffsetEntry, WrongIndex
from cordwood.log.format.layout import FileKind, file_path
from cordwood.log.format.producers import Aborted, WrongSnapshot, parse_aborted
from cordwood.log.format.scan import BatchWalk, Located, read_fd
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
from cordwood.model import NO_TIMESTAMP, Record, SegmentInfo, SegmentState

WALK_BYTES: Final = 8192  # one read of the header walk that follows an index lookup
RESUMED_MAX: Final = 64  # remembered positions where reads stopped
MANY_BATCHES: Final = 200  # from here on a kernel is faster than Python's 2 µs per batch
_FRAME: Final = struct.Struct(">qi4xbI2xi")  # base offset, length, magic, crc, last offset delta


class Retired(Exception):  # never leaves cordwood.log: readers retry
    """The segment's file was renamed or deleted; the partition has a newer read snapshot."""


class BatchRun(NamedTuple):
    """Consecutive whole batches."""

    data: bytes | memoryview
    first_offset: int  # of the first batch; may be below the requested offset
    next_offset: int  # where to read next


class Segment:
    """A segment, shared by readers and the writer."""

    # fmt: off
    __slots__ = (
        "_file_cache", "_interval_bytes", "_resumed", "aborted", "aborted_count", "base_offset",
        "created_ms", "damage", "directory", "end_offset", "first_ms", "index", "is_index_wrong",
        "is_retired", "is_sealed", "is_void", "newest_ms", "records", "size_bytes",
    )
    # fmt: on

    def __init__(
        self,
        directory: Path,
        facts: SegmentStats,
        index: MemoryIndex | None,
        descriptors: FileCache,
        interval_bytes: int,
    ) -> None:
        """Create a segment from its stats. Without ``index`` it is sealed and indexed by files."""
        self.directory = directory
        self.base_offset = facts.base_offset
        self.end_offset = facts.end_offset
        self.size_bytes = facts.size_bytes
        self.records = facts.records
        self.first_ms = facts.first_ms
        self.newest_ms = facts.newest_ms
        self.created_ms = facts.created_ms
        self.aborted_count = facts.aborted_count
        self.aborted: tuple[Aborted, ...] = ()  # of the active segment; a sealed segment has a file
        self.damage: tuple[Damage, ...] = ()  # known damage, in order
        self.is_sealed = True
        self.is_retired = False
        self.is_void = False
        self.is_index_wrong = False  # the index files are wrong; the index in memory is right
        self._file_cache = descriptors
        self._interval_bytes = interval_bytes  # for rebuilding the index
        self._resumed: dict[int, int] = {}  # offset → position where a read stopped
        self.index: MemoryIndex | FileIndex = index or self._file_index(
            facts.index_bytes, facts.timeindex_bytes
        )

    def path(self, kind: FileKind = FileKind.LOG) -> Path:
        """The path of one of its files while the segment is live."""
        return file_path(self.directory, self.base_offset, kind)

    def info(self) -> SegmentInfo:
        """An immutable copy for the pure policies in ``decide``."""
        return SegmentInfo(
            base_offset=self.base_offset, end_offset=self.end_offset, size_bytes=self.size_bytes,
            records=self.records, first_ms=self.first_ms, newest_ms=self.newest_ms,
            created_ms=self.created_ms,
            state=SegmentState.SEALED if self.is_sealed else SegmentState.ACTIVE,
        )  # fmt: skip

    def open_facts(self, durable_bytes: int) -> SegmentStats:
        """The stats of the active segment: its creation time and its synced size."""
        blank = SegmentStats.blank(self.base_offset, self.created_ms)
        return blank._replace(size_bytes=durable_bytes)

    def facts(self) -> SegmentStats:
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
        self.index = self._file_index(*self.index.sizes_bytes())
        self.is_index_wrong = False
        self.is_sealed = True
        self.aborted = ()

    def _file_index(self, index_bytes: int, timeindex_bytes: int) -> FileIndex:
        return FileIndex(
            self.base_offset,
            lambda position, length: self._read(FileKind.INDEX, position, length),
            index_bytes,
            lambda position, length: self._read(FileKind.TIMEINDEX, position, length),
            timeindex_bytes,
        )

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

    def _read(self, kind: FileKind, position: int, length: int) -> bytes:
        with self.reading(kind) as fd:
            return os.pread(fd, length, position)

    def read_aborted(self) -> Sequence[Aborted]:
        """The transactions whose abort marker is in this segment."""
        if not self.aborted_count or not self.is_sealed:
            return self.aborted
        path = self.path(FileKind.TXNINDEX)
        try:
            return parse_aborted(path.read_bytes())
        except FileNotFoundError:
            raise (
                Retired()
                if self.is_retired
                else CorruptionError(f"{path} is gone; restart to have it made again")
            ) from None
        except WrongSnapshot as error:
            raise CorruptionError(f"{path}: {error}; remove it and restart") from error

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
            wanted = min(max(max_bytes, HEADER_BYTES), limit - position)
            data = os.pread(fd, wanted, position)
            first_bytes = LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big")
            if first_bytes > len(data):
                data = os.pread(fd, min(first_bytes, limit - position), position)
        are_many = len(data) >= MANY_BATCHES * first_bytes  # estimated from the first batch
        # In a dense segment each base offset is known, although the checksum does not cover it.
        is_dense = self.records == self.end_offset - self.base_offset
        most = max(offset, self.base_offset) if is_dense else self.end_offset
        run = (
            self._whole_by_kernel(data, end_offset, most) if are_many and kernels_ready() else None
        )
        if run is None:
            if are_many:
                load_kernels_soon()  # for the next such read
            run = self._whole_batches(data, position, end_offset, most)
        if self.is_void:
            raise Retired
        if run is not None:
            self._remember(run.next_offset, position + len(run.data))
        return run

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
        """The position of the first batch that ends at ``offset`` or later, below ``limit``."""
        if offset <= self.base_offset:
            return 0 if limit else None
        resumed = self._resumed.get(offset)
        if resumed is not None:
            if resumed >= limit:
                return None
            if int.from_bytes(os.pread(fd, 8, resumed), "big") >= offset:
                return resumed  # else a damaged offset misled the last read: walk
        try:
            entry = self._checked_index().floor(offset)
            return self._walk(fd, entry, offset, limit)
        except WrongIndex:
            return self._walk(fd, self.rebuild_index(fd).floor(offset), offset, limit)

    def _walk(self, fd: int, entry: OffsetEntry | None, offset: int, limit: int) -> int | None:
        """Walk headers from an index entry, which must match its batch, to ``offset``."""
        position = 0 if entry is None else entry.position
        if entry and position >= self.size_bytes and isinstance(self.index, FileIndex):
            raise WrongIndex("an entry points behind the log")
        least, end_offset = self.base_offset, self.end_offset
        block, block_start = b"", position
        while position < limit:  # hot loop: dozens of headers per small read
            if self.damage and (damage := damage_at(self.damage, position)) is not None:
                if offset < damage.end_offset:
                    return damage.position
                position, least, entry = damage.end_position, damage.end_offset, None
                continue
            start = position - block_start
            if start + HEADER_BYTES > len(block):
                block, block_start, start = os.pread(fd, WALK_BYTES, position), position, 0
                if len(block) < HEADER_BYTES:
                    raise self.corruption("the file ends in this batch", position)
            base_offset, length, magic, _, delta = _FRAME.unpack_from(block, start)
            last_offset, size_bytes = base_offset + delta, LOG_OVERHEAD + length
            if entry is not None:
                self._check_entry(entry, magic, last_offset)
                entry = None
            if magic != MAGIC or not HEADER_BYTES <= size_bytes <= limit - position:
                raise self.corruption("no batch there", position)
            if not least <= base_offset <= last_offset < end_offset:
                raise self._misplaced(position, base_offset, least)
            if last_offset >= offset:
                return position
            least = last_offset + 1
            position += size_bytes
        return None

    def locate_time(self, fd: int, timestamp_ms: int, least_offset: int, limit: int) -> int:
        """A position at or shortly before the first batch that reaches ``timestamp_ms``.

        If an offset entry has no time entry beside it, the largest timestamp had not grown by then.
        So that batch lies after the last offset entry before the first time entry that reaches the
        time. Batches that end below ``least_offset`` are skipped.
        """
        position = self._floor_time(fd, timestamp_ms)
        if least_offset > self.base_offset:
            least = self.locate(fd, least_offset, limit)
            position = max(position, limit if least is None else least)
        return position

    def records_at(self, fd: int, position: int, header: BatchHeader) -> list[Record]:
        """The records of one batch, checksum checked."""
        data = os.pread(fd, header.size_bytes, position)
        try:
            return decode_batch(data)
        except CorruptBatch as error:
            raise self.corruption(str(error), position) from error

    def batches(self, fd: int, position: int, limit: int) -> Iterator[Located]:
        """Headers from ``position`` to ``limit``, skipping known damage; raises ``BadBatch``."""
        least = self.base_offset
        for damage in self.damage:
            if position < damage.end_position and damage.position < limit:
                yield from self._headers(fd, position, damage.position, least)
                position, least = damage.end_position, damage.end_offset
        yield from self._headers(fd, position, limit, least)

    def _headers(self, fd: int, position: int, limit: int, least: int) -> Iterator[Located]:
        walk = BatchWalk(read_fd(fd), limit, least, position=position, verify=False)
        yield from walk
        if walk.problem:
            raise self.corruption(walk.problem, walk.valid_bytes)

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
                is_dense=self.records == self.end_offset - self.base_offset,
            )  # fmt: skip
            found = find_damage(area, position)
        if found is not None and damage_at(self.damage, found.position) is None:
            self.damage = tuple(sorted((*self.damage, found)))
        return found

    def _floor_time(self, fd: int, timestamp_ms: int) -> int:
        try:
            index = self._checked_index()
            reached = index.first_reaching(timestamp_ms)
            entry = index.floor(self.end_offset if reached is None else reached.offset - 1)
            if entry is not None:
                self._walk(fd, entry, entry.offset, self.size_bytes)
        except WrongIndex:
            self.rebuild_index(fd)
            return self._floor_time(fd, timestamp_ms)
        return 0 if entry is None else entry.position

    def _checked_index(self) -> MemoryIndex | FileIndex:
        index = self.index
        if isinstance(index, FileIndex) and not index.is_checked:
            index.check(self.size_bytes, self.end_offset)
        return index

    def _check_entry(self, entry: OffsetEntry, magic: int, last_offset: int) -> None:
        """Trust an index file only if the batch at the entry's position ends with its offset."""
        if magic == MAGIC and last_offset == entry.offset:
            return
        if isinstance(self.index, FileIndex):
            raise WrongIndex(f"no batch at {entry.position} ends with offset {entry.offset}")

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

    def _misplaced(self, position: int, first: int, least: int) -> BadBatch | Retired:
        """The error for a wrong base offset.

        The checksum does not cover offsets, so they are checked to be ascending and in range.
        """
        expected = f"expected {least} to {self.end_offset - 1}"
        return self.corruption(f"the batch claims offset {first}, {expected}", position)

    def _whole_by_kernel(self, data: bytes, end_offset: int, most: int) -> BatchRun | None:
        """Like ``_whole_batches``, by one kernel call; None means: use ``_whole_batches``."""
        from cordwood.batch.header_table import (  # late: an idle broker needs no numpy
            WalkEnd,
            walk_batches,
        )

        walk = walk_batches(data)
        firsts, lasts = walk.batches.base_offsets, walk.batches.last_offsets
        if walk.end is WalkEnd.CORRUPT or not len(firsts):
            return None
        is_ordered = bool((firsts <= lasts).all() and (firsts[1:] > lasts[:-1]).all())
        if not is_ordered or firsts[0] < self.base_offset or lasts[-1] >= self.end_offset:
            return None
        if most < self.end_offset and (firsts[0] > most or (firsts[1:] > lasts[:-1] + 1).any()):
            return None
        count = int(firsts.searchsorted(end_offset))
        if not count:
            return None
        end = int(walk.batches.positions[count - 1] + walk.batches.sizes[count - 1])
        return BatchRun(_front(data, end), int(firsts[0]), int(lasts[count - 1]) + 1)

    def _whole_batches(
        self, data: bytes, position: int, end_offset: int, most: int
    ) -> BatchRun | None:
        """Return the whole sound batches in ``data``; None if all begin at ``end_offset`` or later.

        Sound batches before a bad one are returned; a bad batch at the front raises. The first
        batch must begin at ``most`` or below. If ``most`` is below the segment's end, the segment
        is dense and the following batches must have no gaps between them either.
        """
        is_dense = most < self.end_offset
        end, first_offset, next_offset = 0, -1, self.base_offset
        before_end, before_offset = 0, -1  # the run without its last batch
        segment_end, data_bytes = self.end_offset, len(data)
        headers_end = data_bytes - HEADER_BYTES
        while end <= headers_end:  # hot loop: attribute lookups are kept out of it
            base_offset, length, magic, crc, delta = _FRAME.unpack_from(data, end)
            size_bytes = LOG_OVERHEAD + length
            if magic != MAGIC or size_bytes < HEADER_BYTES:
                if end:
                    break
                raise self.corruption("no batch there", position)
            following = base_offset + delta + 1
            if not next_offset <= base_offset < following <= segment_end or (
                is_dense and base_offset > most
            ):
                if base_offset < next_offset:  # the previous batch may be the wrong one
                    end, next_offset = before_end, before_offset
                if end:
                    break
                raise self._misplaced(position, base_offset, next_offset)
            if base_offset >= end_offset:
                return BatchRun(_front(data, end), first_offset, next_offset) if end else None
            batch_end = end + size_bytes
            if batch_end > data_bytes:
                break
            if crc32c(data[end + CRC_START : batch_end]) != crc:
                if end:
                    break
                raise self.corruption("the batch does not match its checksum", position)
            before_end, before_offset = end, next_offset
            if not end:
                first_offset = base_offset
            end, most = batch_end, following
            next_offset = following
        if not end:
            raise self.corruption("the file ends in this batch", position)
        return BatchRun(_front(data, end), first_offset, next_offset)


def _front(data: bytes, end: int) -> bytes | memoryview:
    """The first ``end`` bytes, uncopied: a reply of megabytes nearly always ends inside a batch."""
    return data if end == len(data) else memoryview(data)[:end]
