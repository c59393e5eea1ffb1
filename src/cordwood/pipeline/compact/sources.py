"""The segments of a compaction pass: identified by size and mtime, and read batch by batch.

This module only reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.config import MIB
from cordwood.errors import StaleManifest
from cordwood.log.read.batch_runs import ReadBuffer, read_runs

DIGEST_SUFFIX: Final = ".keys"
CHUNK_BYTES: Final = 8 * MIB


class DigestSource(NamedTuple):
    """A segment's log file, identified by size and mtime: a replaced file is a different source."""

    path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    mtime_ns: int

    @property
    def digest_name(self) -> str:
        """File name of this source's digest."""
        return f"{self.base_offset:020d}-{self.size_bytes}-{self.mtime_ns}{DIGEST_SUFFIX}"


def open_source(path: Path, base_offset: int, end_offset: int, size_bytes: int) -> DigestSource:
    """Identify a segment's log; raises ``StaleManifest`` if it is gone or has another size."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise _missing(str(path)) from None
    if stat.st_size != size_bytes:
        raise StaleManifest(f"{path} has {stat.st_size} bytes, not {size_bytes}; run the job again")
    return DigestSource(str(path), base_offset, end_offset, size_bytes, stat.st_mtime_ns)


def read_chunks(source: DigestSource, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Yield the source's batches in runs of whole batches, each of about ``chunk_bytes``.

    Runs share one buffer: use a run before asking for the next. Raises ``StaleManifest`` if the
    file was replaced, and ``CorruptionError`` where a batch is damaged or incomplete.
    """
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _missing(source.path) from None
    try:
        stat = os.fstat(fd)
        if (stat.st_size, stat.st_mtime_ns) != (source.size_bytes, source.mtime_ns):
            raise StaleManifest(f"{source.path} was replaced in the meantime; run the job again")
        buffer = ReadBuffer(min(chunk_bytes, source.size_bytes))
        for data, _ in read_runs(fd, source.path, source.size_bytes, buffer, verify=False):
            yield data.data
    finally:
        os.close(fd)


def _missing(path: str) -> StaleManifest:
    return StaleManifest(f"{path} does not exist any more: the log has changed; run the job again")


def digest_name(path: Path) -> str:
    """Return the digest's file name for a live log; empty if the log no longer exists."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ""
    return DigestSource(str(path), int(path.stem), 0, stat.st_size, stat.st_mtime_ns).digest_name
