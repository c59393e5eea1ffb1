"""The sparse indexes, in memory and in files."""

from __future__ import annotations

import struct

import pytest

from cordwood.batch.header import BatchHeader, parse_header
from cordwood.log.format.index import (
    FileIndex,
    MemoryIndex,
    OffsetEntry,
    TimeEntry,
    WrongIndex,
    parse_offsets,
    parse_times,
)
from cordwood.log.format.scan import read_from
from support.logs import a_batch

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
    """(count, size, time) each."""
    offset, position = BASE, 0
    for count, size_bytes, time_ms in batches:
        index.add(a_header(offset, count, size_bytes, time_ms), position)
        offset += count
        position += size_bytes


def file_index(index: MemoryIndex) -> FileIndex:
    offsets, times = index.encode_offsets(), index.encode_times()
    return FileIndex(BASE, read_from(offsets), len(offsets), read_from(times), len(times))


def test_an_entry_is_made_after_more_than_the_interval():
    """It names the last offset of the batch and where that batch begins, as Kafka's does."""
    index = MemoryIndex(BASE, 100)
    fill(index, [(1, 100, 5), (2, 100, 6), (3, 100, 7), (1, 101, 8), (4, 70, 9)])
    # 100 bytes are not more than 100; after the second batch 200 are.
    assert list(parse_offsets(index.encode_offsets(), BASE)) == [
        OffsetEntry(BASE + 5, 200),
        OffsetEntry(BASE + 10, 401),
    ]
    assert index.encode_offsets() == struct.pack(">iiii", 5, 200, 10, 401)


def test_time_entries_grow_and_the_last_is_forced():
    """A timestamp that does not pass the largest so far makes no entry."""
    index = MemoryIndex(BASE, 10)
    fill(index, [(1, 100, 50), (1, 100, 40), (1, 100, 45), (1, 100, 60), (1, 100, 70)])
    assert list(parse_times(index.encode_times(), BASE)) == [
        TimeEntry(50, BASE),  # noted with the second batch, brought by the first
        TimeEntry(60, BASE + 3),
        TimeEntry(70, BASE + 4),
    ]
    fill_more = MemoryIndex(BASE, 1000)
    fill(fill_more, [(1, 100, 50), (1, 100, 90)])
    assert fill_more.encode_times() == b""
    fill_more.seal()
    fill_more.seal()
    assert fill_more.encode_times() == struct.pack(">qi", 90, 1)


def test_records_without_a_time_make_no_time_entry():
    """-1 is no time."""
    index = MemoryIndex(BASE, 0)
    fill(index, [(1, 100, -1), (1, 100, -1)])
    index.seal()
    assert index.encode_times() == b""


def test_both_kinds_answer_alike():
    """Every question, over several blocks of a file."""
    memory = MemoryIndex(BASE, 0)
    fill(memory, [(3, 100, (i * 7919) % 5000) for i in range(2000)])
    memory.seal()
    files = file_index(memory)
    files.check(200_000, BASE + 6000)
    assert files.sizes_bytes() == memory.sizes_bytes()
    for offset in [*range(BASE - 2, BASE + 6003, 17), BASE + 5, BASE + 6]:
        assert files.floor(offset) == memory.floor(offset), offset
    for time_ms in range(-1, 5002, 13):
        assert files.first_reaching(time_ms) == memory.first_reaching(time_ms), time_ms
    assert memory.floor(BASE) is None


@pytest.mark.parametrize(
    ("offsets", "times"),
    [
        (struct.pack(">iiii", 5, 200, 5, 300), b""),  # offsets do not grow
        (struct.pack(">iiii", 5, 200, 6, 200), b""),  # positions do not grow
        (struct.pack(">ii", 5, 5000), b""),  # points behind the log
        (struct.pack(">ii", 500, 50), b""),  # an offset of another segment
        (struct.pack(">ii", -1, 50), b""),
        (b"", struct.pack(">qiqi", 5, 1, 5, 2)),  # times do not grow
        (b"", struct.pack(">qi", 5, 500)),
    ],
)
def test_an_index_that_cannot_be_is_found_out(offsets, times):
    """Before its first answer is used."""
    index = FileIndex(BASE, read_from(offsets), len(offsets), read_from(times), len(times))
    with pytest.raises(WrongIndex):
        index.check(1000, BASE + 100)


def test_an_index_file_that_shrank_is_found_out():
    """Its size is not what it was."""
    memory = MemoryIndex(BASE, 0)
    fill(memory, [(1, 100, i) for i in range(10)])
    data = memory.encode_offsets()
    times = memory.encode_times()
    short = FileIndex(BASE, read_from(data[:-8]), len(data), read_from(times), len(times))
    with pytest.raises(WrongIndex):
        short.check(10_000, BASE + 100)


def test_an_index_file_that_shrinks_after_its_check_is_found_out():
    """Somebody cut it while the log was open."""
    memory = MemoryIndex(BASE, 0)
    fill(memory, [(1, 100, i) for i in range(10)])
    data, times = memory.encode_offsets(), memory.encode_times()
    files = [data, times]
    index = FileIndex(
        BASE,
        lambda position, length: files[0][position : position + length],
        len(data),
        lambda position, length: files[1][position : position + length],
        len(times),
    )
    index.check(10_000, BASE + 100)
    files[:] = [data[:-8], times[:-12]]
    with pytest.raises(WrongIndex):
        index.floor(BASE + 100)
    with pytest.raises(WrongIndex):
        index.first_reaching(5)
