"""Scrub a sealed segment: check every checksum and length, and compute the file's sha256.

Opens the file anew, so a segment that was restored from a copy is seen as it is now. Pages that
were not in the page cache before are released after they are read. Never changes anything.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from cordwood.log.files.residency import is_resident
from cordwood.log.format.index import OffsetEntry, WrongIndex
from cordwood.log.format.scan import BatchWalk
from cordwood.log.read.damage import Area, Damage, find_damage
from cordwood.log.read.segment import Segment

Pace = Callable[[int], None]  # called with the bytes read; waits, or raises to stop

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}.get(platform.machine())
_IDLE_CLASS: Final = 3 << 13
_DAMAGE_MAX: Final = 100  # ranges per segment; the rest of the file then counts as one range


class Verdict(NamedTuple):
    """The result of scrubbing a segment."""

    size_bytes: int
    records: int
    sha256: str  # of the file as it is now
    damage: tuple[Damage, ...]


def scrub_segment(segment: Segment, pace: Pace) -> Verdict:
    """Read the whole segment; raises ``OSError`` on device errors, and whatever ``pace`` raises."""
    fd = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _scrub(fd, segment, pace)
    finally:
        os.close(fd)


def _scrub(fd: int, segment: Segment, pace: Pace) -> Verdict:
    size_bytes = os.fstat(fd).st_size
    reading = _Reading(fd, pace)
    end = segment.size_bytes, segment.end_offset
    is_dense = segment.is_dense
    damage: tuple[Damage, ...] = ()
    position, least, records = 0, segment.base_offset, 0
    while True:
        walk = BatchWalk(reading.read, min(size_bytes, end[0]), least, position=position)
        for located in walk:
            if located.header.last_offset >= segment.end_offset or (
                is_dense and located.header.base_offset != walk.next_offset
            ):
                walk.problem = f"the batch at position {located.position} has a wrong offset"
                break
            records += located.header.count
        if not walk.problem and walk.valid_bytes < end[0]:
            walk.problem = f"the file has {size_bytes} bytes, but had {end[0]}"
        if not walk.problem:
            return Verdict(size_bytes, records, _sum(fd, reading, damage), damage)
        area = Area(reading.read, _entries(segment), segment.base_offset, *end, damage, is_dense)
        later = find_damage(area, walk.valid_bytes) if len(damage) < _DAMAGE_MAX else None
        if later is None:
            later = Damage(walk.valid_bytes, end[0], walk.next_offset, end[1], walk.problem)
        damage = (*damage, later)
        position, least = later.end_position, later.end_offset


def _sum(fd: int, reading: _Reading, damage: tuple[Damage, ...]) -> str:
    """The sha256 of the whole file. Around damage reads are out of order, so it is read again."""
    if not damage:
        return reading.sha256.hexdigest()
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entries(segment: Segment) -> list[OffsetEntry]:
    try:
        return segment.index.entries()
    except WrongIndex:
        return []


class _Reading:
    """Reads a file at a limited rate and hashes the part that is read in order."""

    def __init__(self, fd: int, pace: Pace) -> None:
        self.sha256 = hashlib.sha256()
        self._fd = fd
        self._pace = pace
        self._hashed = 0

    def read(self, position: int, length: int) -> bytes:
        """Read ``length`` bytes at ``position``."""
        was_resident = length > 0 and is_resident(self._fd, position, position + length)
        data = os.pread(self._fd, length, position)
        if not was_resident:
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)
        end = position + len(data)
        if position <= self._hashed < end:
            self.sha256.update(memoryview(data)[self._hashed - position :])
            self._hashed = end
            self._pace(len(data))
        return data


def yield_device() -> None:
    """Give this thread's reads the idle I/O class, where the system supports it."""
    if _IOPRIO_SET is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(_IOPRIO_SET, 1, threading.get_native_id(), _IDLE_CLASS)
