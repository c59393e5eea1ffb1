"""Offsets that a partition publishes in a file for readers in other processes."""

import pytest

from cordwood.log.files.disk import Files
from cordwood.log.read.published_offsets import (
    MARKS_NAME,
    Published,
    PublishedOffsets,
    read_published_offsets,
)
from support.crash import CrashFiles
from support.logs import a_batch, append_data, open_partition


def at(high_watermark):
    return Published(1, high_watermark, high_watermark - 1, 3, 100 * high_watermark)


@pytest.fixture
def published_offsets(tmp_path):
    opened = PublishedOffsets(tmp_path, Files())
    yield opened
    opened.close()


def test_nothing_published_is_none(tmp_path, published_offsets):
    """A missing file and a new file both read as None."""
    assert read_published_offsets(tmp_path) is None
    assert read_published_offsets(tmp_path / "elsewhere") is None


def test_readers_see_the_last_publish_at_once(tmp_path, published_offsets):
    """Readers see each publish immediately through the page cache, without an fsync."""
    for high in range(2, 7):
        published_offsets.publish(at(high))
        assert read_published_offsets(tmp_path) == at(high)


def test_marks_outlive_their_writer(tmp_path):
    """A reopened file continues its counter, so that the newer slot wins."""
    for high in range(2, 7):
        again = PublishedOffsets(tmp_path, Files())
        again.publish(at(high))
        again.close()
        assert read_published_offsets(tmp_path) == at(high)


@pytest.mark.parametrize("broken", range(112))
def test_a_slot_caught_half_written_leaves_the_one_before(tmp_path, published_offsets, broken):
    """With one damaged byte, readers get the newest intact slot and never a mix."""
    published_offsets.publish(at(5))
    published_offsets.publish(at(9))
    path = tmp_path / MARKS_NAME
    data = bytearray(path.read_bytes())
    data[broken] ^= 0xFF
    path.write_bytes(data)
    assert read_published_offsets(tmp_path) in {at(5), at(9)}
    newer_is_hit = broken < 56  # the second publish wrote the first slot
    assert read_published_offsets(tmp_path) == (at(5) if newer_is_hit else at(9))


def test_an_abandoned_partition_writes_nothing(tmp_path):
    """Abandoning a partition writes nothing, because its directory may be moved or deleted."""
    files = CrashFiles(tmp_path)
    partition = open_partition(tmp_path, files=files)
    append_data(partition, a_batch(b"a"))
    files.effects.clear()
    partition.abandon("its directory was moved away")
    assert files.effects == []
