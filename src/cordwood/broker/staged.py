"""Staged files, as the gate handles them: their bytes, their numbers, and when they are swept.

Plain functions that block; the gate calls them on a thread of its own. Names are checked before
they come here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from cordwood.batch.header import SEQUENCE_MODULUS, parse_headers, stamp_producer
from cordwood.errors import UnknownJob


class Room:
    """Memory that one file after another is read into: large buffers are not cheap to get."""

    def __init__(self) -> None:
        self._room = bytearray()

    def read(self, paths: Sequence[Path]) -> memoryview:
        """The files, one behind the other; what was read before is overwritten."""
        sizes = [_size(path) for path in paths]
        if sum(sizes) > len(self._room):
            self._room = bytearray(sum(sizes))
        view = memoryview(self._room)[: sum(sizes)]
        position = 0
        for path, size in zip(paths, sizes, strict=True):
            with path.open("rb", buffering=0) as file:
                read_bytes = file.readinto(view[position : position + size])
            if read_bytes != size:
                raise UnknownJob(f"{path} changed while it was read; run the job again")
            position += size
        return view


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise UnknownJob(f"{path} was not staged; run the job again") from None


def sync(path: Path, flags: int = 0) -> None:
    """Who staged it may sit on another machine; what is here is made durable here."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        raise UnknownJob(f"{path} was not staged; run the job again") from None
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(path: Path, data: bytes) -> None:
    """A staged file, from a job that cannot reach this directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def forget(directory: Path) -> None:
    """A job's files go."""
    shutil.rmtree(directory, ignore_errors=True)


def stamp(data: memoryview, producer_id: int, producer_epoch: int, sequence: int) -> None:
    """Number batches on from ``sequence``."""
    position = 0
    for header in parse_headers(data):
        stamp_producer(
            data,
            position,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence % SEQUENCE_MODULUS,
        )
        position += header.size_bytes
        sequence += header.last_offset_delta + 1


def without_stored(data: memoryview, have: int | None) -> memoryview:
    """The batches after the one whose last sequence the log has; all when it has none of them."""
    if have is None:
        return data
    position = 0
    for header in parse_headers(data):
        ahead = (header.last_sequence - have) % SEQUENCE_MODULUS
        if 0 < ahead < SEQUENCE_MODULUS // 2:
            break
        position += header.size_bytes
    return data[position:]


# --- what nobody comes back for -------------------------------------------------------------------


class Leftover(NamedTuple):
    """A job's directory, and how long nothing in it has changed."""

    job: str
    idle_ms: int


def plan_sweep(found: Sequence[Leftover], needed: Collection[str], idle_ms_max: int) -> list[str]:
    """The jobs to forget: idle for long, and in no delivery that was written down."""
    return [each.job for each in found if each.idle_ms > idle_ms_max and each.job not in needed]


def find_leftovers(staging: Path, now_ms: int) -> list[Leftover]:
    """Every job that has staged something; its newest file tells when it was last at work."""
    found = []
    try:
        rooms = [entry for entry in os.scandir(staging) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    for room in rooms:
        try:
            newest = max(path.stat().st_mtime for path in [Path(room), *Path(room).rglob("*")])
        except FileNotFoundError:  # it is being delivered, or forgotten, right now
            continue
        found.append(Leftover(room.name, now_ms - int(newest * 1000)))
    return found
