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
from collections.abc import Callable
from operator import lt
from typing import Final, NamedTuple

from cordwood.batch.header import LOG_OVERHEAD, BatchHeader
from cordwood.log.format.scan import Read
from cordwood.model import NO_TIMESTAMP

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_TIME_ENTRY: Final = struct.Struct(">qi")
_BLOCK_ENTRIES: Final = 512  # one read of a file index
_Columns = tuple["array[int]", "array[int]"]
_Parse = Callable[[bytes], _Columns]


class OffsetEntry(NamedTuple):
    """An entry of ``.index``: the batch at ``position`` ends with ``offset``."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """The largest timestamp so far, and the last offset of the batch that has it."""

    timestamp_ms: int
    offset: int


class EntryFile(NamedTuple):
    """An index file: how to read it, and the size it had when it was written."""

    read: Read  # may raise the errors of opening a file
    size_bytes: int


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

    def last_older(self, timestamp_ms: int) -> int:
        """An offset up to which every batch is older than ``timestamp_ms``; as late as is known."""
        i = bisect_left(self._times, timestamp_ms)
        if i < len(self._times):
            return self.base_offset + self._time_offsets[i] - 1
        return self.base_offset + (self._time_offsets[i - 1] if i else -1)

    def columns(self) -> _Columns:
        """Every relative offset and position."""
        return self._offsets, self._positions

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

    The first query of each file reads and checks all of it, and keeps every 512th entry: some
    kilobytes per gigabyte of log. Each later query costs one small read. ``log_bytes`` and
    ``end_offset`` are the segment's; queries raise ``WrongIndex`` if an entry lies behind them.
    """

    __slots__ = ("_base_offset", "_offsets", "_times")

    def __init__(
        self,
        base_offset: int,
        end_offset: int,
        log_bytes: int,
        offsets: EntryFile,
        times: EntryFile,
    ) -> None:
        offsets_end = end_offset - base_offset
        self._base_offset = base_offset
        self._offsets = _Entries(
            offsets, OFFSET_ENTRY_BYTES, _offset_columns, (offsets_end, log_bytes)
        )
        self._times = _Entries(times, TIME_ENTRY_BYTES, _time_columns, (2**63, offsets_end))

    def sizes_bytes(self) -> tuple[int, int]:
        """The file sizes of ``.index`` and ``.timeindex``."""
        return self._offsets.size_bytes, self._times.size_bytes

    def floor(self, offset: int) -> OffsetEntry | None:
        """The last entry whose offset is at or below ``offset``."""
        relative = offset - self._base_offset
        block = bisect_right(self._offsets.block_starts(), relative) - 1
        if block < 0:
            return None
        offsets, positions = self._offsets.block(block)
        i = bisect_right(offsets, relative) - 1
        if i < 0:
            raise WrongIndex("the index has changed since it was checked")
        return OffsetEntry(self._base_offset + offsets[i], positions[i])

    def last_older(self, timestamp_ms: int) -> int:
        """An offset up to which every batch is older than ``timestamp_ms``; as late as is known."""
        starts = self._times.block_starts()
        block = max(bisect_left(starts, timestamp_ms) - 1, 0)
        last = -1
        for nth in range(block, min(block + 2, len(starts))):  # it may be the next block's first
            times, offsets = self._times.block(nth)
            i = bisect_left(times, timestamp_ms)
            if i < len(times):
                return self._base_offset + offsets[i] - 1
            last = offsets[-1]
        return self._base_offset + last

    def columns(self) -> _Columns:
        """Every relative offset and position, checked."""
        return self._offsets.checked()

    def entries(self) -> list[OffsetEntry]:
        """Every offset entry in the file, unchecked."""
        pairs = zip(*self._offsets.unchecked(), strict=True)
        return [OffsetEntry(self._base_offset + offset, position) for offset, position in pairs]


class _Entries:
    """One index file: two columns that grow, checked whole at first use, then read in blocks."""

    __slots__ = ("_block_starts", "_ends", "_entry_bytes", "_parse", "_read", "size_bytes")

    def __init__(
        self, file: EntryFile, entry_bytes: int, parse: _Parse, ends: tuple[int, int]
    ) -> None:
        self._read, self.size_bytes = file
        self._entry_bytes = entry_bytes
        self._parse = parse
        self._ends = ends
        self._block_starts: array[int] | None = None

    def checked(self) -> _Columns:
        data = self._read(0, self.size_bytes + 1)
        if len(data) != self.size_bytes or len(data) % self._entry_bytes:
            raise WrongIndex("the index has a different size than when it was written")
        columns = self._parse(data)
        for numbers, end in zip(columns, self._ends, strict=True):
            _check_growing(numbers, end)
        return columns

    def unchecked(self) -> _Columns:
        data = self._read(0, self.size_bytes)
        return self._parse(data[: len(data) - len(data) % self._entry_bytes])

    def block_starts(self) -> array[int]:
        if self._block_starts is None:
            self._block_starts = self.checked()[0][::_BLOCK_ENTRIES]
        return self._block_starts

    def block(self, nth: int) -> _Columns:
        start = nth * _BLOCK_ENTRIES * self._entry_bytes
        length = min(_BLOCK_ENTRIES * self._entry_bytes, self.size_bytes - start)
        data = self._read(start, length)
        if len(data) != length:
            raise WrongIndex("the index is shorter than when it was checked")
        return self._parse(data)


class WrongIndex(Exception):  # never leaves cordwood.log: the index is rebuilt
    """An index contradicts itself or the log beside it."""


def _check_growing(numbers: array[int], end: int) -> None:
    if not numbers:
        return
    if numbers[0] < 0 or numbers[-1] >= end or not all(map(lt, numbers, numbers[1:])):
        raise WrongIndex(
            "the entries of the index are not in ascending order, or point past the log's end"
        )


def _offset_columns(data: bytes) -> _Columns:
    """Relative offsets and positions."""
    pairs = array("i", data)
    if sys.byteorder == "little":
        pairs.byteswap()
    return pairs[0::2], pairs[1::2]


def _time_columns(data: bytes) -> _Columns:
    """Timestamps and relative offsets."""
    entries = list(_TIME_ENTRY.iter_unpack(data))
    times = array("q", [timestamp_ms for timestamp_ms, _ in entries])
    return times, array("i", [relative for _, relative in entries])


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
