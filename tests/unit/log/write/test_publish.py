"""Publishing: the high watermark is separate from the log end offset."""

from __future__ import annotations

from cordwood.decide.roll import RollReason
from cordwood.log.read.published_offsets import read_published_offsets
from support.logs import append, open_partition


def test_publishing_an_earlier_end_hides_what_was_written_since(tmp_path):
    """The high watermark moves only to the published end, not to the log end, even after a roll."""
    partition = open_partition(tmp_path)
    append(partition, b"one", publish=False)
    first = partition.log_end()
    append(partition, b"two", publish=False)
    partition.publish(first)
    assert (partition.high_watermark, partition.log_end_offset) == (1, 2)
    second = partition.log_end()
    partition.roll(RollReason.DEMAND)
    append(partition, b"three", publish=False)
    partition.publish(second)
    assert (partition.high_watermark, partition.log_end_offset) == (2, 3)
    assert partition.read(0, 1 << 20).next_offset == 2
    assert partition.read(2, 1 << 20).data == b""
    shown = read_published_offsets(partition.directory)
    assert (shown.high_watermark, shown.segment_base_offset, shown.segment_bytes) == (2, 2, 0)
    partition.publish()
    assert partition.read(2, 1 << 20).next_offset == 3
    partition.close()
