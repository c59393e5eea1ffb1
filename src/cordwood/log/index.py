"""The two sparse indexes of a segment, in Kafka's bytes. Never trusted blindly, always rebuildable.

``.index``: 8 bytes an entry, big-endian: int32 offset relative to the segment's base, int32
position. An entry says "the batch that begins at this position ends with this offset" and is made
for the first batch after more than ``index.interval.bytes`` since the last entry.

``.timeindex``: 12 bytes an entry: int64 timestamp, int32 relative offset. Made together with an
offset entry if the largest timestamp so far has grown: "this is the largest timestamp up to here,
and the batch that brought it ends with this offset". A last one is forced when the segment is
sealed, so the last entry tells the segment's newest timestamp.

Two classes answer the same questions. ``MemoryIndex`` grows with the active segment, in compact
arrays, one writer and any readers. ``FileIndex`` bisects a sealed segment's files with a few small
reads, so that memory does not grow with the log; what it finds is checked by whoever reads the
batch there (``batch.last_offset == entry.offset``), and a wrong index is replaced by a
``MemoryIndex`` built from the log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import lt
from typing import Final, NamedTuple

from cordwood.batch.header import BatchHeader
from cordwood.log.scan import Read
from cordwood.model import NO_TIMESTAMP

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_BLOCK_ENTRIES: Final = 512  # one read of a file index


class OffsetEntry(NamedTuple):
    """The batch at ``position`` ends with ``offset``."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """The largest timestamp so far, and the last offset of the batch that brought it."""

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
        self._offsets = array("i")  # relative; the last of four to grow, so readers count it
        self._positions = array("i")
        self._times = array("q")
        self._time_offsets = array("i")

    def add(self, header: BatchHeader, position: int) -> None:
        """Note one batch, exactly as Kafka does."""
        if header.max_timestamp_ms > self.newest.timestamp_ms:
            self.newest = TimeEntry(header.max_timestamp_ms, header.last_offset)
        if self._bytes_since > self._interval_bytes:
            self._add_time()
            self._positions.append(position)
            self._offsets.append(header.last_offset - self.base_offset)
            self._bytes_since = 0
        self._bytes_since += header.size_bytes

    def seal(self) -> None:
        """Force the last time entry."""
        self._add_time()

    def _add_time(self) -> None:
        last_ms = self._times[-1] if self._times else NO_TIMESTAMP
        if self.newest.timestamp_ms > last_ms:
            self._time_offsets.append(self.newest.offset - self.base_offset)
            self._times.append(self.newest.timestamp_ms)

    def floor(self, offset: int) -> OffsetEntry | None:
        """The last entry whose offset is not above ``offset``."""
        i = bisect_right(self._offsets, offset - self.base_offset) - 1
        if i < 0:
            return None
        return OffsetEntry(self.base_offset + self._offsets[i], self._positions[i])

    def first_reaching(self, timestamp_ms: int) -> TimeEntry | None:
        """The first time entry not below ``timestamp_ms``."""
        i = bisect_left(self._times, timestamp_ms)
        if i >= len(self._times):
            return None
        return TimeEntry(self._times[i], self.base_offset + self._time_offsets[i])

    def last_time(self) -> TimeEntry | None:
        """The largest timestamp and its batch; None without one."""
        return None if self.newest.timestamp_ms == NO_TIMESTAMP else self.newest

    def sizes_bytes(self) -> tuple[int, int]:
        """How large ``.index`` and ``.timeindex`` are as files."""
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
    """The index files of a sealed segment, read as needed.

    ``read_offsets`` and ``read_times`` read the two files; each is called a few times per question
    and may raise what opening a file raises.
    """

    __slots__ = ("_base_offset", "_offset_entries", "_read_offsets", "_read_times",
                 "_time_entries", "is_checked")  # fmt: skip

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
        self._offset_entries = offset_bytes // OFFSET_ENTRY_BYTES
        self._time_entries = time_bytes // TIME_ENTRY_BYTES
        self.is_checked = False

    def sizes_bytes(self) -> tuple[int, int]:
        """How large ``.index`` and ``.timeindex`` are as files."""
        return OFFSET_ENTRY_BYTES * self._offset_entries, TIME_ENTRY_BYTES * self._time_entries

    def check(self, log_bytes: int, end_offset: int) -> None:
        """Read both files once; raises ``WrongIndex`` if they cannot be this segment's."""
        data = self._read_offsets(0, self.sizes_bytes()[0] + 1)
        times = self._read_times(0, self.sizes_bytes()[1] + 1)
        if (len(data), len(times)) != self.sizes_bytes():
            raise WrongIndex("an index has another size than it had when it was written")
        pairs = array("i", data)
        if sys.byteorder == "little":
            pairs.byteswap()
        _check_growing(pairs[0::2], 0, end_offset - self._base_offset)
        _check_growing(pairs[1::2], 0, log_bytes)
        entries = list(_TIME_ENTRY.iter_unpack(times))
        _check_growing([entry[0] for entry in entries], 0, 2**63)
        _check_growing([entry[1] for entry in entries], 0, end_offset - self._base_offset)
        self.is_checked = True

    def floor(self, offset: int) -> OffsetEntry | None:
        """The last entry whose offset is not above ``offset``."""
        relative = offset - self._base_offset
        fetch = _blocks(self._read_offsets, _OFFSET_ENTRY)
        i = _bisect(fetch, self._offset_entries, lambda entry: entry[0] <= relative) - 1
        if i < 0:
            return None
        entry = fetch(i)
        return OffsetEntry(self._base_offset + entry[0], entry[1])

    def first_reaching(self, timestamp_ms: int) -> TimeEntry | None:
        """The first time entry not below ``timestamp_ms``."""
        fetch = _blocks(self._read_times, _TIME_ENTRY)
        i = _bisect(fetch, self._time_entries, lambda entry: entry[0] < timestamp_ms)
        return self._time_entry(fetch, i)

    def last_time(self) -> TimeEntry | None:
        """The last time entry."""
        return self._time_entry(_blocks(self._read_times, _TIME_ENTRY), self._time_entries - 1)

    def _time_entry(self, fetch: _Fetch, i: int) -> TimeEntry | None:
        if not 0 <= i < self._time_entries:
            return None
        entry = fetch(i)
        return TimeEntry(entry[0], self._base_offset + entry[1])


