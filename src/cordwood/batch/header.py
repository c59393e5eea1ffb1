"""Whole-batch operations on RecordBatch v2: read, check and patch the 61-byte header.

Nothing here reads a record, so the cost of a batch does not depend on its contents, except for one
CRC32C pass over its bytes. The base offset and the leader epoch are outside the checksum: a
produced batch is stored as it arrived with only these two fields patched.

    baseOffset i64 · batchLength i32 (bytes after this field) · partitionLeaderEpoch i32 · magic i8
    · crc u32 (of everything after it) · attributes i16 · lastOffsetDelta i32 · baseTimestamp i64
    · maxTimestamp i64 · producerId i64 · producerEpoch i16 · baseSequence i32 · count i32 · records
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import google_crc32c

from cordwood.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecord,
    UnsupportedCompression,
)
from cordwood.model import NO_PRODUCER, Codec, TimestampType
from cordwood.plural import plural

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
LOG_OVERHEAD: Final = 12  # base offset and length, which the length excludes
MAGIC: Final = 2
SEQUENCE_MODULUS: Final = 2**31  # sequences run 0 … 2**31 - 1, then wrap to 0

CODEC_BITS: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_POSITION: Final = 17
CRC_START: Final = 21  # the checksum covers the batch from here to its end
_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC_PIECE_BYTES: Final = 4 * 1024 * 1024
_EPOCH_POSITION: Final = 12
_PRODUCER_POSITION: Final = 43
_MAX_TIMESTAMP_POSITION: Final = 35

assert HEADER.size == HEADER_BYTES


_new: Final = tuple.__new__  # like ``_make``, without a Python call per header


class BatchHeader(NamedTuple):
    """The header's raw fields; the properties interpret them."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int  # the delete horizon, if the batch has one
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    def patched(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """This header after ``patch``."""
        return _new(BatchHeader, (base_offset, self[1], leader_epoch, *self[3:]))

    @property
    def last_offset(self) -> int:
        """The last offset the batch covers; after compaction it may have no record."""
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        """One past ``last_offset``."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed; raises ``CorruptBatch`` for an undefined number."""
        number = self.attributes & CODEC_BITS
        if number > Codec.ZSTD.value:
            raise CorruptBatch(f"batch at offset {self.base_offset}: unknown codec {number}")
        return Codec(number)

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps: with APPEND every record has ``max_timestamp_ms``."""
        return TimestampType.APPEND if self.attributes & APPEND_TIME_BIT else TimestampType.CREATE

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether it holds a control record, such as a transaction marker, instead of data."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp_ms`` is the time from which tombstones may be removed."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last offset covered; ``NO_PRODUCER`` without a sequence."""
        if self.base_sequence == NO_PRODUCER:
            return NO_PRODUCER
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header at ``position`` unchecked; raises ``CorruptBatch`` if it is truncated."""
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(
            f"a batch header needs {HEADER_BYTES} bytes; {len(data) - position} are left "
            f"at position {position}"
        )
    return _new(BatchHeader, HEADER.unpack_from(data, position))


def parse_headers(
    data: Buffer, check: Callable[[BatchHeader, int], None] | None = None
) -> list[BatchHeader]:
    """The headers of concatenated whole batches; raises ``CorruptBatch`` if they are not whole.

    Only lengths are checked, unless ``check`` is given: it is called with each header and its
    position before the walk goes on to the next.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(data)
    new, unpack = _new, HEADER.unpack_from  # a hot loop: many senders, few records each
    while position < end:
        if end - position < HEADER_BYTES:
            parse_header(data, position)  # raises the error
        header = new(BatchHeader, unpack(data, position))
        if check is not None:
            check(header, position)
        size_bytes = LOG_OVERHEAD + header[1]
        if not HEADER_BYTES <= size_bytes <= end - position:
            raise CorruptBatch(f"no whole record batch (format v2) at position {position}")
        headers.append(header)
        position += size_bytes
    return headers


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli) of the bytes."""
    # The library accepts only read-only bytes; one copy at memory speed is the cheapest way. It
    # holds the GIL, so a large batch is processed in pieces and other threads can run in between.
    crc: int
    if len(data) <= _CRC_PIECE_BYTES:
        crc = google_crc32c.value(data if type(data) is bytes else bytes(data))
        return crc
    view, crc = memoryview(data), 0
    for start in range(0, len(view), _CRC_PIECE_BYTES):
        crc = google_crc32c.extend(crc, bytes(view[start : start + _CRC_PIECE_BYTES]))
    return crc


def is_crc_valid(data: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the checksum of the batch at ``position`` matches its header."""
    view = memoryview(data)
    return crc32c(view[position + CRC_START : position + header.size_bytes]) == header.crc


