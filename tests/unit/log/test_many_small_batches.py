"""Reads of many small batches: a kernel walks them, and gives what the plain walk gives."""

from __future__ import annotations

import pytest

from cordwood.batch.kernels.loader import load_kernels
from cordwood.errors import CorruptionError
from cordwood.log.read import segment
from support.logs import append, open_partition

BATCHES = 600


@pytest.fixture
def partition(tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "load_kernels_soon", load_kernels)
    opened = open_partition(tmp_path)
    for number in range(BATCHES):
        append(opened, *(b"%d" % number for _ in range(1 + number % 3)), publish=False)
    opened.sync()
    opened.publish()
    yield opened
    opened.close()


def either_way(monkeypatch, read):
    """What a read gives with the kernel and without it; the kernel was asked in the first."""
    asked = []
    by_kernel = segment.Segment._whole_by_kernel

    def noted(self, *arguments):
        asked.append(by_kernel(self, *arguments))
        return asked[-1]

    load_kernels()
    monkeypatch.setattr(segment.Segment, "_whole_by_kernel", noted)
    first = read()
    assert asked
    monkeypatch.setattr(segment, "kernels_ready", lambda: False)
    return first, read()


@pytest.mark.parametrize("end", [None, 700, 701, 702, 10**6])
def test_a_kernel_reads_what_the_plain_walk_reads(partition, monkeypatch, end):
    """From inside a batch, cut short by bytes, and up to an end inside a batch."""
    reads = [(offset, size) for offset in (0, 1, 250, 699) for size in (30_000, 33_333, 10**6)]
    by_kernel, plain = either_way(
        monkeypatch, lambda: [partition.read(*each, end_offset=end) for each in reads]
    )
    assert by_kernel == plain


def test_damage_is_told_alike(partition, monkeypatch):
    """The plain walk finds the words, with the file and the position."""
    path = next(partition.directory.glob("*.log"))
    damaged = bytearray(path.read_bytes())
    damaged[20_000] ^= 1
    path.write_bytes(damaged)

    def read():
        sound = partition.read(0, 10**6)
        with pytest.raises(CorruptionError) as caught:
            partition.read(sound.next_offset, 10**6)
        return bytes(sound.data), str(caught.value)

    by_kernel, plain = either_way(monkeypatch, read)
    assert by_kernel == plain
