"""Open partitions use a bounded number of descriptors; the least recently written closes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.batch.header import check_batches
from cordwood.batch.records import encode_batch
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.errors import PartitionOffline
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from cordwood.log.read.published_offsets import MARKS_NAME, read_published_offsets
from cordwood.log.write.partition import Partition
from cordwood.model import Record, TopicPartition
from support.clock import ManualClock
from support.crash import CrashFiles
from support.stores import append, values_in


def open_files(root):
    """The number of open descriptors below a directory, including those of memory mappings."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith(str(root)) for link in links)


def opened(root, number, descriptors, files=None):
    return Partition.open(
        root / f"t-{number}",
        TopicPartition("t", number),
        TopicConfig(),
        files=files or Files(),
        clock=ManualClock(),
        descriptors=descriptors,
    )


@pytest.fixture
def partitions(tmp_path):
    descriptors = FileCache(idle_max=4, tails_max=3)
    found = [opened(tmp_path, number, descriptors) for number in range(8)]
    yield found
    for partition in found:
        partition.close()


def test_a_partition_nobody_writes_holds_no_descriptor(tmp_path, partitions):
    """A partition opens no descriptors until its first append."""
    assert open_files(tmp_path) == 0


def test_writers_hold_two_descriptors_each_up_to_the_limit(tmp_path, partitions):
    """Of eight partitions written in turn at most three are open, and no record is lost."""
    for turn in range(3):
        for number, partition in enumerate(partitions):
            append(partition, f"{turn}-{number}")
            assert open_files(tmp_path) <= 6
    for number, partition in enumerate(partitions):
        wanted = [f"{turn}-{number}" for turn in range(3)]
        assert list(values_in(partition).values()) == wanted


def test_who_writes_all_the_time_stays_open(tmp_path, partitions):
    """A partition that is written between all others is never closed."""
    busy, *others = partitions
    append(busy, "first")
    descriptor = busy._tail._file.fd
    for partition in others:
        append(partition, "now and then")
        append(busy, "again")
        assert busy._tail._file is not None
    assert busy._tail._file.fd == descriptor


def test_a_file_closed_between_write_and_sync_is_synced_all_the_same(tmp_path):
    """A commit syncs every partition, even if there are more than may be open at a time."""
    files = CrashFiles(tmp_path)
    descriptors = FileCache(tails_max=1)
    found = [opened(tmp_path, number, descriptors, files) for number in range(3)]
    for partition in found:
        data = bytearray(encode_batch([Record(0, 1, None, b"x")]))
        partition.append(data, check_batches(data, 1 << 20))
    before = len(files.effects)
    for partition in found:
        partition.sync()
        partition.publish()
    synced = [e.path.parent.name for e in files.effects[before:] if e.name == "sync_data"]
    assert synced == ["t-0", "t-1", "t-2"]
    for partition in found:
        assert values_in(partition) == {0: "x"}
        partition.close()


def test_marks_of_a_closed_partition_follow_its_log_start(tmp_path, partitions):
    """The published offsets are updated even if the partition's files are closed."""
    first, *others = partitions
    append(first, "a", "b", "c")
    for partition in others:
        append(partition, "x")
    assert first._tail._file is None
    first.advance_start(2)
    assert read_published_offsets(first.directory).log_start_offset == 2
    append(first, "d")
    assert read_published_offsets(first.directory).high_watermark == 4


def test_a_cut_leaves_an_idle_partition_without_descriptors(tmp_path, partitions):
    """A CUT by age leaves no descriptor open, as it may affect thousands of idle partitions."""
    append(partitions[0], "a")
    for partition in partitions[1:]:
        append(partition, "x")
    before = open_files(tmp_path)
    assert partitions[0]._tail._file is None
    partitions[0].roll(RollReason.AGE)
    assert open_files(tmp_path) == before
    append(partitions[0], "b")
    assert values_in(partitions[0]) == {0: "a", 1: "b"}


def test_an_abandoned_partition_gives_all_its_descriptors_back(tmp_path, partitions):
    """A partition of a deleted topic closes all its descriptors and refuses appends."""
    append(partitions[0], "a")
    values_in(partitions[0])
    partitions[0].abandon("its topic was deleted")
    assert open_files(tmp_path) == 0
    with pytest.raises(PartitionOffline):
        append(partitions[0], "b")


def test_closing_what_nothing_changed_since_a_clean_close_writes_nothing(tmp_path):
    """Closing an unchanged partition writes nothing, so a stop with many partitions is fast."""
    descriptors = FileCache()
    partition = opened(tmp_path, 0, descriptors)
    append(partition, "a")
    partition.close()
    files = CrashFiles(tmp_path)
    again = opened(tmp_path, 0, descriptors, files)
    again.close()
    assert files.effects == []
    third = opened(tmp_path, 0, descriptors, files)
    append(third, "b")
    third.close()
    assert {"segment-facts-checkpoint", MARKS_NAME} <= {e.path.name for e in files.effects}
    last = opened(tmp_path, 0, descriptors, files)
    assert last.recovery.is_durable
    assert values_in(last) == {0: "a", 1: "b"}
    last.close()


def test_a_partition_that_was_killed_is_closed_in_full(tmp_path):
    """After a kill, the next close writes all files of a clean close."""
    descriptors = FileCache()
    partition = opened(tmp_path, 0, descriptors)
    append(partition, "a")
    partition.abandon("killed")
    files = CrashFiles(tmp_path)
    again = opened(tmp_path, 0, descriptors, files)
    assert not again.recovery.is_durable
    again.close()
    assert "00000000000000000001.snapshot" in {e.path.name for e in files.effects}
