"""Walk the batches of a ``.log`` file and classify its end. Reports; never repairs.

A walk goes from batch to batch by their lengths and stops at the first bytes that cannot be a
batch. There are three ends:

* **CLEAN**: the last batch ends where the file ends.
* **TORN**: the writer died in the middle of an append. Nothing after this point was acknowledged.
* **CORRUPT**: the bytes were valid once and are not any more, or cordwood never wrote them.

The first two are normal, the third is not, and it is hard to tell from the second. A damaged length
looks torn and a torn sector looks damaged, so an end counts as TORN only if all of this holds:

1. It is the active segment (in a sealed one every bad end is corruption; the caller knows which).
2. The stop lies past ``durable_bytes``, up to which the file is known to have been synced.
3. The remaining bytes begin as the next batch would, as far as they go: its offset, a possible
   length, the right magic. Zeros up to the end count as not written: a filesystem may only have
   extended the file.
4. No whole batch with a valid checksum follows. An unacknowledged append cannot leave a batch
   behind the damage: filesystems write a growing file's blocks before its length.

All data is read through a function ``read(position, length)``, so a file is walked in constant
memory and a test walks a byte string.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from cordwood.batch.header import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    is_crc_valid,
    parse_header,
)

Read = Callable[[int, int], bytes]

CHUNK_BYTES: Final = 1 << 20  # read size when checksums are checked
HEADERS_CHUNK_BYTES: Final = 1 << 16  # read size when only headers are read
OFFSETS_AHEAD_MAX: Final = 2**31  # largest plausible gap between two batches

_MAGIC_POSITION: Final = 16
# Matches wherever a header may begin: offset below 2**48, positive length, magic 2.
_HEADER_LIKE = re.compile(rb"(?=\x00\x00.{6}[\x00-\x7f].{7}\x02)", re.DOTALL)


class End(Enum):
    """How the batches of a file end."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


class Located(NamedTuple):
    """A batch header and the position where the batch begins."""

    position: int
    header: BatchHeader


def read_fd(fd: int) -> Read:
    """A read function over an open file; never moves its position."""
    return lambda position, length: os.pread(fd, length, position)


class BatchWalk:
    """One pass over the batches of ``[position, size_bytes)``; iterate it once, then call ``end``.

    ``base_offset`` is the lowest offset the first batch may have. With ``verify`` every checksum is
    checked; otherwise only headers are read. ``chunk_bytes`` is the size of one read.
    """

    def __init__(
        self,
        read: Read,
        size_bytes: int,
        base_offset: int,
        *,
        position: int = 0,
        verify: bool = True,
        chunk_bytes: int | None = None,
    ) -> None:
        self.valid_bytes = position  # the walk's position; finally where it stopped
        self.next_offset = base_offset
        self.problem = ""
        self._read = read
        self._size_bytes = size_bytes
        self._verify = verify
        self._chunk_bytes = chunk_bytes or (CHUNK_BYTES if verify else HEADERS_CHUNK_BYTES)
        self._chunk = b""
        self._chunk_position = 0

    def __iter__(self) -> Iterator[Located]:
        """Yield the batches in order, up to the end or the first bytes that cannot be a batch."""
        while self.valid_bytes < self._size_bytes:
            position = self.valid_bytes
            header = self._header_at(position)
            if header is None:
                return
            yield Located(position, header)
            self.valid_bytes = position + header.size_bytes
            self.next_offset = header.end_offset

    def batch(self, located: Located) -> bytes:
        """All bytes of the batch that the walk is at."""
        start = self._reach(located.position, located.header.size_bytes)
        return self._chunk[start : start + located.header.size_bytes]

    def end(self, durable_bytes: int = 0) -> End:
        """Classify the end by the rules above; the first ``durable_bytes`` bytes were synced."""
        if not self.problem:
            return End.CLEAN
        if self.valid_bytes < durable_bytes:
            return End.CORRUPT
        return tail_end(self._read, self.valid_bytes, self._size_bytes, self.next_offset)

    def _header_at(self, position: int) -> BatchHeader | None:
        """The header there if a whole batch follows; otherwise None, and ``problem`` is set."""
        left_bytes = self._size_bytes - position
        if left_bytes < HEADER_BYTES:
            self.problem = f"{left_bytes} bytes at position {position} are too short for a batch"
            return None
        start = self._reach(position, HEADER_BYTES)
        if len(self._chunk) - start < HEADER_BYTES:
            self.problem = f"the file ends before position {position + HEADER_BYTES}"
            return None
        header = parse_header(self._chunk, start)
        self.problem = frame_problem(header, position, left_bytes, self.next_offset)
        if not self.problem and self._verify:
            start = self._reach(position, header.size_bytes)
            if len(self._chunk) - start < header.size_bytes or not is_crc_valid(
                self._chunk, start, header
            ):
                self.problem = f"the batch at position {position} does not match its checksum"
        return None if self.problem else header

    def _reach(self, position: int, length: int) -> int:
        """Read the chunk so that it holds this range; returns where the range begins in it."""
        start = position - self._chunk_position
        if start < 0 or start + length > len(self._chunk):
            wanted = min(max(length, self._chunk_bytes), self._size_bytes - position)
            self._chunk = self._read(position, wanted)
            self._chunk_position = position
            start = 0
        return start


