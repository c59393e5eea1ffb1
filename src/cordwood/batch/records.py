"""Encodes and decodes records of a batch in plain Python: complete, but slow.

It serves small work (a marker, a dead letter, a lookup inside one batch) and is the reference that
the numba kernels are tested against. It encodes a batch as Kafka's Java client would. Decoding
checks every length, count and delta before use, and raises ``CorruptBatch`` for invalid ones.

    record: length varint · attributes i8=0 · timestampDelta varlong · offsetDelta varint
            · keyLength varint (-1 = null) · key · valueLength varint (-1 = null) · value
            · headerCount varint · (keyLength varint · key · valueLength varint · value)*
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
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
    seal,
)
from cordwood.errors import CorruptBatch
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, Codec, Header, Record, TimestampType

RECORD_BYTES_MIN: Final = 7  # an empty record: one byte for each of its seven fields
MARKER_KEY: Final = struct.Struct(">hh")  # version 0 · 0 abort, 1 commit
MARKER_VALUE: Final = struct.Struct(">hi")  # version 0 · coordinator epoch
_INT64_END: Final = 2**63
_HEADER_KEY_ERRORS: Final = "surrogateescape"  # a key that is not UTF-8 survives a rewrite


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
            f"batch at position {position}: {header.size_bytes} bytes announced, "
            f"{len(data) - position} there"
        )
    if not is_crc_valid(data, position, header):
        raise CorruptBatch(f"batch at offset {header.base_offset}: the checksum does not hold")
    body: Buffer = memoryview(data)[position + HEADER_BYTES : end]
    if header.codec is not Codec.NONE and header.count:
        body = decompress(header.codec, body, size_max)
    return _decode_body(bytes(body), header)


def decode_batches(data: Buffer) -> list[Record]:
    """The records of concatenated complete batches, without control batches."""
    return decode_committed(data, ())


def decode_committed(data: Buffer, aborted: Iterable[tuple[int, int]]) -> list[Record]:
    """Like ``decode_batches``, without the records of aborted transactions.

    ``aborted`` holds (producer id, first offset), as a ``read_committed`` fetch returns them: from
    there on the producer's transactional records are dropped, up to its abort marker.
    """
    coming = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    void: set[int] = set()
    records: list[Record] = []
    position = 0
    for header in _walk(data):
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
        raise CorruptBatch(f"batch at position {position}: offsets, codec or count that cannot be")


def _is_abort(data: Buffer, position: int) -> bool:
    marker = parse_marker(data, position)
    return marker is not None and not marker.is_commit


def _walk(data: Buffer) -> Iterator[BatchHeader]:
    """The headers of complete batches from an untrusted source."""
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        if header.size_bytes < HEADER_BYTES:
            raise CorruptBatch(f"no record batch (format v2) at position {position}")
        yield header
        position += header.size_bytes


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
        _put_bytes(body, header.key.encode("utf-8", _HEADER_KEY_ERRORS))
        _put_bytes(body, header.value)
    put_varint(out, len(body))
    out += body


# --- decoding -------------------------------------------------------------------------------


class _Cursor:
    """Reads the body of one batch from front to back, never past its bounds."""

    __slots__ = ("_body", "end", "position", "where")

    def __init__(self, body: bytes, where: str) -> None:
        self._body = body
        self.position = 0
        self.end = len(body)
        self.where = where

    def corrupt(self, what: str) -> CorruptBatch:
        return CorruptBatch(f"{self.where}: {what} at byte {self.position} of its records")

    def varint(self, bits: int = 32) -> int:
        number = shift = 0
        while True:
            if self.position >= self.end:
                raise self.corrupt("a number is cut short")
            byte = self._body[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise self.corrupt("a number is too long")
        if number >> bits:
            raise self.corrupt("a number is too large")
        return (number >> 1) ^ -(number & 1)

    def bytes_or_null(self) -> bytes | None:
        length = self.varint()
        if length == -1:
            return None
        if not 0 <= length <= self.end - self.position:
            raise self.corrupt(f"a length of {length}")
        start = self.position
        self.position += length
        return self._body[start : self.position]

    def skip_byte(self) -> None:
        if self.position >= self.end:
            raise self.corrupt("a record is cut short")
        self.position += 1


def _decode_body(body: bytes, header: BatchHeader) -> list[Record]:
    where = f"batch at offset {header.base_offset}"
    if not 0 <= header.count <= len(body) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{where}: {header.count} records in {len(body)} bytes")
    cursor = _Cursor(body, where)
    records: list[Record] = []
    last_delta = -1
    for _ in range(header.count):
        record = _read_record(cursor, header, len(body))
        delta = record.offset - header.base_offset
        if not last_delta < delta <= header.last_offset_delta:
            raise cursor.corrupt(f"offset delta {delta} after {last_delta}")
        last_delta = delta
        records.append(record)
    if cursor.position != len(body):
        raise cursor.corrupt("bytes are left over")
    return records


def _read_record(cursor: _Cursor, header: BatchHeader, body_bytes: int) -> Record:
    cursor.end = body_bytes
    length = cursor.varint()
    if not RECORD_BYTES_MIN - 1 <= length <= body_bytes - cursor.position:
        raise cursor.corrupt(f"a record length of {length}")
    cursor.end = cursor.position + length
    cursor.skip_byte()
    timestamp_ms = _wrapped(header.base_timestamp_ms + cursor.varint(64))
    offset = header.base_offset + cursor.varint()
    key, value = cursor.bytes_or_null(), cursor.bytes_or_null()
    headers = tuple(_read_header(cursor) for _ in range(_read_header_count(cursor)))
    if cursor.position != cursor.end:
        raise cursor.corrupt("a record is shorter than its length")
    if header.timestamp_type is TimestampType.APPEND:
        timestamp_ms = header.max_timestamp_ms
    return Record(offset, timestamp_ms, key, value, headers)


def _read_header_count(cursor: _Cursor) -> int:
    count = cursor.varint()
    if not 0 <= count <= (cursor.end - cursor.position) // 2:
        raise cursor.corrupt(f"a header count of {count}")
    return count


def _read_header(cursor: _Cursor) -> Header:
    key = cursor.bytes_or_null()
    if key is None:
        raise cursor.corrupt("a header without a key")
    return Header(key.decode("utf-8", _HEADER_KEY_ERRORS), cursor.bytes_or_null())
