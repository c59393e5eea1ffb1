"""Kafka client libraries can read our segments, and we can read theirs."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.model import Codec
from support.logs import NOW_MS, append, headers_of, open_partition, read_all

CONFIG = TopicConfig(index_interval_bytes=300)
SEGMENT = f"{0:020d}"


def read_with(classes, data: bytes) -> list[tuple[int, int, bytes]]:
    """Offset, timestamp and value of every record, as another implementation reads them."""
    batches = classes(data)
    found = []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        found += [(record.offset, record.timestamp, record.value) for record in batch]
    return found


@pytest.mark.parametrize("classes", [AiokafkaRecords, KafkaPythonRecords])
def test_our_log_is_read_by_others(tmp_path, classes):
    """Other libraries read every record with the offset and timestamp that we stored."""
    log = open_partition(tmp_path, CONFIG)
    for i in range(30):
        codec = [Codec.NONE, Codec.GZIP][i % 2]
        append(log, b"a%d" % i, b"b%d" % i, times_ms=[NOW_MS + i, NOW_MS + i], codec=codec)
    log.roll(RollReason.DEMAND)
    data = (log.directory / f"{SEGMENT}.log").read_bytes()
    expected = [(r.offset, r.timestamp_ms, r.value) for r in read_all(log)]
    assert read_with(classes, data) == expected
    assert len(expected) == 60


def test_the_indexes_say_what_kafkas_dump_tool_checks(tmp_path):
    """Index entries satisfy the checks of Kafka's dump tool.

    An offset entry holds the last offset of the batch at its position. A time entry holds the
    largest timestamp of its batch.
    """
    log = open_partition(tmp_path, CONFIG)
    for i in range(60):
        append(log, b"a%d" % i, b"b%d" % i, times_ms=[NOW_MS + (i * 37) % 50] * 2)
    for i in range(3):  # at most one gets a regular entry: the seal must add the last
        append(log, b"newest", times_ms=[NOW_MS + 1000 + i])
    log.roll(RollReason.DEMAND)
    stem = log.directory / SEGMENT
    data = stem.with_suffix(".log").read_bytes()
    batches, position = {}, 0
    for header in headers_of(data):
        batches[position] = header
        position += header.size_bytes
    entries = list(struct.iter_unpack(">ii", stem.with_suffix(".index").read_bytes()))
    assert len(entries) > 5
    assert [batches[position].last_offset for _, position in entries] == [o for o, _ in entries]
    times = list(struct.iter_unpack(">qi", stem.with_suffix(".timeindex").read_bytes()))
    by_last_offset = {header.last_offset: header for header in batches.values()}
    assert [by_last_offset[o].max_timestamp_ms for _, o in times] == [t for t, _ in times]
    assert [t for t, _ in times] == sorted({t for t, _ in times})
    assert times[-1][0] == max(header.max_timestamp_ms for header in batches.values())


def test_a_directory_of_logs_alone_is_taken_over(tmp_path):
    """A directory that holds only ``.log`` files of another implementation can be opened."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    offset = 100
    for _ in range(3):
        data = b""
        base = offset
        for _ in range(20):  # one batch each
            builder = DefaultRecordBatchBuilder(
                magic=2, compression_type=0, is_transactional=False, producer_id=-1,
                producer_epoch=-1, base_sequence=-1, batch_size=10_000,
            )  # fmt: skip
            for i in range(3):
                at = offset + i
                builder.append(i, timestamp=NOW_MS + at, key=b"k", value=b"v%d" % at, headers=[])
            data += struct.pack(">q", offset) + bytes(builder.build())[8:]
            offset += 3
        (directory / f"{base:020d}.log").write_bytes(data)
    log = open_partition(tmp_path, CONFIG)
    assert (log.log_start_offset, log.high_watermark) == (100, 280)
    assert [(r.offset, r.value) for r in read_all(log)] == [
        (o, b"v%d" % o) for o in range(100, 280)
    ]
    assert log.find_time(NOW_MS + 211).offset == 211
    assert [s.records for s in log.segments()] == [60, 60, 60]
    assert append(log, b"ours").base_offset == 280