def parse_offsets(data: bytes, base_offset: int) -> Iterator[OffsetEntry]:
    """The entries of a whole ``.index``."""
    for relative, position in _OFFSET_ENTRY.iter_unpack(data):
        yield OffsetEntry(base_offset + relative, position)


def parse_times(data: bytes, base_offset: int) -> Iterator[TimeEntry]:
    """The entries of a whole ``.timeindex``."""
    for timestamp_ms, relative in _TIME_ENTRY.iter_unpack(data):
        yield TimeEntry(timestamp_ms, base_offset + relative)


_Fetch = Callable[[int], tuple[int, int]]


class WrongIndex(Exception):  # caught within the room, where the index is rebuilt
    """An index contradicts itself or the log beside it."""


def _check_growing(numbers: Sequence[int], low: int, end: int) -> None:
    if not numbers:
        return
    if numbers[0] < low or numbers[-1] >= end or not all(map(lt, numbers, numbers[1:])):
        raise WrongIndex("the entries of an index do not grow, or point behind the log")


def _blocks(read: Read, entry: struct.Struct) -> _Fetch:
    """Entry number → entry, keeping the block last read: a bisection ends within one block."""
    block, block_start = b"", 0

    def fetch(i: int) -> tuple[int, int]:
        nonlocal block, block_start
        start = i * entry.size - block_start
        if not 0 <= start < len(block):
            block_start = i // _BLOCK_ENTRIES * _BLOCK_ENTRIES * entry.size
            block = read(block_start, _BLOCK_ENTRIES * entry.size)
            start = i * entry.size - block_start
        if start + entry.size > len(block):
            raise WrongIndex(f"the index ends before entry {i}")
        first, second = entry.unpack_from(block, start)
        return first, second

    return fetch


def _bisect(fetch: _Fetch, count: int, is_before: Callable[[tuple[int, int]], bool]) -> int:
    """How many entries, from the first, are before what is looked for."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if is_before(fetch(middle)):
            low = middle + 1
        else:
            high = middle
    return low


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
