"""Reads of many small batches use a kernel, which gives the same result as the plain walk."""

from __future__ import annotations

import pytest

from cordwood.batch.kernels.loader import load_kernels
from cordwood.errors import CorruptionError
from cordwood.log.read import whole_batches
from support.logs import append, open_partition

BATCHES = 600


@pytest.fixture
def partition(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_batches, "load_kernels_soon", load_kernels)
    opened = open_partition(tmp_path)
    for number in range(BATCHES):
        append(opened, *(b"%d" % number for _ in range(1 + number % 3)), publish=False)
    opened.sync()
    opened.publish()
    yield opened
    opened.close()


def either_way(monkeypatch, read):
    """The result of a read with and without the kernel; asserts that the first read used it."""
    asked = []
    by_kernel = whole_batches._take_by_kernel

    def noted(*arguments):
        asked.append(by_kernel(*arguments))
        return asked[-1]

    load_kernels()
    monkeypatch.setattr(whole_batches, "_take_by_kernel", noted)
    first = read()
    assert asked
    monkeypatch.setattr(whole_batches, "kernels_ready", lambda: False)
    return first, read()


@pytest.mark.parametrize("end", [None, 700, 701, 702, 10**6])
def test_a_kernel_reads_what_the_plain_walk_reads(partition, monkeypatch, end):
    """Both agree for any start offset, byte limit and end offset, also inside a batch."""
    reads = [(offset, size) for offset in (0, 1, 250, 699) for size in (30_000, 33_333, 10**6)]
    by_kernel, plain = either_way(
        monkeypatch, lambda: [partition.read(*each, end_offset=end) for each in reads]
    )
    assert by_kernel == plain


def test_damage_is_reported_alike(partition, monkeypatch):
    """The kernel and the plain walk report damage with the same error message."""
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
