"""Checks that the records of a batch can be decoded before a broker stores them.

A checksum proves that bytes arrived as they were sent, not that they are valid records. A batch
that no reader can decode would block every consumer of its partition for ever. The check therefore
covers the whole body: count, lengths, fields, headers, offset deltas 0, 1, 2, …, and no bytes left
over.

Two implementations agree on every body: a numba kernel, and plain Python until the kernels are
loaded, which small batches alone do not trigger. A compressed body is decompressed completely, up
to a limit that the caller sets. Nothing here changes a byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cordwood.batch.compression import inflate
from cordwood.batch.header import CODEC_BITS, HEADER_BYTES, BatchHeader, Buffer
from cordwood.batch.kernels.loader import kernels, kernels_ready, load_kernels_soon
from cordwood.batch.record_parser import (
    FAULT_TEXTS,
    RECORD_BYTES_MIN,
    BadRecord,
    Fault,
    parse_record,
)
from cordwood.errors import CorruptBatch, InvalidRecord, RecordError
from cordwood.model import Codec

KERNEL_RECORDS_MIN: Final = 16  # a batch of this size triggers loading of the kernels
_INT64_END: Final = 2**63
_BATCH_FAULTS: Final = {Fault.COUNT, Fault.LEFT_OVER}  # no single record is at fault


class BodyCheck(NamedTuple):
    """The result of checking the records of one batch."""

    fault: Fault
    record: int  # where the check ended: the invalid record, or the last one
    oldest_ms: int = 0
    newest_ms: int = 0
    keyless: int = -1  # the first record without a key; -1 if all have one


def check_body(
    data: Buffer, position: int, header: BatchHeader, inflated_bytes_max: int
) -> BodyCheck | None:
    """Check the records of the batch at ``position``, whose header and checksum are valid.

    Raises ``InvalidRecord`` for undecodable records: as the checksum is valid, a retry would not
    help. Returns None if the records may inflate past ``inflated_bytes_max``.
    """
    body: Buffer = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
    number = header.attributes & CODEC_BITS
    if number:
        try:
            inflated = inflate(Codec(number), body, inflated_bytes_max)
        except CorruptBatch as error:
            raise InvalidRecord(f"batch at position {position}: {error}") from None
        if inflated is None:
            return None
        body = inflated
    walked = walk_records(body, header.count, header.base_timestamp_ms)
    if walked.fault:
        reason = f"cannot be read: {FAULT_TEXTS[walked.fault]}"
        raise InvalidRecord(
            f"batch at position {position}: record {walked.record} of {header.count} {reason}",
            () if walked.fault in _BATCH_FAULTS else [RecordError(walked.record, reason)],
        )
    return walked


def walk_records(body: Buffer, count: int, base_timestamp_ms: int) -> BodyCheck:
    """Use the kernel once it is loaded: a call costs no more than one record in plain Python."""
    if kernels_ready():
        return walk_by_kernel(body, count, base_timestamp_ms)
    if count >= KERNEL_RECORDS_MIN:
        load_kernels_soon()
    return walk_plainly(body, count, base_timestamp_ms)


def walk_by_kernel(body: Buffer, count: int, base_timestamp_ms: int) -> BodyCheck:
    """Check with the kernel, and load it if necessary; releases the GIL."""
    import numpy as np

    from cordwood.batch.header_table import readonly

    result = np.empty(4, np.int64)
    bytes_ = readonly(body)
    fault = kernels().check_records(bytes_, 0, len(bytes_), count, base_timestamp_ms, result)
    if fault:
        return BodyCheck(Fault(fault), int(result[0]))
    return BodyCheck(Fault.NONE, *result.tolist())


def walk_plainly(body: Buffer, count: int, base_timestamp_ms: int) -> BodyCheck:
    """Check in plain Python; the reference for the kernel."""
    data = bytes(body)
    end = len(data)
    if not 1 <= count <= end // RECORD_BYTES_MIN:
        return BodyCheck(Fault.COUNT, 0)
    oldest, newest, keyless = _INT64_END - 1, -_INT64_END, -1
    position = 0
    for record in range(count):
        try:
            position, time_delta, _, key, _, _ = parse_record(data, position, end, record, record)
        except BadRecord as error:
            return BodyCheck(error.fault, record)
        if key is None and keyless < 0:
            keyless = record
        time_ms = (base_timestamp_ms + time_delta + _INT64_END) % (2 * _INT64_END) - _INT64_END
        oldest, newest = min(oldest, time_ms), max(newest, time_ms)
    if position != end:
        return BodyCheck(Fault.LEFT_OVER, record)
    return BodyCheck(Fault.NONE, record, oldest, newest, keyless)
