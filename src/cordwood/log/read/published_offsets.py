"""The partition's marks, published for readers of the files: log start, high watermark, LSO.

Whoever reads segment files without asking the broker must not pass the high watermark: bytes past
it are not durable yet. So the writer keeps 112 bytes per partition in a file,
``published_offsets``, and renews them at each publish. While a partition is being written the file
is mapped: one copy of 56 bytes in memory, no system call and no sync. An idle one has no mapping,
which costs a descriptor; what little changes there is written to the file.

Two slots take turns, each with a count and a checksum. A reader takes the whole slot with the
higher count; a slot caught half written fails its checksum and the one before it serves: an older
watermark, never a wrong one. ``kill -9`` loses nothing, as the page cache keeps the file. After a
power cut the file may be old or torn; then no broker holds the lock, and a reader may take
everything valid in the files instead, as recovery will.
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
_SLOT: Final = struct.Struct("<7q")  # count, the five fields of Published, checksum
_FILE_BYTES: Final = 2 * _SLOT.size


class Published(NamedTuple):
    """What readers may rely on, as of the last publish."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    segment_base_offset: int  # the active segment, …
    segment_bytes: int  # … at this position of which the batch at the high watermark will begin


class PublishedOffsets:
    """The writer's end; one per open partition, used by the writer thread only."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Read what was published before: it stays until renewed. Nothing is kept open."""
        self._path = directory / MARKS_NAME
        self._files = files
        self._map: mmap.mmap | None = None
        self._is_dirty = False  # published since, and perhaps not on the device
        self._count = 0
        self._last: Published | None = None  # as far as known: a mapping may hold newer ones
        self._recall(_read(self._path))

    def _recall(self, data: bytes) -> None:
        newest = _newest(data)
        if newest is not None:
            self._count, self._last = newest

    def publish(self, published_offsets: Published) -> None:
        """Let readers see these marks from now on."""
        assert (
            published_offsets.log_start_offset
            <= published_offsets.last_stable_offset
            <= published_offsets.high_watermark
        ), published_offsets
        if self._map is None:
            self._write(published_offsets)
            return
        self._count += 1
        position = _SLOT.size * (self._count & 1)
        self._map[position : position + _SLOT.size] = _encode_slot(self._count, published_offsets)

    def _write(self, published_offsets: Published) -> None:
        """Without a mapping; marks that readers see already are not written again."""
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
        """The file, created if need be and of its full length."""
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
        """Make each publish a copy in memory from now on; takes a descriptor."""
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
        """Give the descriptor back; what was published stays in the page cache."""
        if self._map is not None:
            self._recall(self._map[:])
            self._map.close()
            self._map = None

    def close(self) -> None:
        """Put the marks on the device and let go; a clean stop leaves them exact."""
        self.unmap()
        if self._is_dirty:
            file = self._open()
            try:
                self._files.sync_data(file)
            finally:
                self._files.close(file)
            self._is_dirty = False


def read_published_offsets(directory: Path) -> Published | None:
    """What was last published, or None when nobody ever did (or a power cut tore it)."""
    newest = _newest(_read(directory / MARKS_NAME))
    return newest[1] if newest else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _encode_slot(count: int, published_offsets: Published) -> bytes:
    data = _SLOT.pack(count, *published_offsets, 0)
    return data[:-8] + zlib.crc32(data[:-8]).to_bytes(8, "little")


def _newest(data: bytes) -> tuple[int, Published] | None:
    """The whole slot with the higher count."""
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
