"""Small stores with known records, staged jobs, and what a reader finds in them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cordwood.batch.header import check_batches, parse_header
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.config import BrokerConfig
from cordwood.decide.roll import RollReason
from cordwood.log.files.disk import Files
from cordwood.log.format.layout import FileKind, file_name
from cordwood.log.format.manifest import (
    MANIFEST_NAME,
    STAGING_NAME,
    Manifest,
    Replaced,
    StagedFile,
    StagedSegment,
    encode_manifest,
)
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.model import Record, TopicPartition
from cordwood.server.embedded import open_embedded_store
from support.clock import ManualClock

TP = TopicPartition("t", 0)


def open_store(
    path: Path, files: Files | None = None, clock: ManualClock | None = None, **options
) -> Store:
    clock, files = clock or ManualClock(), files or Files()
    return open_embedded_store(path, BrokerConfig(), clock, files, **options)


def append(partition: Partition, *values: str) -> None:
    """Append one batch of these values, keyed by their first letter, and publish it."""
    records = [Record(i, 1000 + i, v[:1].encode(), v.encode()) for i, v in enumerate(values)]
    data = bytearray(encode_batch(records))
    partition.append(data, check_batches(data, 1 << 20))
    partition.sync()
    partition.publish()


def append_sealed(store: Store, *groups: str, tp: TopicPartition = TP) -> None:
    """Append each group of letters as one sealed segment, with one batch per letter."""
    partition = store.partition(tp)
    for group in groups:
        for letter in group:
            append(partition, letter)
        store.segments.roll(partition, RollReason.DEMAND)


def records_in(partition: Partition) -> list[Record]:
    """Return every record that a reader finds from the log start offset."""
    found: list[Record] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        part = partition.read(offset, 1 << 20)
        position = 0
        for header in headers_of(part.data):
            found += [r for r in decode_batch(part.data, position) if r.offset >= offset]
            position += header.size_bytes
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def headers_of(data: bytes):
    """Yield the headers of stored batches; compaction may have left offset gaps."""
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        yield header
        position += header.size_bytes


def values_in(partition: Partition) -> dict[int, str]:
    """Return the value at each offset that a reader finds."""
    return {record.offset: record.value.decode() for record in records_in(partition)}


def a_batch(offsets: dict[int, str], last_offset: int | None = None) -> bytes:
    """Return one batch with gaps: these values at these offsets, up to ``last_offset``."""
    base = min(offsets)
    records = [Record(o, 1000 + o, v[:1].encode(), v.encode()) for o, v in offsets.items()]
    last = max(offsets) if last_offset is None else last_offset
    return encode_batch(records, base_offset=base, last_offset_delta=last - base)


def stage(
    store: Store,
    job: str,
    replaces: list[int],
    segments: dict[int, list[bytes]],
    tp: TopicPartition = TP,
    **changes,
) -> Path:
    """Write the result files and the manifest of a job, as a pipeline does."""
    staging = store.data / STAGING_NAME / job
    staging.mkdir(parents=True)
    live = {info.base_offset: info for info in store.partition(tp).segments()}
    staged = []
    bases = sorted(segments)
    last = live[replaces[-1]].end_offset
    for base, end in zip(bases, [*bases[1:], last], strict=True):
        data = b"".join(segments[base])
        name = file_name(base, FileKind.LOG)
        (staging / name).write_bytes(data)
        log = StagedFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        count = sum(header.count for header in headers_of(data))
        staged.append(StagedSegment(base_offset=base, end_offset=end, records=count, files=(log,)))
    manifest = Manifest(
        job=job,
        topic=tp.topic,
        topic_id=store.topic(tp.topic).id,
        partition=tp.partition,
        replaces=tuple(
            Replaced(
                base_offset=base,
                end_offset=live[base].end_offset,
                size_bytes=live[base].size_bytes,
            )
            for base in replaces
        ),
        segments=tuple(staged),
        verified={"newest_per_key": True},
    )
    text = json.loads(encode_manifest(manifest)) | changes
    (staging / MANIFEST_NAME).write_text(json.dumps(text))
    return staging
