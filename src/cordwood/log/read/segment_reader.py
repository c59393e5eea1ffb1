"""The read-only reader of one segment, shared by the broker and Spark.

It finds positions by offset or by time through the sparse index, walks batches, decodes records and
reads aborted transactions. It trusts nothing that it reads: an index entry is used only if the
batch it describes is at its position, and frames are checked while they are walked.

``SegmentReader`` itself needs only the files, as Spark reads them: sizes come from the file system,
without a usable index it walks from the start, and bad bytes raise ``CorruptionError``. The
broker's ``segment.Segment`` adds what only the broker knows. Never changes a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.batch.header import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, parse_header
from cordwood.batch.records import decode_batch
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.log.format.index import EntryFile, FileIndex, MemoryIndex, OffsetEntry, WrongIndex
from cordwood.log.format.layout import FileKind, file_path
from cordwood.log.format.producers import WrongSnapshot, parse_aborted
from cordwood.log.format.scan import BatchWalk, Located, frame_problem, read_fd
from cordwood.log.read.damage import Damage, damage_at
from cordwood.log.read.whole_batches import (
    ANY_OFFSETS,
    FRAME,
    BatchRun,
    OffsetLimits,
    first_size_bytes,
    take_batches,
)
from cordwood.model import OFFSET_MAX, Aborted, Record

WALK_BYTES: Final = 8192  # one read of the header walk that follows an index lookup


class TimedRecord(NamedTuple):
    """A record found by its timestamp."""

    record: Record
    leader_epoch: int


class SegmentReader:
    """Reads the files of one segment; ``fd`` in its methods is a descriptor of its log."""

    __slots__ = ("base_offset", "damage", "directory", "end_offset", "index", "size_bytes",
                 "suffix")  # fmt: skip

    index: MemoryIndex | FileIndex

    def __init__(self, directory: Path, base_offset: int, suffix: str = "") -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix  # of the file names; empty for a live segment
        self.end_offset = OFFSET_MAX  # one past its last offset, if known
        self.size_bytes = 0  # of the log when it was last opened
        self.damage: tuple[Damage, ...] = ()  # known damage, in order

    def path(self, kind: FileKind = FileKind.LOG) -> Path:
        """The path of one of its files."""
        return file_path(self.directory, self.base_offset, kind, self.suffix)

    def reading(self, kind: FileKind = FileKind.LOG) -> AbstractContextManager[int]:
        """A context manager that opens one of its files; raises ``FileNotFoundError``."""
        return self._opened(kind)

    @contextmanager
    def _opened(self, kind: FileKind) -> Iterator[int]:
        fd = os.open(self.path(kind), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if kind is FileKind.LOG:
                self.size_bytes = os.fstat(fd).st_size
                self.index = self._found_index()
            yield fd
        finally:
            os.close(fd)

    def _found_index(self) -> MemoryIndex | FileIndex:
        """The index files; an empty index without them, as the active segment has none yet."""
        try:
            sizes = [self.path(k).stat().st_size for k in (FileKind.INDEX, FileKind.TIMEINDEX)]
        except FileNotFoundError:
            return MemoryIndex(self.base_offset, 0)
        return self.file_index(*sizes)

    def file_index(self, index_bytes: int, timeindex_bytes: int) -> FileIndex:
        """An index that reads the two files, which had these sizes when they were written."""
        return FileIndex(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            EntryFile(partial(self._read, FileKind.INDEX), index_bytes),
            EntryFile(partial(self._read, FileKind.TIMEINDEX), timeindex_bytes),
        )

    def _read(self, kind: FileKind, position: int, length: int) -> bytes:
        try:
            with self.reading(kind) as fd:
                return os.pread(fd, length, position)
        except FileNotFoundError:
            raise WrongIndex(f"{self.path(kind)} is gone") from None

    # --- finding positions ------------------------------------------------------------------

    def locate(self, fd: int, offset: int, limit: int) -> int | None:
        """The position of the first batch that ends at ``offset`` or later, below ``limit``."""
        if offset <= self.base_offset:
            return 0 if limit else None
        return self._walk_to(fd, self.floor(fd, offset), offset, limit)

    def locate_time(self, fd: int, timestamp_ms: int, least_offset: int, limit: int) -> int:
        """A position at or shortly before the first batch that reaches ``timestamp_ms``.

        Batches that end below ``least_offset`` are skipped.
        """
        try:
            position = self.floor(fd, self.index.last_older(timestamp_ms))
        except WrongIndex:
            position = self.floor(fd, self.rebuild_index(fd).last_older(timestamp_ms))
        if least_offset > self.base_offset:
            least = self.locate(fd, least_offset, limit)
            position = max(position, limit if least is None else least)
        return position

    def floor(self, fd: int, offset: int) -> int:
        """The position of the last indexed batch that ends at or below ``offset``; 0 if none."""
        try:
            index = self.index  # another thread may replace it
            entry = index.floor(offset)
            if entry is not None and isinstance(index, FileIndex):
                self._check_entry(fd, entry)
        except WrongIndex:
            entry = self.rebuild_index(fd).floor(offset)
        return 0 if entry is None else entry.position

    def _check_entry(self, fd: int, entry: OffsetEntry) -> None:
        """Trust an index file only if the batch at the entry's position ends with its offset."""
        if damage_at(self.damage, entry.position) is not None:
            return
        header = self._header_at(fd, entry.position)
        if header is None or header.last_offset != entry.offset:
            raise WrongIndex(f"no batch at {entry.position} ends with offset {entry.offset}")

    def begins_at(self, fd: int, position: int, offset: int) -> bool:
        """Whether a batch that begins with ``offset`` is at ``position``."""
        header = self._header_at(fd, position)
        return header is not None and header.base_offset == offset

    def _header_at(self, fd: int, position: int) -> BatchHeader | None:
        head = os.pread(fd, HEADER_BYTES, position)
        if len(head) < HEADER_BYTES:
            return None
        header = parse_header(head)
        left_bytes = self.size_bytes - position
        return None if frame_problem(header, position, left_bytes, self.base_offset) else header

    def _walk_to(self, fd: int, position: int, offset: int, limit: int) -> int | None:
        """Walk from a batch at or before ``offset`` to the first that ends there or later."""
        least, end_offset = self.base_offset, self.end_offset
        block, block_start = b"", position
        while position < limit:  # hot loop: dozens of headers per small read
            if self.damage and (damage := damage_at(self.damage, position)) is not None:
                if offset < damage.end_offset:
                    return damage.position
                position, least = damage.end_position, damage.end_offset
                continue
            start = position - block_start
            if start + HEADER_BYTES > len(block):
                block, block_start, start = os.pread(fd, WALK_BYTES, position), position, 0
                if len(block) < HEADER_BYTES:
                    raise self.corruption("the file ends inside this batch", position)
            base_offset, length, magic, _, delta = FRAME.unpack_from(block, start)
            last_offset, size_bytes = base_offset + delta, LOG_OVERHEAD + length
            if magic != MAGIC or not HEADER_BYTES <= size_bytes <= limit - position:
                raise self.corruption("there is no batch", position)
            if not least <= base_offset <= last_offset < end_offset:
                problem = f"the batch claims offset {base_offset}, expected {least} or more"
                raise self.corruption(problem, position)
            if last_offset >= offset:
                return position
            least = last_offset + 1
            position += size_bytes
        return None

    def rebuild_index(self, fd: int) -> MemoryIndex:  # noqa: ARG002 - the broker walks the log
        """Replace an index that contradicts the log; this one is empty, so walks are longer."""
        self.index = MemoryIndex(self.base_offset, 0)
        return self.index

    # --- reading ----------------------------------------------------------------------------

    def batches(self, fd: int, position: int, limit: int) -> Iterator[Located]:
        """Headers from ``position`` to ``limit``, skipping known damage; raises ``corruption``."""
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

    def records_at(self, fd: int, position: int, header: BatchHeader) -> list[Record]:
        """The records of one batch, checksum checked."""
        data = os.pread(fd, header.size_bytes, position)
        try:
            return decode_batch(data)
        except CorruptBatch as error:
            raise self.corruption(str(error), position) from error

    def first_at_time(
        self, fd: int, timestamp_ms: int, start: int, end: int, limit: int
    ) -> TimedRecord | None:
        """The first record in ``[start, end)`` with a timestamp of ``timestamp_ms`` or later."""
        position = self.locate_time(fd, timestamp_ms, start, limit)
        for at, header in self.batches(fd, position, limit):
            if header.base_offset >= end:
                return None
            if header.max_timestamp_ms < timestamp_ms or not header.count:
                continue
            for record in self.records_at(fd, at, header):
                if record.timestamp_ms >= timestamp_ms and start <= record.offset < end:
                    return TimedRecord(record, header.leader_epoch)
        return None

    def take(
        self,
        fd: int,
        position: int,
        max_bytes: int,
        end_offset: int,
        *,
        limit: int,
        limits: OffsetLimits = ANY_OFFSETS,
        verify: bool = True,
    ) -> BatchRun | None:
        """Whole batches from ``position`` on that begin below ``end_offset``; None if none does.

        At least one batch, whatever its size. Bytes from position ``limit`` on are not read.
        """
        data = os.pread(fd, min(max(max_bytes, HEADER_BYTES), limit - position), position)
        first_bytes = first_size_bytes(data)
        if first_bytes > len(data):
            data = os.pread(fd, min(first_bytes, limit - position), position)
        try:
            return take_batches(data, end_offset, limits, verify=verify)
        except CorruptBatch as error:
            raise self.corruption(str(error), position) from None

    def read_aborted(self) -> list[Aborted]:
        """The transactions whose abort marker is in this segment; raises ``FileNotFoundError``."""
        path = self.path(FileKind.TXNINDEX)
        try:
            return parse_aborted(path.read_bytes())
        except WrongSnapshot as error:
            raise CorruptionError(
                f"{path}: {error}; remove it and restart the broker the broker the broker, which "
                "rebuilds it"
            ) from None

    def corruption(self, problem: str, position: int) -> Exception:
        """The error for a bad batch."""
        return CorruptionError(
            f"{self.path()}: at position {position}: {problem}; run `cordwood segment verify` and "
            "restore this segment from a copy"
        )
