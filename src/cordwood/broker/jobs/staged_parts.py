"""Staged parts as a delivery handles them: their bytes, and the numbers of their batches.

Whoever may write to staging may change a file at any time, also between the check and the append.
So a part is known by the sha256 its request named, and it is checked on a private copy in memory,
each time a file is read.

Plain functions that block; they are called on a background thread. Files are reached through
``log.staging.area`` only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cordwood.batch.header import SEQUENCE_MODULUS, parse_headers, stamp_producer
from cordwood.decide.delivery import Part
from cordwood.errors import UnavailableError, UnknownJob
from cordwood.log.staging.area import JobFiles, sha256_of


class ReadBuffers:
    """Memory that one file after another is read into: large buffers are not cheap to get."""

    def __init__(self) -> None:
        self._room = bytearray()
        self._sizes: list[int] = []

    def read(self, files: JobFiles, parts: Sequence[Part]) -> memoryview:
        """The parts' files, one behind the other; what was read before is overwritten.

        Raises ``UnknownJob`` if one has not the sha256 that was accepted. What is hashed is this
        memory, which no other process can write to: whoever appends it appends what was named.
        """
        view = self._read(files, [part.file for part in parts])
        position = 0
        for part, size_bytes in zip(parts, self._sizes, strict=True):
            data = view[position : position + size_bytes]
            position += size_bytes
            if sha256_of([data]) != part.sha256:
                raise _changed(files, part.file)
        return view

    def _read(self, files: JobFiles, names: Sequence[str]) -> memoryview:
        fds: list[int] = []
        try:
            for name in names:
                fds.append(files.open(name))  # noqa: PERF401 - those opened before are closed
            self._sizes = [os.fstat(fd).st_size for fd in fds]
            if sum(self._sizes) > len(self._room):
                self._room = bytearray(sum(self._sizes))
            view = memoryview(self._room)[: sum(self._sizes)]
            position = 0
            for name, fd, size_bytes in zip(names, fds, self._sizes, strict=True):
                _read_into(files, name, fd, view[position : position + size_bytes])
                position += size_bytes
            return view
        finally:
            for fd in fds:
                os.close(fd)


def _read_into(files: JobFiles, name: str, fd: int, view: memoryview) -> None:
    try:
        read_bytes = os.readv(fd, [view]) if view else 0
    except OSError as error:
        raise UnavailableError(f"{files.path / name}: {error.strerror}") from error
    if read_bytes != len(view):
        raise _changed(files, name)


def _changed(files: JobFiles, name: str) -> UnknownJob:
    return UnknownJob(f"{files.path / name} changed after it was staged; run the job again")


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
