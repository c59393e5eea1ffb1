"""Encodes and decodes records of a batch in plain Python: complete, but slow.

It serves small work (a marker, a dead letter, a lookup inside one batch) and is the reference that
the numba kernels are tested against. It encodes a batch as Kafka's Java client would. Decoding
checks every length, count and delta before use, and raises ``CorruptBatch`` for invalid ones.

"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cordwood.batch.compression import INFLATED_BYTES_MAX, compress, decompress
from cordwood.batch.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    is_crc_valid,
    parse_header,
    parse_headers,
    seal,
)
from cordwood.batch.record_parser import (
    FAULT_TEXTS,
    HEADER_KEY_ERRORS,
    RECORD_BYTES_MIN,
    BadRecord,
    Fault,
    parse_record,
)
from cordwood.errors import CorruptBatch
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, Codec, Record, TimestampType

MARKER_KEY: Final = struct.Struct(">hh")  # version 0 · 0 abort, 1 commit
MARKER_VALUE: Final = struct.Struct(">hi")  # version 0 · coordinator epoch
_INT64_END: Final = 2**63


def _wrapped(number: int) -> int:
    """Wrap to int64 like Java, so that even absurd timestamps survive a round trip."""
    return (number + _INT64_END) % (2 * _INT64_END) - _INT64_END


class Marker(NamedTuple):
    """The end of a transaction, parsed from its control batch."""

    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE,
    base_offset: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp_ms: int | None = None,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
    leader_epoch: int = 0,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encode one batch; offsets may have gaps, and the batch may cover more than its records.

    ``base_offset``, ``last_offset_delta`` and ``max_timestamp_ms`` default to those of the records.
    Compaction passes them to keep the range of a batch (without records: the empty 61-byte batch
    that keeps a producer's last sequence). A delete horizon is stored in place of the base
    timestamp; readers see the same record timestamps.
    """
    if base_offset is None:
        base_offset = records[0].offset if records else 0
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0
    times = [record.timestamp_ms for record in records]
    if max_timestamp_ms is None:
        max_timestamp_ms = max(times, default=NO_TIMESTAMP)
    base_timestamp_ms = times[0] if times else max_timestamp_ms
    if delete_horizon_ms is not None:
        base_timestamp_ms = delete_horizon_ms
    _assert_offsets(records, base_offset, last_offset_delta)

    body = bytearray()
    for record in records:
        _put_record(body, record, base_timestamp_ms, base_offset)
    if not records:
        codec = Codec.NONE  # like Kafka's cleaner: an empty batch is only a header
    packed = compress(codec, body) if codec is not Codec.NONE else body
    attributes = (
        codec.value
        | (APPEND_TIME_BIT if timestamp_type is TimestampType.APPEND else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    return frame_batch(
        packed,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )


def frame_batch(body: Buffer, **fields: int) -> bytes:
    """A batch of encoded records: header with the given fields, length and checksum."""
    length = HEADER_BYTES - LOG_OVERHEAD + len(body)
    header = BatchHeader(batch_length=length, magic=MAGIC, crc=0, **fields)
    data = bytearray(HEADER.pack(*header))
    data += body
    seal(data, 0, len(data))
    return bytes(data)


def empty_batch(end_offset: int, leader_epoch: int) -> bytes:
    """An empty batch that ends at ``end_offset``, so that a log without later records does too."""
    return frame_batch(
        b"",
        base_offset=end_offset - 1,
        leader_epoch=leader_epoch,
        attributes=0,
        last_offset_delta=0,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_PRODUCER,
        base_sequence=NO_PRODUCER,
        count=0,
    )


def decode_batch(
    data: Buffer, position: int = 0, *, size_max: int = INFLATED_BYTES_MAX
) -> list[Record]:
    """The records of the batch at ``position``, also of a marker; raises ``CorruptBatch``."""
    header = parse_header(data, position)
    if header.magic != MAGIC or header.batch_length < HEADER_BYTES - LOG_OVERHEAD:
        raise CorruptBatch(f"no record batch (format v2) at position {position}")
    if not 0 <= header.base_offset <= header.last_offset < _INT64_END:
        raise CorruptBatch(
            f"batch at position {position}: offsets {header.base_offset} … {header.last_offset}"
        )
    end = position + header.size_bytes
    if end > len(data):
        raise CorruptBatch(
            f"batch at position {position}: the header states {header.size_bytes} bytes, but only "
            f"{len(data) - position} are left"
        )
    if not is_crc_valid(data, position, header):
        raise CorruptBatch(f"batch at offset {header.base_offset}: the checksum does not match")
    body: Buffer = memoryview(data)[position + HEADER_BYTES : end]
    if header.codec is not Codec.NONE and header.count:
        body = decompress(header.codec, body, size_max)
    return _decode_body(bytes(body), header)


def decode_committed(data: Buffer, aborted: Iterable[tuple[int, int]] = ()) -> list[Record]:
    """The records of concatenated complete batches, without control batches and aborted records.

    ``aborted`` holds (producer id, first offset), as a ``read_committed`` fetch returns them: from
    there on the producer's transactional records are dropped, up to its abort marker.
    """
    coming = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    void: set[int] = set()
    records: list[Record] = []
    position = 0
    for header in parse_headers(data):
        while coming and coming[-1][1] <= header.last_offset:
            void.add(coming.pop()[0])
        if header.is_control:
            _check_span(header, position)
            if header.producer_id in void and _is_abort(data, position):
                void.remove(header.producer_id)
        elif not (header.is_transactional and header.producer_id in void):
            records += decode_batch(data, position)
        position += header.size_bytes
    return records


def _check_span(header: BatchHeader, position: int) -> None:
    """Check offsets, codec and count of a batch whose records are not decoded."""
    has_offsets = 0 <= header.base_offset <= header.last_offset < _INT64_END
    has_codec = header.attributes & CODEC_BITS <= Codec.ZSTD.value
    if not (has_offsets and has_codec and (header.count or header.size_bytes == HEADER_BYTES)):
        raise CorruptBatch(
            f"batch at position {position}: the header has impossible offsets, codec or count"
        )


def _is_abort(data: Buffer, position: int) -> bool:
    marker = parse_marker(data, position)
    return marker is not None and not marker.is_commit


def encode_marker(
    commit: bool,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytes:
    """The control batch that commits or aborts a transaction."""
    record = Record(
        offset=0,
        timestamp_ms=timestamp_ms,
        key=MARKER_KEY.pack(0, int(commit)),
        value=MARKER_VALUE.pack(0, coordinator_epoch),
    )
    return encode_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def parse_marker(data: Buffer, position: int = 0) -> Marker | None:
    """Parse the control batch at ``position``; None if it does not end a transaction.

    Kafka has other control records (leader changes, snapshots), and compaction leaves empty control
    batches: neither ends a transaction.
    """
    header = parse_header(data, position)
    assert header.is_control, "only control batches hold markers"
    records = decode_batch(data, position)
    if not records:
        return None
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < MARKER_KEY.size:
        raise CorruptBatch(f"control batch at offset {header.base_offset}: its key is too short")
    _, kind = MARKER_KEY.unpack_from(key)
    if kind not in {0, 1}:
        return None
    if len(value) < MARKER_VALUE.size:
        raise CorruptBatch(f"control batch at offset {header.base_offset}: its value is too short")
    _, coordinator_epoch = MARKER_VALUE.unpack_from(value)
    return Marker(
        offset=records[0].offset,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        is_commit=kind == 1,
        coordinator_epoch=coordinator_epoch,
    )


# --- encoding -------------------------------------------------------------------------------


def _assert_offsets(records: Sequence[Record], base_offset: int, last_offset_delta: int) -> None:
    previous = base_offset - 1
    for record in records:
        assert record.offset > previous, "offsets rise within a batch"
        previous = record.offset
    assert previous <= base_offset + last_offset_delta, "the batch covers its records"


def put_varint(out: bytearray, number: int) -> None:
    """Append a zigzag varint: seven bits per byte, lowest first."""
    left = (number << 1) ^ (number >> 63)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        put_varint(out, -1)
    else:
        put_varint(out, len(value))
        out += value


def _put_record(out: bytearray, record: Record, base_timestamp_ms: int, base_offset: int) -> None:
    """Append one record in its batch encoding."""
    body = bytearray(1)  # attributes: none are defined
    put_varint(body, _wrapped(record.timestamp_ms - base_timestamp_ms))
    put_varint(body, record.offset - base_offset)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    put_varint(body, len(record.headers))
    for header in record.headers:
        _put_bytes(body, header.key.encode("utf-8", HEADER_KEY_ERRORS))
        _put_bytes(body, header.value)
    put_varint(out, len(body))
    out += body


# --- decoding -------------------------------------------------------------------------------


def _decode_body(body: bytes, header: BatchHeader) -> list[Record]:
    if not 0 <= header.count <= len(body) // RECORD_BYTES_MIN:
        raise _faulty(header, 0, Fault.COUNT)
    base_offset, base_ms, append_ms = header.base_offset, header.base_timestamp_ms, None
    if header.timestamp_type is TimestampType.APPEND:
        append_ms = header.max_timestamp_ms
    records: list[Record] = []
    position, least_delta, last_delta = 0, 0, header.last_offset_delta
    for number in range(header.count):
        try:
            parsed = parse_record(body, position, len(body), least_delta, last_delta)
        except BadRecord as error:
            raise _faulty(header, number, error.fault) from None
        position, time_delta, delta, key, value, headers = parsed
        time_ms = _wrapped(base_ms + time_delta) if append_ms is None else append_ms
        records.append(Record(base_offset + delta, time_ms, key, value, headers))
        least_delta = delta + 1
    if position != len(body):
        raise _faulty(header, header.count - 1, Fault.LEFT_OVER)
    return records


def _faulty(header: BatchHeader, record: int, fault: Fault) -> CorruptBatch:
    return CorruptBatch(
        f"batch at offset {header.base_offset}: record {record} of {header.count} cannot be read: "
        f"{FAULT_TEXTS[fault]}"
    )
