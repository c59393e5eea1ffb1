"""The sparse offset and time indexes, in memory and in files."""

from __future__ import annotations

import struct

import pytest

from cordwood.batch.header import BatchHeader, parse_header
from cordwood.log.format.index import (
    EntryFile,
    FileIndex,
    MemoryIndex,
    OffsetEntry,
    WrongIndex,
)
from support.logs import a_batch
from support.scans import read_from

BASE = 1000


def a_header(base_offset: int, count: int, size_bytes: int, time_ms: int) -> BatchHeader:
    header = parse_header(a_batch(b"x"))
    return header._replace(
        base_offset=base_offset,
        last_offset_delta=count - 1,
        batch_length=size_bytes - 12,
        max_timestamp_ms=time_ms,
    )


def fill(index: MemoryIndex, batches: list[tuple[int, int, int]]) -> None:
    """Add batches, each given as (record count, size in bytes, timestamp)."""
    offset, position = BASE, 0
    for count, size_bytes, time_ms in batches:
        index.add(a_header(offset, count, size_bytes, time_ms), position)
        offset += count
        position += size_bytes


def file_index(index: MemoryIndex) -> FileIndex:
    offsets, times = index.encode_offsets(), index.encode_times()
    return a_file_index(offsets, times)


def a_file_index(
    offsets: bytes, times: bytes, *, end_offset: int = BASE + 6000, log_bytes: int = 200_000
) -> FileIndex:
    return FileIndex(BASE, end_offset, log_bytes, file_of(offsets), file_of(times))


def file_of(data: bytes) -> EntryFile:
    return EntryFile(read_from(data), len(data))


def ask_all(index: FileIndex) -> None:
    """Look up once in both files, which checks them."""
    index.floor(BASE)
    index.last_older(0)


def test_an_entry_is_made_after_more_than_the_interval():
    """An entry holds a batch's last offset and start position, as in Kafka."""
    index = MemoryIndex(BASE, 100)
    fill(index, [(1, 100, 5), (2, 100, 6), (3, 100, 7), (1, 101, 8), (4, 70, 9)])
    # 100 bytes do not exceed the interval of 100; 200 bytes, after the second batch, do.
    assert index.entries() == [
        OffsetEntry(BASE + 5, 200),
        OffsetEntry(BASE + 10, 401),
    ]
    assert index.encode_offsets() == struct.pack(">iiii", 5, 200, 10, 401)


def test_time_entries_grow_and_the_last_is_forced():
    """Only a timestamp above the largest so far makes an entry; sealing adds the last one."""
    index = MemoryIndex(BASE, 10)
    fill(index, [(1, 100, 50), (1, 100, 40), (1, 100, 45), (1, 100, 60), (1, 100, 70)])
    assert list(struct.iter_unpack(">qi", index.encode_times())) == [
        (50, 0),  # added at the second batch, for the timestamp of the first
        (60, 3),
        (70, 4),
    ]
    fill_more = MemoryIndex(BASE, 1000)
    fill(fill_more, [(1, 100, 50), (1, 100, 90)])
    assert fill_more.encode_times() == b""
    fill_more.seal()
    fill_more.seal()
    assert fill_more.encode_times() == struct.pack(">qi", 90, 1)


def test_records_without_a_time_make_no_time_entry():
    """Timestamp -1 means no timestamp, so such records make no time entry."""
    index = MemoryIndex(BASE, 0)
    fill(index, [(1, 100, -1), (1, 100, -1)])
    index.seal()
    assert index.encode_times() == b""


def test_both_kinds_answer_alike():
    """The memory index and the file index return the same results, across several blocks."""
    memory = MemoryIndex(BASE, 0)
    fill(memory, [(3, 100, (i * 7919) % 5000) for i in range(2000)])
    memory.seal()
    files = file_index(memory)
    assert files.sizes_bytes() == memory.sizes_bytes()
    for offset in [*range(BASE - 2, BASE + 6003, 17), BASE + 5, BASE + 6]:
        assert files.floor(offset) == memory.floor(offset), offset
    for time_ms in range(-1, 5002, 13):
        assert files.last_older(time_ms) == memory.last_older(time_ms), time_ms
    assert memory.floor(BASE) is None


@pytest.mark.parametrize(
    ("offsets", "times"),
    [
        (struct.pack(">iiii", 5, 200, 5, 300), b""),  # offsets do not increase
        (struct.pack(">iiii", 5, 200, 6, 200), b""),  # positions do not increase
        (struct.pack(">ii", 5, 5000), b""),  # position past the end of the log
        (struct.pack(">ii", 500, 50), b""),  # offset past the end of the segment
        (struct.pack(">ii", -1, 50), b""),
        (b"", struct.pack(">qiqi", 5, 1, 5, 2)),  # times do not increase
        (b"", struct.pack(">qi", 5, 500)),
    ],
)
def test_an_index_that_cannot_be_is_found_out(offsets, times):
    """An index with impossible entries raises ``WrongIndex`` instead of returning a result."""
    index = a_file_index(offsets, times, end_offset=BASE + 100, log_bytes=1000)
    with pytest.raises(WrongIndex):
        ask_all(index)


def test_an_index_file_that_shrank_is_found_out():
    """A file that is shorter than its expected size raises ``WrongIndex``."""
    memory = MemoryIndex(BASE, 0)
    fill(memory, [(1, 100, i) for i in range(10)])
    data = memory.encode_offsets()
    times = memory.encode_times()
    short = FileIndex(
        BASE, BASE + 100, 10_000, EntryFile(read_from(data[:-8]), len(data)), file_of(times)
    )
    with pytest.raises(WrongIndex):
        short.floor(BASE)


def test_an_index_file_that_shrinks_after_its_check_is_found_out():
    """A file that is truncated while the log is open raises ``WrongIndex``."""
    memory = MemoryIndex(BASE, 0)
    fill(memory, [(1, 100, i) for i in range(10)])
    data, times = memory.encode_offsets(), memory.encode_times()
    files = [data, times]
    index = FileIndex(
        BASE,
        BASE + 100,
        10_000,
        EntryFile(lambda at, length: files[0][at : at + length], len(data)),
        EntryFile(lambda at, length: files[1][at : at + length], len(times)),
    )
    ask_all(index)
    files[:] = [data[:-8], times[:-12]]
    with pytest.raises(WrongIndex):
        index.floor(BASE + 100)
    with pytest.raises(WrongIndex):
        index.last_older(5)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_time_lookup_names_the_last_offset_known_to_be_older(kind):
    """After the last time entry the result is that entry's offset, so no record is skipped."""
    memory = MemoryIndex(BASE, 10)
    fill(memory, [(2, 100, 50), (2, 100, 40), (2, 100, 60), (2, 100, 70)])
    index = memory if kind == "memory" else file_index(memory)
    assert index.last_older(50) == BASE  # the batch with timestamp 50 ends at relative offset 1
    assert index.last_older(51) == BASE + 4
    assert index.last_older(99) == BASE + 7
    empty = MemoryIndex(BASE, 10)
    assert (empty if kind == "memory" else file_index(empty)).last_older(0) == BASE - 1