def check_batches(data: Buffer, batch_bytes_max: int) -> list[BatchHeader]:
    """The headers of concatenated complete batches, with the checks a broker makes before storing.

    Raises ``CorruptBatch`` (damaged in transit: a retry may help), ``BatchTooLarge``,
    ``UnsupportedCompression`` or ``InvalidRecord`` (not allowed from a client). Records are not
    checked: see ``validation``.
    """

    def check(header: BatchHeader, position: int) -> None:
        _check_frame(header, position, len(data) - position, batch_bytes_max)
        if not is_crc_valid(data, position, header):
            raise CorruptBatch(f"batch at position {position}: the checksum does not match")
        _check_claims(header, position)

    return parse_headers(data, check)


def _check_frame(header: BatchHeader, position: int, left_bytes: int, bytes_max: int) -> None:
    """Check format, length and size, which must be valid before the checksum is computed."""
    where = f"batch at position {position}"
    if header.magic in {0, 1}:
        raise InvalidRecord(
            f"{where}: message format v{header.magic} is not supported; use a client that writes "
            "record batches (format v2, Kafka 0.11 or later)"
        )
    if header.magic != MAGIC:
        raise CorruptBatch(f"{where}: unknown format {header.magic}, expected {MAGIC}")
    if header.size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"{where}: length {header.batch_length} is shorter than a header")
    if header.size_bytes > bytes_max:
        raise BatchTooLarge(
            f"{where} has {header.size_bytes} bytes; max.message.bytes is {bytes_max}: send "
            "smaller batches or raise the topic's limit"
        )
    if header.size_bytes > left_bytes:
        raise CorruptBatch(
            f"{where}: the header states {header.size_bytes} bytes, but only {left_bytes} were sent"
        )


def _check_claims(header: BatchHeader, position: int) -> None:
    """Check for values that an intact header from a client must not have."""
    where = f"batch at position {position}"
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{where}: {plural(header.count, 'record')}, but offset deltas up to "
            f"{header.last_offset_delta}"
        )
    if header.attributes & CODEC_BITS > Codec.ZSTD.value:
        raise UnsupportedCompression(f"{where}: unknown codec {header.attributes & CODEC_BITS}")
    if header.is_control:
        raise InvalidRecord(f"{where}: clients may not write control batches")
    if header.has_delete_horizon:
        raise InvalidRecord(f"{where}: only compaction may set a delete horizon")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord(f"{where}: a transactional batch needs a producer id")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRecord(f"{where}: a producer id needs an epoch and a sequence from 0 up")


def patch(data: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the two fields outside the checksum, in place."""
    _OFFSET.pack_into(data, position, base_offset)
    _EPOCH.pack_into(data, position + _EPOCH_POSITION, leader_epoch)


def stamp_append_time(data: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Set LogAppendTime at ``now_ms`` in place, and update the checksum."""
    header = parse_header(data, position)
    _ATTRIBUTES.pack_into(data, position + CRC_START, header.attributes | APPEND_TIME_BIT)
    _OFFSET.pack_into(data, position + _MAX_TIMESTAMP_POSITION, now_ms)
    seal(data, position, header.size_bytes)


def stamp_max_timestamp(data: bytearray | memoryview, position: int, newest_ms: int) -> None:
    """Set the maximum timestamp of the records in place, and update the checksum."""
    header = parse_header(data, position)
    _OFFSET.pack_into(data, position + _MAX_TIMESTAMP_POSITION, newest_ms)
    seal(data, position, header.size_bytes)


def stamp_producer(
    data: bytearray | memoryview,
    position: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Set producer id, epoch and sequence in place for deduplication, and update the checksum."""
    header = parse_header(data, position)
    _PRODUCER.pack_into(
        data, position + _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence
    )
    seal(data, position, header.size_bytes)


def seal(data: bytearray | memoryview, position: int, size_bytes: int) -> None:
    """Write the checksum of the batch at ``position``; the last step of building a batch."""
    crc = crc32c(memoryview(data)[position + CRC_START : position + size_bytes])
    _CRC.pack_into(data, position + CRC_POSITION, crc)
