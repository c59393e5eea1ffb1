"""Space reserved for a segment: never part of the file, and freed when it is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.config import MIB, TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.log.files.disk import Files
from support.logs import append, open_partition, values_of

RESERVED = 8 * MIB


def reserved_bytes(path: Path) -> int:
    """The disk space of a file, used or not."""
    return path.stat().st_blocks * 512


@pytest.fixture
def can_reserve(tmp_path):
    """Skip on a file system that cannot reserve space."""
    files = Files()
    file = files.create(tmp_path / "probe")
    files.preallocate(file, RESERVED)
    files.close(file)
    if reserved_bytes(file.path) < RESERVED:
        pytest.skip("this file system cannot reserve space")


@pytest.mark.usefixtures("can_reserve")
def test_reserved_space_is_not_part_of_the_file_and_is_freed_at_the_roll(tmp_path):
    """The length of a log is that of its batches; after the roll it takes no more space."""
    config = TopicConfig(preallocate=True, segment_bytes=RESERVED)
    partition = open_partition(tmp_path, config)
    append(partition, b"x")
    (log,) = partition.directory.glob("*.log")
    assert log.stat().st_size < 100
    assert reserved_bytes(log) >= RESERVED
    partition.roll(RollReason.DEMAND)
    assert log.stat().st_size < 100
    assert reserved_bytes(log) < RESERVED


def test_preallocated_log_opens_again_after_a_crash(tmp_path):
    """A log whose process died without closing it has all its records and takes more."""
    config = TopicConfig(preallocate=True, segment_bytes=RESERVED)
    append(open_partition(tmp_path, config), b"x")
    again = open_partition(tmp_path, config)
    append(again, b"y")
    assert values_of(again) == {0: b"x", 1: b"y"}
