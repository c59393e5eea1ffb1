"""Read and number the staged parts of a delivery.

A process with write access to the staging directory may change a file at any time, even between the
check and the append. So every read copies the file into private memory and checks that copy against
the sha256 in the request.

These functions block; they are called on a background thread. They open files only through
``log.staging.area``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cordwood.batch.header import SEQUENCE_MODULUS, parse_headers, stamp_producer
from cordwood.decide.delivery import Part
from cordwood.errors import UnavailableError, UnknownJob
from cordwood.log.staging.area import JobFiles, sha256_of


class ReadBuffers:
    """A buffer reused from one read to the next, because large allocations are expensive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._sizes: list[int] = []

    def read(self, files: JobFiles, parts: Sequence[Part]) -> memoryview:
        """Read the parts' files into one contiguous view; overwrites the result of the last call.

        Raises ``UnknownJob`` if a file does not have the sha256 that was accepted. The hash covers
        this private memory, which no other process can write to, so the bytes that are appended are
        the bytes that were accepted.
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
                fds.append(files.open(name))  # noqa: PERF401 - on an error, open files are closed
            self._sizes = [os.fstat(fd).st_size for fd in fds]
            if sum(self._sizes) > len(self._buffer):
                self._buffer = bytearray(sum(self._sizes))
            view = memoryview(self._buffer)[: sum(self._sizes)]
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
    """Write the producer id, the epoch and consecutive sequence numbers into the batches."""
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
    """Return the batches after sequence ``have``, the last one stored; all if it is None."""
    if have is None:
        return data
    position = 0
    for header in parse_headers(data):
        ahead = (header.last_sequence - have) % SEQUENCE_MODULUS
        if 0 < ahead < SEQUENCE_MODULUS // 2:
            break
        position += header.size_bytes
    return data[position:]
