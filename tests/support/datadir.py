"""Data directories made by hand, with the same files that a broker writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path

from cordwood.batch.header import parse_header
from cordwood.batch.records import encode_batch
from cordwood.log.files.disk import Files
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.layout import (
    DELETED,
    FORMAT,
    LOCK,
    SWAP,
    FileKind,
    encode_format,
    file_path,
)
from cordwood.log.read.published_offsets import Published, PublishedOffsets
from cordwood.model import Header, Record, TopicPartition

START_MS = 1_700_000_000_000


def records(start: int, end: int, *, size: int = 20, headers: bool = False) -> list[Record]:
    """Return records whose fields depend on their offset, one per second."""
    return [
        Record(
            offset,
            START_MS + 1000 * offset,
            b"k%d" % (offset % 7),
            b"v%d" % offset + b"." * size,
            (Header("h", b"%d" % offset), Header("empty", None)) if headers else (),
        )
        for offset in range(start, end)
    ]


class HandMade:
    """The files of one partition; the caller chooses the offsets, so gaps are possible."""

    def __init__(self, data: Path, tp: TopicPartition) -> None:
        self.directory = data / str(tp)
        self.directory.mkdir()
        self.bases: list[int] = []
        self.end = 0
        self._published_offsets: PublishedOffsets | None = None
        self._index: MemoryIndex | None = None

    @property
    def active(self) -> Path:
        """Return the file that appends go to."""
        return self.path(self.bases[-1])

    def path(self, base: int, kind: FileKind = FileKind.LOG, suffix: str = "") -> Path:
        return file_path(self.directory, base, kind, suffix)

    def append(self, *batches: Iterable[Record] | bytes, **options: object) -> None:
        """Append each argument as one batch; bytes are an encoded batch."""
        if not self.bases:
            self._open(0)
        for batch in batches:
            data = batch if isinstance(batch, bytes) else encode_batch(list(batch), **options)
            position = self.active.stat().st_size
            with self.active.open("ab") as file:
                file.write(data)
            header = parse_header(data)
            self._index.add(header, position)
            self.end = header.end_offset

    def _open(self, base: int) -> None:
        self.bases.append(base)
        self.active.touch()
        self._index = MemoryIndex(base, interval_bytes=0)

    def cut(self) -> None:
        """Seal the active segment with its indexes and begin the next."""
        self._index.seal()
        base = self.bases[-1]
        self.path(base, FileKind.INDEX).write_bytes(self._index.encode_offsets())
        self.path(base, FileKind.TIMEINDEX).write_bytes(self._index.encode_times())
        self._open(self.end)

    def publish(self, *, log_start: int = 0) -> None:
        """Publish everything appended so far."""
        if self._published_offsets is None:
            self._published_offsets = PublishedOffsets(self.directory, Files())
        self._published_offsets.publish(
            Published(log_start, self.end, self.end, self.bases[-1], self.active.stat().st_size)
        )

    def reclaim(self, base: int, *, purge: bool = False) -> None:
        """Rename a segment as deleted, as the broker does, and with ``purge`` remove it."""
        self._rename(base, DELETED)
        if purge:
            for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
                self.path(base, kind, DELETED).unlink(missing_ok=True)
        self.bases.remove(base)

    def stage(self, base: int, *batches: Iterable[Record]) -> None:
        """Write a replacement segment with the suffix ``.swap``."""
        data = b"".join(encode_batch(list(batch)) for batch in batches)
        self.path(base, FileKind.LOG, SWAP).write_bytes(data)

    def swap_in(self, base: int, replaced: Iterable[int]) -> None:
        """Complete the swap that ``stage`` began."""
        for old in replaced:
            self._rename(old, DELETED)
            self.bases.remove(old)
        self.path(base, FileKind.LOG, SWAP).rename(self.path(base))
        self.bases = sorted({*self.bases, base})

    def _rename(self, base: int, suffix: str) -> None:
        for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
            if self.path(base, kind).exists():
                self.path(base, kind).rename(self.path(base, kind, suffix))

    def close(self) -> None:
        if self._published_offsets is not None:
            self._published_offsets.close()


def make_data_directory(path: Path) -> Path:
    """Create an empty data directory of the current format."""
    path.mkdir(parents=True, exist_ok=True)
    (path / FORMAT).write_bytes(encode_format())
    (path / LOCK).touch()
    return path


@contextmanager
def held(data: Path):
    """Hold the lock, as a running broker does."""
    fd = os.open(data / LOCK, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
