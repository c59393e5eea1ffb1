"""Published offsets of a partition: log start, high watermark, last stable offset.

A process that reads segment files without asking the broker must not pass the high watermark: bytes
past it are not durable yet. So the writer keeps a file of 112 bytes, ``marks``, per partition and
updates it at each publish. While a partition is being written, the file is memory-mapped: a publish
copies 56 bytes in memory, without a system call or sync. A mapping costs a descriptor, so an idle
partition has none and writes its rare changes to the file.

Two slots are written in turn, each with a counter and a checksum. A reader takes the valid slot
with the higher counter. A half-written slot fails its checksum, and the previous one is used: an
older watermark, never a wrong one. ``kill -9`` loses nothing, because the page cache keeps the
file. After a power cut the file may be old or torn; then no broker holds the lock, and a reader may
use all valid batches in the files instead, as recovery will.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.log.files.disk import Files, OpenFile, as_cordwood

MARKS_NAME: Final = "marks"
_SLOT: Final = struct.Struct("<7q")  # counter, the five fields of Published, checksum
_UNSUMMED: Final = struct.Struct("<6q")  # the same without the checksum
_FILE_BYTES: Final = 2 * _SLOT.size


class Published(NamedTuple):
    """Offsets that readers may rely on, as of the last publish."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    segment_base_offset: int  # the active segment, …
    segment_bytes: int  # … and its size up to the high watermark


class PublishedOffsets:
    """The writing side; one per open partition, used by the writer thread only."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Read the offsets published before; they stay valid. No file is kept open."""
        self._path = directory / MARKS_NAME
        self._files = files
        self._map: mmap.mmap | None = None
        self._is_dirty = False  # the file may have unsynced changes
        self._count = 0
        self._last: Published | None = None  # the mapping may hold newer ones
        self._recall(_read(self._path))

    def _recall(self, data: bytes) -> None:
        newest = _newest(data)
        if newest is not None:
            self._count, self._last = newest

    def publish(self, published_offsets: Published) -> None:
        """Publish these offsets to readers of the files."""
        assert published_offsets.log_start_offset <= published_offsets.last_stable_offset
        assert published_offsets.last_stable_offset <= published_offsets.high_watermark
        if self._map is None:
            self._write(published_offsets)
            return
        self._count += 1
        position = _SLOT.size * (self._count & 1)
        self._map[position : position + _SLOT.size] = _encode_slot(self._count, published_offsets)

    def _write(self, published_offsets: Published) -> None:
        """Publish without a mapping; skips the write if the offsets have not changed."""
        if published_offsets == self._last:
            return
        position = _SLOT.size * (self._count + 1 & 1)
        file = self._open()
        try:
            self._files.write_at(file, _encode_slot(self._count + 1, published_offsets), position)
        finally:
            self._files.close(file)
        self._count, self._last, self._is_dirty = self._count + 1, published_offsets, True

    def _open(self) -> OpenFile:
        """Open the file, creating it or setting its length if needed."""
        exists = self._path.exists()
        file = self._files.open_existing(self._path) if exists else self._files.create(self._path)
        try:
            if os.fstat(file.fd).st_size != _FILE_BYTES:
                self._files.truncate(file, _FILE_BYTES)
        except BaseException:
            self._files.close(file)
            raise
        return file

    def map(self) -> None:
        """Map the file, so that each publish is a copy in memory. Takes a descriptor."""
        if self._map is None:
            file = self._open()
            try:
                self._map = mmap.mmap(file.fd, _FILE_BYTES)
            except OSError as error:
                raise as_cordwood(error, "map", self._path) from error
            finally:
                self._files.close(file)
            self._is_dirty = True

    def unmap(self) -> None:
        """Unmap the file and free the descriptor; the page cache keeps the published offsets."""
        if self._map is not None:
            self._recall(self._map[:])
            self._map.close()
            self._map = None

    def close(self) -> None:
        """Unmap and sync the file: after a clean stop the offsets on the device are exact."""
        self.unmap()
        if self._is_dirty:
            file = self._open()
            try:
                self._files.sync_data(file)
            finally:
                self._files.close(file)
            self._is_dirty = False


def read_published_offsets(directory: Path) -> Published | None:
    """The offsets last published, or None if there are none or a power cut tore the file."""
    newest = _newest(_read(directory / MARKS_NAME))
    return newest[1] if newest else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _encode_slot(count: int, published_offsets: Published) -> bytes:
    data = _UNSUMMED.pack(count, *published_offsets)
    return data + zlib.crc32(data).to_bytes(8, "little")


def _newest(data: bytes) -> tuple[int, Published] | None:
    """The valid slot with the higher counter."""
    slots = [
        data[position : position + _SLOT.size]
        for position in range(0, min(len(data), _FILE_BYTES) - _SLOT.size + 1, _SLOT.size)
    ]
    whole = [_SLOT.unpack(slot) for slot in slots if _is_whole(slot)]
    if not whole:
        return None
    count, *published_offsets, _ = max(whole)
    return count, Published(*published_offsets)


def _is_whole(slot: bytes) -> bool:
    return any(slot) and zlib.crc32(slot[:-8]) == int.from_bytes(slot[-8:], "little")
