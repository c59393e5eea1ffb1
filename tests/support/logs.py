"""Short functions to open small partitions, append to them and read them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from cordwood.batch.header import BatchHeader, parse_header
from cordwood.batch.records import decode_batch, empty_batch, encode_batch
from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError
from cordwood.log.files.disk import Files
from cordwood.log.write.partition import Appended, Partition
from cordwood.model import Record, TopicPartition
from support.clock import ManualClock
from support.crash import QuickFiles

TP = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000
_opened: list[Partition] = []


def open_partition(
    root: Path,
    config: TopicConfig | None = None,
    *,
    files: Files | None = None,
    clock: ManualClock | None = None,
    **more: Any,
) -> Partition:
    """Open the partition ``t-0`` under ``root``; it is closed after the test if left open."""
    partition = Partition.open(
        root / str(TP),
        TP,
        config or TopicConfig(),
        files=files or QuickFiles(),
        clock=clock or ManualClock(NOW_MS),
        **more,
    )
    _opened.append(partition)
    return partition


def leave_none_open() -> None:
    """Close partitions that a test left open, so that a run does not exhaust descriptors."""
    while _opened:
        with suppress(OSError, CordwoodError):
            _opened.pop().abandon("its test has ended")


def a_batch(*values: bytes, times_ms: list[int] | None = None, **fields: Any) -> bytearray:
    """Return a batch of these values, as a producer sends it; keys equal values."""
    times = times_ms or [NOW_MS] * len(values)
    records = [
        Record(i, time_ms, value, value)
        for i, (value, time_ms) in enumerate(zip(values, times, strict=True))
    ]
    return bytearray(encode_batch(records, **fields))


def an_empty_batch() -> bytearray:
    """Return a batch whose records compaction has removed."""
    return bytearray(empty_batch(1, 0))


def append(
    partition: Partition,
    *values: bytes,
    publish: bool = True,
    strict: bool = True,
    **fields: Any,
) -> Appended:
    """Append one batch; sync and publish it unless ``publish`` is false."""
    return append_data(partition, a_batch(*values, **fields), publish=publish, strict=strict)


def append_data(
    partition: Partition, data: bytearray, *, publish: bool = True, strict: bool = True
) -> Appended:
    """Append encoded batches; sync and publish them unless ``publish`` is false."""
    appended = partition.append(data, headers_of(data), strict=strict)
    if publish:
        partition.sync()
        partition.publish()
    return appended


def headers_of(data: bytes | bytearray) -> list[BatchHeader]:
    """Return the headers of concatenated batches, including markers."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(data):
        headers.append(parse_header(data, position))
        position += headers[-1].size_bytes
    return headers


def records_in(data: bytes) -> list[Record]:
    """Return the records of concatenated batches, without markers."""
    records: list[Record] = []
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        if not header.is_control:
            records += decode_batch(data, position)
        position += header.size_bytes
    return records


def read_all(partition: Partition, max_bytes: int = 1 << 20) -> list[Record]:
    """Read every record as a consumer does, continuing at ``next_offset``."""
    records: list[Record] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        found = partition.read(offset, max_bytes)
        assert found.next_offset > offset, "a read must move on"
        records += [r for r in records_in(found.data) if r.offset >= offset]
        offset = found.next_offset
    return records


def values_of(partition: Partition, max_bytes: int = 1 << 20) -> dict[int, bytes | None]:
    """Return the value at each readable offset."""
    return {record.offset: record.value for record in read_all(partition, max_bytes)}
