"""Walk batches in memory to their end, as recovery walks a file."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.batch.header import BatchHeader
from cordwood.log.format.scan import BatchWalk, End, Read


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of walking a whole file."""

    valid_bytes: int
    end: End
    headers: tuple[BatchHeader, ...]
    problem: str  # what stopped the walk and where; empty when clean


def read_from(data: bytes | bytearray | memoryview) -> Read:
    """A read function over bytes in memory."""
    return lambda position, length: bytes(data[position : position + length])


def scan(
    data: bytes | bytearray | memoryview, base_offset: int = 0, *, durable_bytes: int = 0
) -> Scan:
    """Walk bytes in memory from their start, checksums included."""
    walk = BatchWalk(read_from(data), len(data), base_offset)
    headers = tuple(located.header for located in walk)
    return Scan(walk.valid_bytes, walk.end(durable_bytes), headers, walk.problem)
