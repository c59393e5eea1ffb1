"""Page cache checks before a read, and reads that resume where the last one stopped."""

from __future__ import annotations

import errno
import os

import pytest

from cordwood.decide.roll import RollReason
from cordwood.errors import CorruptionError
from cordwood.log.files import residency
from cordwood.log.files.residency import STRIDE_BYTES, is_resident
from support.logs import append, open_partition, read_all

SIZE_BYTES = 8 * STRIDE_BYTES
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def fd(disk_path):
    path = disk_path / "file"
    path.write_bytes(bytes(SIZE_BYTES))
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def evicted(monkeypatch):
    """The set of pages that the simulated page cache lacks.

    A real page cache cannot be used: checking a missing page starts read-ahead, which loads it.
    """
    pages = set()

    def preadv(fd, buffers, position, flags):
        assert flags == os.RWF_NOWAIT, "without it the call waits for the disk"
        if position // PAGE_BYTES in pages:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return os.pread(fd, len(buffers[0]), position)

    monkeypatch.setattr(residency.os, "preadv", preadv)
    return pages


def test_what_was_just_read_is_resident(fd):
    """The real kernel confirms that bytes just read are in the page cache."""
    os.pread(fd, SIZE_BYTES, 0)
    assert is_resident(fd, 0, SIZE_BYTES)


@pytest.mark.parametrize("stride", range(8))
def test_a_missing_stride_is_noticed(fd, evicted, stride):
    """One byte per stride is checked, because the kernel evicts pages in runs."""
    assert is_resident(fd, 0, SIZE_BYTES)
    evicted.update(stride * STRIDE_BYTES // PAGE_BYTES + page for page in range(32))
    assert not is_resident(fd, 0, SIZE_BYTES)


def test_a_missing_end_is_noticed(fd, evicted):
    """The last byte of the range is always checked."""
    evicted.add(1)
    assert is_resident(fd, 0, PAGE_BYTES)
    assert not is_resident(fd, 0, PAGE_BYTES + 1)


def test_where_the_kernel_cannot_tell_nothing_is_resident(fd):
    """Without kernel support the result is False, so that the event loop never waits for disk."""
    os.pread(fd, SIZE_BYTES, 0)
    assert not is_resident(fd, 0, SIZE_BYTES, no_wait=None)


@pytest.fixture
def sealed(disk_path):
    """A partition whose first segment is sealed, with its index in a file."""
    partition = open_partition(disk_path)
    for _ in range(200):
        append(partition, b"v" * 100)
    partition.roll(RollReason.DEMAND)
    yield partition
    partition.close()


def test_a_reader_goes_on_where_it_stopped_without_the_index(sealed):
    """The position where a read ended is stored, and the next read starts there."""
    first = sealed.read(0, 1000)
    (sealed.directory / f"{0:020d}.index").unlink()
    sealed._file_cache.close()
    second = sealed.read(first.next_offset, 1000)
    assert second.first_offset == first.next_offset
    assert not sealed._read_state.segments[0].is_index_wrong, "nobody asked the index"


def test_a_misread_offset_does_not_send_a_reader_in_circles(sealed):
    """A damaged base offset, which no checksum covers, raises an error instead of looping."""
    path = sealed.directory / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[7] ^= 1  # the first batch claims offset 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError, match="position"):
        read_all(sealed, 1)


def test_only_a_known_place_in_a_sealed_segment_is_resident(sealed):
    """Without a stored position the index file must be read, which may wait for the disk."""
    assert not sealed.is_resident(100, 1000)
    following = sealed.read(100, 1000).next_offset
    assert sealed.is_resident(following, 1000)


def test_many_readers_do_not_make_a_segment_grow(sealed):
    """A segment stores at most 64 resume positions; other reads use the index."""
    for offset in range(200):
        assert sealed.read(offset, 1).first_offset == offset
    assert len(sealed._read_state.segments[0]._resumed) <= 64


def test_the_end_of_the_log_is_resident_as_it_is_written(disk_path):
    """The active segment's index is in memory, so its records are resident."""
    partition = open_partition(disk_path)
    append(partition, b"v")
    assert partition.is_resident(0, 1000)
    assert partition.is_resident(1, 1000), "nothing to read waits for nothing"
    partition.close()
