"""Appends that share a write: nothing but the number of writes tells them from single ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, DiskFull
from cordwood.log.write.tail import GROUP_BYTES_MAX, UnqueuedBatches
from support.crash import FullDisk, QuickFiles
from support.logs import a_batch, headers_of, open_partition, values_of


class CountedFiles(QuickFiles):
    """Counts the writes to logs."""

    writes = 0

    def pwrite(self, fd, view, position):
        """One more."""
        self.writes += 1
        return super().pwrite(fd, view, position)


def alone(*values, **fields):
    """One append, as the writer hands it over."""
    data = a_batch(*values, **fields)
    return UnqueuedBatches(data, headers_of(data), strict=True)


def numbered(value, producer_id, sequence):
    """One record of an idempotent producer."""
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return alone(value, **fields)


def opened(root, files=None, **config):
    """A partition with one record: an empty segment's first append is written alone."""
    partition = open_partition(root, TopicConfig(**config), files=files)
    partition.append_all([alone(b"first")])
    return partition


def shown(partition):
    """What readers see after a commit."""
    partition.sync()
    partition.publish()
    return values_of(partition)


def test_small_appends_share_one_write(tmp_path):
    """Sixty-four clients' records: one call to the operating system, offsets in order."""
    files = CountedFiles()
    partition = opened(tmp_path, files)
    files.writes = 0
    outcomes = partition.append_all([numbered(b"%d" % n, n, 0) for n in range(64)])
    assert files.writes == 1
    assert [outcome.base_offset for outcome in outcomes] == list(range(1, 65))
    assert shown(partition) == {0: b"first"} | {n + 1: b"%d" % n for n in range(64)}


def test_large_appends_are_not_copied_together(tmp_path):
    """Past the bound each is written from where it lies."""
    files = CountedFiles()
    partition = opened(tmp_path, files)
    files.writes = 0
    partition.append_all([alone(bytes(GROUP_BYTES_MAX // 2)) for _ in range(4)])
    assert files.writes == 4


def test_one_append_that_is_refused_does_not_harm_its_neighbours(tmp_path):
    """A sequence out of order in the middle: the others are stored without a gap."""
    partition = opened(tmp_path)
    partition.append_all([numbered(b"a", 7, 0)])
    first, refused, last = partition.append_all(
        [numbered(b"b", 1, 0), numbered(b"x", 7, 5), numbered(b"c", 2, 0)]
    )
    assert isinstance(refused, CordwoodError)
    assert (first.base_offset, last.base_offset) == (2, 3)
    assert shown(partition) == {0: b"first", 1: b"a", 2: b"b", 3: b"c"}


@pytest.mark.parametrize("left", [0, 50, 250])
def test_on_a_full_disk_none_of_a_group_is_stored_and_nothing_overtakes_it(tmp_path, left):
    """A short write is undone whole; what comes later in the commit is not tried."""
    disk = FullDisk(10**6)
    partition = opened(tmp_path, disk)
    disk.left_bytes = left
    group = [alone(b"g" * 50), alone(b"h" * 50)]
    large = alone(bytes(GROUP_BYTES_MAX))
    outcomes = partition.append_all([*group, large, alone(b"")])
    assert [type(outcome) for outcome in outcomes] == [DiskFull] * 4
    disk.left_bytes = 10**6
    assert shown(partition) == {0: b"first"}
    partition.append_all([alone(b"later")])
    assert shown(partition) == {0: b"first", 1: b"later"}


def test_an_append_that_needs_a_roll_and_finds_no_room_is_not_overtaken(tmp_path):
    """The next one would fit the old segment, and waits all the same."""
    disk = FullDisk(10**6)
    partition = opened(tmp_path, disk, segment_entries=3)
    disk.left_bytes = 120
    outcomes = partition.append_all([alone(b"a", b"b", b"c"), alone(b"d")])
    assert [type(outcome) for outcome in outcomes] == [DiskFull] * 2


APPENDS = st.lists(
    st.tuples(
        st.integers(-1, 3),  # producer
        st.integers(0, 4),  # its sequence: duplicates and gaps among them
        st.integers(1, 3),  # records
        st.sampled_from([10, 300, 2000]),  # bytes of each
    ),
    max_size=12,
)


@given(appends=APPENDS, segment_entries=st.sampled_from([1, 3, 1000]))
def test_together_or_one_by_one_is_the_same(tmp_path_factory, appends, segment_entries):
    """Outcomes and files are those of single appends, byte for byte."""

    def build():
        return [
            alone(
                *[b"v" * size] * count,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=sequence if producer >= 0 else -1,
            )
            for producer, sequence, count, size in appends
        ]

    together = opened(tmp_path_factory.mktemp("together"), segment_entries=segment_entries)
    single = opened(tmp_path_factory.mktemp("single"), segment_entries=segment_entries)
    found = together.append_all(build())
    expected = [single.append_all([batches])[0] for batches in build()]
    assert list(map(str, found)) == list(map(str, expected))
    assert shown(together) == shown(single)
    for partition in (together, single):
        partition.close()
    names = sorted(path.name for path in together.directory.iterdir())
    assert names == sorted(path.name for path in single.directory.iterdir())
    for name in names:
        if name.endswith((".log", ".index", ".timeindex", ".snapshot")):
            theirs = (single.directory / name).read_bytes()
            assert (together.directory / name).read_bytes() == theirs, name
