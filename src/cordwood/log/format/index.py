"""The two sparse indexes of a segment, in Kafka's format. Checked before use; rebuildable.

``.index``: 8 bytes per entry, big-endian: int32 offset relative to the segment's base, int32
position. An entry says "the batch that begins at this position ends with this offset". It is added
for the first batch after more than ``index.interval.bytes`` since the last entry.

``.timeindex``: 12 bytes per entry: int64 timestamp, int32 relative offset. It is added together
with an offset entry if the largest timestamp so far has grown, and says "this is the largest
timestamp up to here, and the batch that has it ends with this offset". A last entry is forced when
the segment is sealed, so the last entry holds the segment's newest timestamp.

Two classes have the same queries. ``MemoryIndex`` grows with the active segment, in compact arrays,
with one writer and any number of readers. ``FileIndex`` looks up a sealed segment's files with one
small read, so that memory does not grow with the log. Its caller checks each result against the
batch at that position (``batch.last_offset == entry.offset``); a wrong index is replaced by a
``MemoryIndex`` built from the log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import lt
from typing import Final, NamedTuple

from cordwood.batch.header import LOG_OVERHEAD, BatchHeader
from cordwood.log.format.scan import Read
from cordwood.model import NO_TIMESTAMP

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_BLOCK_ENTRIES: Final = 512  # one read of a file index


class OffsetEntry(NamedTuple):
    """An entry of ``.index``: the batch at ``position`` ends with ``offset``."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """The largest timestamp so far, and the last offset of the batch that has it."""

    timestamp_ms: int
    offset: int


class MemoryIndex:
    """The indexes of the active segment, or of a sealed one whose files were wrong."""

    __slots__ = ("_bytes_since", "_interval_bytes", "_offsets", "_positions", "_time_offsets",
                 "_times", "base_offset", "newest")  # fmt: skip

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.newest = TimeEntry(NO_TIMESTAMP, base_offset)  # largest timestamp, indexed or not
        self._interval_bytes = interval_bytes
        self._bytes_since = 0
        self._offsets = array("i")  # relative; appended after its position, so readers bisect it
        self._positions = array("i")
        self._times = array("q")
        self._time_offsets = array("i")

    def add(self, header: BatchHeader, position: int) -> None:
        """Account for one batch, exactly as Kafka does."""
        if header.max_timestamp_ms > self.newest.timestamp_ms:
            self.newest = TimeEntry(header.max_timestamp_ms, header.last_offset)
        if self._bytes_since > self._interval_bytes:
            self._add_time()
            self._positions.append(position)
            self._offsets.append(header.last_offset - self.base_offset)
            self._bytes_since = 0
        self._bytes_since += LOG_OVERHEAD + header.batch_length

    def seal(self) -> None:
        """Force the last time entry."""
        self._add_time()

    def _add_time(self) -> None:
        last_ms = self._times[-1] if self._times else NO_TIMESTAMP
        if self.newest.timestamp_ms > last_ms:
            self._time_offsets.append(self.newest.offset - self.base_offset)
            self._times.append(self.newest.timestamp_ms)

    def floor(self, offset: int) -> OffsetEntry | None:
        """The last entry whose offset is at or below ``offset``."""
        i = bisect_right(self._offsets, offset - self.base_offset) - 1
        if i < 0:
            return None
        return OffsetEntry(self.base_offset + self._offsets[i], self._positions[i])

    def first_reaching(self, timestamp_ms: int) -> TimeEntry | None:
        """The first time entry at or after ``timestamp_ms``."""
        i = bisect_left(self._times, timestamp_ms)
        if i >= len(self._times):
            return None
        return TimeEntry(self._times[i], self.base_offset + self._time_offsets[i])

    def entries(self) -> list[OffsetEntry]:
        """Every offset entry."""
        pairs = zip(self._offsets[:], self._positions[:], strict=False)
        return [OffsetEntry(self.base_offset + offset, position) for offset, position in pairs]

    def sizes_bytes(self) -> tuple[int, int]:
        """The file sizes of ``.index`` and ``.timeindex``."""
        return OFFSET_ENTRY_BYTES * len(self._offsets), TIME_ENTRY_BYTES * len(self._times)

    def encode_offsets(self) -> bytes:
        """The bytes of ``.index``."""
        pairs = array("i", bytes(OFFSET_ENTRY_BYTES * len(self._offsets)))
        pairs[0::2], pairs[1::2] = self._offsets, self._positions
        return _big_endian(pairs)

    def encode_times(self) -> bytes:
        """The bytes of ``.timeindex``."""
        entries = zip(self._times, self._time_offsets, strict=True)
        return b"".join(_TIME_ENTRY.pack(*entry) for entry in entries)


class FileIndex:
    """The index files of a sealed segment, read on demand.

    ``check`` reads them once, before the first query, and keeps every 512th entry: some kilobytes
    per gigabyte of log. Each query then costs one small read. ``read_offsets`` and ``read_times``
    read the two files and may raise the errors of opening a file.
    """

    __slots__ = ("_base_offset", "_offset_bytes", "_offset_marks", "_read_offsets", "_read_times",
                 "_time_bytes", "_time_marks", "is_checked")  # fmt: skip

    def __init__(
        self,
        base_offset: int,
        read_offsets: Read,
        offset_bytes: int,
        read_times: Read,
        time_bytes: int,
    ) -> None:
        assert offset_bytes % OFFSET_ENTRY_BYTES == 0
        assert time_bytes % TIME_ENTRY_BYTES == 0
        self._base_offset = base_offset
        self._read_offsets = read_offsets
        self._read_times = read_times
        self._offset_bytes = offset_bytes
        self._time_bytes = time_bytes
        self._offset_marks = array("i")
        self._time_marks = array("q")
        self.is_checked = False

    def sizes_bytes(self) -> tuple[int, int]:
        """The file sizes of ``.index`` and ``.timeindex``."""
        return self._offset_bytes, self._time_bytes

    def check(self, log_bytes: int, end_offset: int) -> None:
        """Read both files once; raises ``WrongIndex`` if they do not fit this segment."""
        data = self._read_offsets(0, self._offset_bytes + 1)
        time_data = self._read_times(0, self._time_bytes + 1)
        if (len(data), len(time_data)) != self.sizes_bytes():
            raise WrongIndex("an index has another size than it had when it was written")
        offsets, positions = _offset_columns(data)
        times, time_offsets = _time_columns(time_data)
        _check_growing(offsets, end_offset - self._base_offset)
        _check_growing(positions, log_bytes)
        _check_growing(times, 2**63)
        _check_growing(time_offsets, end_offset - self._base_offset)
        self._offset_marks = offsets[::_BLOCK_ENTRIES]
        self._time_marks = times[::_BLOCK_ENTRIES]
        self.is_checked = True

    def floor(self, offset: int) -> OffsetEntry | None:
        """The last entry whose offset is at or below ``offset``."""
        assert self.is_checked
        relative = offset - self._base_offset
        block = bisect_right(self._offset_marks, relative) - 1
        if block < 0:
            return None
        offsets, positions = _offset_columns(
            _block(self._read_offsets, block, OFFSET_ENTRY_BYTES, self._offset_bytes)
        )
        i = bisect_right(offsets, relative) - 1
        if i < 0:
            raise WrongIndex("the index is not what it was when it was checked")
        return OffsetEntry(self._base_offset + offsets[i], positions[i])

    def entries(self) -> list[OffsetEntry]:
        """Every offset entry in the file, unchecked."""
        data = self._read_offsets(0, self._offset_bytes)
        usable = data[: len(data) - len(data) % OFFSET_ENTRY_BYTES]
        return list(parse_offsets(usable, self._base_offset))

    def first_reaching(self, timestamp_ms: int) -> TimeEntry | None:
        """The first time entry at or after ``timestamp_ms``."""
        assert self.is_checked
        block = max(bisect_left(self._time_marks, timestamp_ms) - 1, 0)
        for nth in (block, block + 1):  # it may be the first entry of the next block
            if nth < len(self._time_marks):
                data = _block(self._read_times, nth, TIME_ENTRY_BYTES, self._time_bytes)
                times, offsets = _time_columns(data)
                i = bisect_left(times, timestamp_ms)
                if i < len(times):
                    return TimeEntry(times[i], self._base_offset + offsets[i])
        return None


def parse_offsets(data: bytes, base_offset: int) -> Iterator[OffsetEntry]:
    """The entries of a whole ``.index``."""
    for relative, position in _OFFSET_ENTRY.iter_unpack(data):
        yield OffsetEntry(base_offset + relative, position)


def parse_times(data: bytes, base_offset: int) -> Iterator[TimeEntry]:
    """The entries of a whole ``.timeindex``."""
    for timestamp_ms, relative in _TIME_ENTRY.iter_unpack(data):
        yield TimeEntry(timestamp_ms, base_offset + relative)


class WrongIndex(Exception):  # never leaves cordwood.log: the index is rebuilt
    """An index contradicts itself or the log beside it."""


def _check_growing(numbers: array[int], end: int) -> None:
    if not numbers:
        return
    if numbers[0] < 0 or numbers[-1] >= end or not all(map(lt, numbers, numbers[1:])):
        raise WrongIndex("the entries of an index do not grow, or point behind the log")


def _block(read: Read, nth: int, entry_bytes: int, file_bytes: int) -> bytes:
    """The nth block of entries."""
    start = nth * _BLOCK_ENTRIES * entry_bytes
    length = min(_BLOCK_ENTRIES * entry_bytes, file_bytes - start)
    data = read(start, length)
    if len(data) != length:
        raise WrongIndex("an index is shorter than it was when it was checked")
    return data


def _offset_columns(data: bytes) -> tuple[array[int], array[int]]:
    """Relative offsets and positions."""
    pairs = array("i", data)
    if sys.byteorder == "little":
        pairs.byteswap()
    return pairs[0::2], pairs[1::2]


def _time_columns(data: bytes) -> tuple[array[int], array[int]]:
    """Timestamps and relative offsets."""
    entries = list(_TIME_ENTRY.iter_unpack(data))
    times = array("q", [timestamp_ms for timestamp_ms, _ in entries])
    return times, array("i", [relative for _, relative in entries])


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
