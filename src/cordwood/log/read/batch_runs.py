"""Read whole batches of a segment, a few MiB at a time, to verify a compaction pass.

``read_sealed`` reads a live segment and checks every checksum. ``StagedLog`` reads the staged
segment that replaces it, as far as the live one has been read. Each byte is read once, into a
buffer that is reused for the next run. Never changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from cordwood.batch.header_table import Bytes, HeaderTable, WalkEnd, walk_batches
from cordwood.config import MIB
from cordwood.errors import CorruptionError, StaleManifest
from cordwood.log.format.layout import FileKind, file_path
from cordwood.model import SegmentInfo

RUN_BYTES: Final = 8 * MIB


class ReadBuffer:
    """A reusable read buffer; allocating a large array for every run would be expensive."""

    def __init__(self, size_bytes: int = RUN_BYTES) -> None:
        self.data: Bytes = np.empty(size_bytes, np.uint8)

    def fill(self, fd: int, position: int, start: int, end: int) -> int:
        """Read from file ``position`` into ``[start, end)``; returns where the read bytes end."""
        while start < end:
            count = os.preadv(fd, [self.data.data[start:end]], position)
            if not count:
                break
            start, position = start + count, position + count
        return start

    def grow(self, kept: int) -> None:
        """Double the size, keeping the first ``kept`` bytes."""
        larger = np.empty(2 * len(self.data), np.uint8)
        larger[:kept] = self.data[:kept]
        self.data = larger


def read_sealed(
    directory: Path, info: SegmentInfo, buffer: ReadBuffer
) -> Iterator[tuple[Bytes, HeaderTable]]:
    """Yield a live segment's batches in runs, checksums checked; each run overwrites the last."""
    path = file_path(directory, info.base_offset, FileKind.LOG)
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise StaleManifest(
            f"{path} no longer exists: the log has changed; run the job again"
        ) from None
    with file:
        fd = file.fileno()
        if os.fstat(fd).st_size < info.size_bytes:
            raise StaleManifest(f"{path} was replaced; run the job again")
        yield from read_runs(fd, str(path), info.size_bytes, buffer, verify=True)


def read_runs(
    fd: int, path: str, size_bytes: int, buffer: ReadBuffer, *, verify: bool
) -> Iterator[tuple[Bytes, HeaderTable]]:
    """Yield a file's batches in runs; each run overwrites the last. Raises ``CorruptionError``."""
    position = 0
    while position < size_bytes:
        end = min(len(buffer.data), size_bytes - position)
        data = buffer.data[: buffer.fill(fd, position, 0, end)]
        walk = walk_batches(data, verify=verify)
        is_last = position + len(data) >= size_bytes
        if walk.end is WalkEnd.CORRUPT or (walk.valid_bytes == 0 and is_last):
            reason = "a checksum does not match" if verify else "no whole batch"
            raise CorruptionError(
                f"{path}: {reason} at or after position {position}; restore this segment from a "
                "copy"
            )
        if walk.valid_bytes == 0:
            buffer.grow(0)  # a batch larger than a run
            continue
        yield data[: walk.valid_bytes], walk.batches
        position += walk.valid_bytes


class StagedLog:
    """A staged segment, checksums already checked, read in step with the live log."""

    def __init__(self, fd: int, buffer: ReadBuffer) -> None:
        self._fd = fd
        self._buffer = buffer
        self._left_bytes = os.fstat(fd).st_size
        self._position = 0  # in the file, of the next byte to read
        self._start = 0  # in the buffer: start of the bytes not yet taken
        self._end = 0

    def take(self, last_offset: int) -> tuple[Bytes, HeaderTable]:
        """The next batches with base offset up to ``last_offset``; valid until the next call."""
        while True:
            data = self._buffer.data[self._start : self._end]
            walk = walk_batches(data, verify=False)
            if walk.end is WalkEnd.CORRUPT:
                raise CorruptionError(f"no complete batch before position {self._position}")
            count = int(np.searchsorted(walk.batches.base_offsets, last_offset, side="right"))
            if count < len(walk.batches) or not self._left_bytes:
                break
            self._read_on()
        if not self._left_bytes and walk.valid_bytes < len(data):
            raise CorruptionError(f"no complete batch before position {self._position}")
        taken = walk.batches.chosen(slice(0, count))
        end = int(taken.positions[-1] + taken.sizes[-1]) if count else 0
        self._start += end
        return data[:end], taken

    def _read_on(self) -> None:
        """Move the bytes not yet taken to the front of the buffer and read more behind them."""
        kept = self._end - self._start
        self._buffer.data[:kept] = self._buffer.data[self._start : self._end]
        if kept == len(self._buffer.data):
            self._buffer.grow(kept)
        most = min(len(self._buffer.data), kept + self._left_bytes)
        self._start, self._end = 0, self._buffer.fill(self._fd, self._position, kept, most)
        count = self._end - kept
        self._left_bytes = self._left_bytes - count if count else 0
        self._position += count
