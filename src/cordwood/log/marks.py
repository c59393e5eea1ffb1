"""The partition's marks, published for readers of the files: log start, high watermark, LSO.

Whoever reads segment files without asking the broker must not pass the high watermark: bytes past
it are not durable yet. So the writer keeps 112 bytes per partition in a mapped file, ``marks``, and
renews them at each publish: one copy of 56 bytes in memory, no system call and no sync.

Two slots take turns, each with a count and a checksum. A reader takes the whole slot with the
higher count; a slot caught half written fails its checksum and the one before it serves: an older
watermark, never a wrong one. ``kill -9`` loses nothing, as the page cache keeps the file. After a
power cut the file may be old or torn; then no broker holds the lock, and a reader may take
everything valid in the files instead, as recovery will.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.log.files import Files

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


class Marks:
    """The writer's end; one per open partition, used by the writer thread only."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Map the file, creating it if need be; what was published before stays until renewed."""
        path = directory / MARKS_NAME
        file = files.open_existing(path) if path.exists() else files.create(path)
        try:
            if path.stat().st_size != _FILE_BYTES:
                files.truncate(file, _FILE_BYTES)
            self._map = mmap.mmap(file.fd, _FILE_BYTES)
        finally:
            files.close(file)
        best = _newest(self._map[:])
        self._count = best[0] if best else 0

    def publish(self, marks: Published) -> None:
        """Let readers see these marks from now on."""
        assert marks.log_start_offset <= marks.last_stable_offset <= marks.high_watermark, marks
        self._count += 1
        position = _SLOT.size * (self._count & 1)
        self._map[position : position + _SLOT.size] = _encode_slot(self._count, marks)

    def close(self) -> None:
        """Put the marks on the device and let go; a clean stop leaves them exact."""
        self._map.flush()
        self._map.close()


def read_marks(directory: Path) -> Published | None:
    """What was last published, or None when nobody ever did (or a power cut tore it)."""
    try:
        data = (directory / MARKS_NAME).read_bytes()
    except FileNotFoundError:
        return None
    newest = _newest(data)
    return newest[1] if newest else None


def _encode_slot(count: int, marks: Published) -> bytes:
    data = _SLOT.pack(count, *marks, 0)
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
    count, *marks, _ = max(whole)
    return count, Published(*marks)


def _is_whole(slot: bytes) -> bool:
    return any(slot) and zlib.crc32(slot[:-8]) == int.from_bytes(slot[-8:], "little")