def frame_problem(header: BatchHeader, position: int, left_bytes: int, least_offset: int) -> str:
    """Why this header cannot begin a batch here; empty if it can."""
    where = f"at position {position}"
    if header.magic != MAGIC:
        return f"no record batch {where}: format {header.magic}, expected {MAGIC}"
    if header.size_bytes < HEADER_BYTES:
        return f"the batch {where} states an impossible length of {header.batch_length}"
    if header.size_bytes > left_bytes:
        return f"the batch {where} has {header.size_bytes} bytes, but only {left_bytes} are left"
    if header.base_offset < least_offset:
        return f"the batch {where} has offset {header.base_offset}, expected {least_offset} or more"
    if header.last_offset_delta < 0 or header.count < 0:
        return f"the batch {where} has a negative record count"
    return ""


def tail_end(read: Read, position: int, size_bytes: int, next_offset: int) -> End:
    """Whether the bytes from ``position`` to the end of the file are a torn append or damage."""
    written = zeros_start(read, position, size_bytes) - position
    if not is_batch_start(read(position, min(written, HEADER_BYTES)), next_offset):
        return End.CORRUPT
    if find_batch(read, position + 1, size_bytes, next_offset) is not None:
        return End.CORRUPT
    return End.TORN


def zeros_start(read: Read, position: int, size_bytes: int) -> int:
    """Where the trailing zeros begin; ``position`` itself if there is nothing else."""
    start = position
    for at in range(position, size_bytes, CHUNK_BYTES):
        written = read(at, min(CHUNK_BYTES, size_bytes - at)).rstrip(b"\0")
        if written:
            start = at + len(written)
    return start


def is_batch_start(head: bytes, next_offset: int) -> bool:
    """Whether these bytes, possibly truncated, could begin the next batch."""
    offset = int.from_bytes(head[:8], "big")
    if len(head) >= 8 and not next_offset <= offset < next_offset + OFFSETS_AHEAD_MAX:
        return False
    length = int.from_bytes(head[8:LOG_OVERHEAD], "big", signed=True)
    if len(head) >= LOG_OVERHEAD and length < HEADER_BYTES - LOG_OVERHEAD:
        return False
    return len(head) <= _MAGIC_POSITION or head[_MAGIC_POSITION] == MAGIC


def find_batch(
    read: Read, start: int, size_bytes: int, next_offset: int, *, chunk_bytes: int = CHUNK_BYTES
) -> int | None:
    """The position of the first whole, valid batch at or after ``start``; None if there is none."""
    while start + HEADER_BYTES <= size_bytes:
        chunk = read(start, min(chunk_bytes, size_bytes - start))
        for match in _HEADER_LIKE.finditer(chunk, 0, len(chunk)):
            if _is_batch(read, start + match.start(), size_bytes, next_offset):
                return start + match.start()
        if len(chunk) <= HEADER_BYTES:
            return None
        start += len(chunk) - HEADER_BYTES  # a header may straddle two chunks
    return None


def _is_batch(read: Read, position: int, size_bytes: int, next_offset: int) -> bool:
    end_offset = next_offset + OFFSETS_AHEAD_MAX
    return not check_batch(read, position, size_bytes, next_offset, end_offset)[1]


def check_batch(
    read: Read, position: int, size_bytes: int, least_offset: int, end_offset: int
) -> tuple[BatchHeader | None, str]:
    """Check the one batch at ``position``; return its header, if readable, and the problem or "".

    It must end before ``size_bytes``, begin at ``least_offset`` or later, and end below
    ``end_offset``.
    """
    head = read(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None, f"the file ends before position {position + HEADER_BYTES}"
    header = parse_header(head)
    problem = frame_problem(header, position, size_bytes - position, least_offset)
    if problem:
        return header, problem
    if header.last_offset >= end_offset:
        return header, (
            f"the batch at position {position} ends with offset {header.last_offset}, expected at "
            f"most {end_offset - 1}"
        )
    data = read(position, header.size_bytes)
    if len(data) < header.size_bytes or not is_crc_valid(data, 0, header):
        return header, f"the batch at position {position} does not match its checksum"
    return header, ""
