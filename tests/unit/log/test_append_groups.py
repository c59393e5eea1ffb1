"""Appends grouped into one write give the same result as single appends, with fewer writes."""

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
    """Counts the writes to log files."""

    writes = 0

    def pwrite(self, fd, view, position):
        """Count the write, then perform it."""
        self.writes += 1
        return super().pwrite(fd, view, position)


class BrieflyFullDisk(FullDisk):
    """Has space again after its first refusal, as when someone deletes a file."""

    def pwrite(self, fd, view, position):
        """Refuse once if the disk is full."""
        try:
            return super().pwrite(fd, view, position)
        except OSError:
            self.left_bytes = 10**6
            raise


def alone(*values, **fields):
    """One append, in the form in which the writer passes it to the partition."""
    data = a_batch(*values, **fields)
    return UnqueuedBatches(data, headers_of(data), strict=True)


def numbered(value, producer_id, sequence):
    """One record of an idempotent producer."""
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return alone(value, **fields)


def opened(root, files=None, **config):
    """A partition with one record, because an empty segment's first append is never grouped."""
    partition = open_partition(root, TopicConfig(**config), files=files)
    partition.append_all([alone(b"first")])
    return partition


def shown(partition):
    """Commit, then return the values that readers see."""
    partition.sync()
    partition.publish()
    return values_of(partition)


def test_small_appends_share_one_write(tmp_path):
    """64 small appends are written with one system call and get consecutive offsets."""
    files = CountedFiles()
    partition = opened(tmp_path, files)
    files.writes = 0
    outcomes = partition.append_all([numbered(b"%d" % n, n, 0) for n in range(64)])
    assert files.writes == 1
    assert [outcome.base_offset for outcome in outcomes] == list(range(1, 65))
    assert shown(partition) == {0: b"first"} | {n + 1: b"%d" % n for n in range(64)}


def test_large_appends_are_not_copied_together(tmp_path):
    """Appends that exceed the group's byte limit are written separately, without a copy."""
    files = CountedFiles()
    partition = opened(tmp_path, files)
    files.writes = 0
    partition.append_all([alone(bytes(GROUP_BYTES_MAX // 2)) for _ in range(4)])
    assert files.writes == 4


def test_one_append_that_is_refused_does_not_harm_its_neighbours(tmp_path):
    """If one append of a group has a sequence out of order, the others are stored without a gap."""
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
    """A short write removes the whole group, and later appends of the same commit fail too."""
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


def test_space_that_returns_within_a_commit_does_not_let_a_later_append_overtake(tmp_path):
    """After a group failed for lack of space, a later append of the commit fails even if it fits.

    Otherwise a producer's second batch would be stored without its first.
    """
    disk = BrieflyFullDisk(10**6)
    partition = opened(tmp_path, disk)
    disk.left_bytes = 0
    group = [alone(b"g" * 50), alone(b"h" * 50)]
    outcomes = partition.append_all([*group, alone(bytes(GROUP_BYTES_MAX)), alone(b"last")])
    assert [type(outcome) for outcome in outcomes] == [DiskFull] * 4
    assert shown(partition) == {0: b"first"}


def test_an_append_that_needs_a_roll_on_a_full_disk_is_not_overtaken(tmp_path):
    """If an append cannot roll to a new segment, the next one fails too, even if it would fit."""
    disk = FullDisk(10**6)
    partition = opened(tmp_path, disk, segment_entries=3)
    disk.left_bytes = 120
    outcomes = partition.append_all([alone(b"a", b"b", b"c"), alone(b"d")])
    assert [type(outcome) for outcome in outcomes] == [DiskFull] * 2


APPENDS = st.lists(
    st.tuples(
        st.integers(-1, 3),  # producer id
        st.integers(0, 4),  # sequence, with duplicates and gaps
        st.integers(1, 3),  # record count
        st.sampled_from([10, 300, 2000]),  # bytes of each record
    ),
    max_size=12,
)


@given(appends=APPENDS, segment_entries=st.sampled_from([1, 3, 1000]))
def test_together_or_one_by_one_is_the_same(tmp_path_factory, appends, segment_entries):
    """Grouped appends give the same outcomes and the same file bytes as single appends."""

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
