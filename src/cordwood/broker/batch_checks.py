"""Checks on batches before they are appended: frame, header, every record, the topic's rules.

The checks and their error codes are those of Kafka's broker. The functions are safe on any thread;
``broker.produce`` decides on which. They change the bytes in one case, as Kafka does: a header
whose newest timestamp differs from its records' is corrected, because retention and time lookups
rely on it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cordwood.batch.compression import INFLATED_BYTES_MAX
from cordwood.batch.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    BatchHeader,
    Buffer,
    check_batches,
    parse_header,
    stamp_max_timestamp,
)
from cordwood.batch.kernels.loader import kernels_ready
from cordwood.batch.refused_records import RecordRules, find_refused
from cordwood.batch.validation import check_body
from cordwood.config import KEEP_ALL, KIB, MIB, TopicConfig
from cordwood.errors import BatchTooLarge, InvalidRecord, InvalidTimestamp, RecordError
from cordwood.plural import plural

# What one append may cost the event loop: a few milliseconds at most.
LOOP_BYTES: Final = MIB + 64 * KIB  # batch size: its checksum, and a kernel over its records
LOOP_PACKED_BYTES: Final = 64 * KIB  # size of a compressed batch
LOOP_INFLATED_BYTES: Final = 256 * KIB
LOOP_PLAIN_RECORDS: Final = 512  # records checked without kernels

RECORD_ERRORS_MAX: Final = 10_000  # records that one refusal names; encoding them takes time too


class BatchRules(NamedTuple):
    """What a topic demands of a producer's batch, beyond the checks for every batch."""

    topic: str
    batch_bytes_max: int
    inflated_bytes_max: int
    needs_keys: bool
    oldest_ms: int = -(2**63)  # bounds for the records' timestamps
    newest_ms: int = 2**63 - 1


def producer_rules(
    topic: str, config: TopicConfig, inflated_bytes_max: int, now_ms: int
) -> BatchRules:
    """Return the rules for batches from Kafka clients."""
    needs_keys = "compact" in config.cleanup_policy
    rules = BatchRules(topic, config.max_message_bytes, inflated_bytes_max, needs_keys)
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if before == after == KEEP_ALL or config.message_timestamp_type == "LogAppendTime":
        return rules  # under LogAppendTime the producer's timestamps are not kept
    return rules._replace(oldest_ms=now_ms - before, newest_ms=now_ms + after)


# --- a producer's batch -----------------------------------------------------------------------


def check_frame(data: Buffer, rules: BatchRules) -> BatchHeader:
    """Return the header; raises for a bad frame, checksum or header claim.

    As Kafka demands of a producer: exactly one batch, at offset 0, with the client's timestamps.
    """
    headers = check_batches(data, rules.batch_bytes_max)
    if len(headers) != 1:
        raise InvalidRecord(
            f"{plural(len(headers), 'batch', 'batches')} for one partition; send exactly one"
        )
    header = headers[0]
    if header.base_offset:
        raise InvalidRecord(f"the batch starts at offset {header.base_offset}; producers send 0")
    if header.attributes & APPEND_TIME_BIT:
        raise InvalidTimestamp(
            "the batch has the timestamp type LogAppendTime, which only the broker may set"
        )
    return header


def is_for_loop(data: Buffer, header: BatchHeader) -> bool:
    """Return whether the event loop can check the records quickly, unless they inflate far."""
    if header.attributes & CODEC_BITS and len(data) > LOOP_PACKED_BYTES:
        return False
    return header.count <= LOOP_PLAIN_RECORDS or kernels_ready()


def check_records(
    data: bytearray | memoryview, header: BatchHeader, rules: BatchRules, inflated_bytes_max: int
) -> BatchHeader | None:
    """Check every record; returns the final header, or None past ``inflated_bytes_max``."""
    walked = check_body(data, 0, header, inflated_bytes_max)
    if walked is None:
        return None
    if (
        (rules.needs_keys and walked.keyless >= 0)
        or walked.oldest_ms < rules.oldest_ms
        or walked.newest_ms > rules.newest_ms
    ):
        _check_each(data, 0, header, rules)
    if walked.newest_ms != header.max_timestamp_ms:
        stamp_max_timestamp(data, 0, walked.newest_ms)
        return parse_header(data)
    return header


def check_whole(data: bytearray | memoryview, rules: BatchRules) -> BatchHeader:
    """Run all checks at once; for a thread that may take its time."""
    header = check_records(data, check_frame(data, rules), rules, rules.inflated_bytes_max)
    if header is None:
        raise _past_limit(rules.inflated_bytes_max)
    return header


# --- staged batches ---------------------------------------------------------------------------


def check_staged(
    data: Buffer,
    topic: str,
    batch_bytes_max: int,
    *,
    needs_keys: bool,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
) -> list[BatchHeader]:
    """Check every record of batches that Spark delivers or an archive restores.

    Returns their headers. There may be many batches, with offsets and the broker's timestamps;
    they are not changed.
    """
    headers = check_batches(data, batch_bytes_max)
    rules = BatchRules(topic, batch_bytes_max, inflated_bytes_max, needs_keys)
    position = 0
    for header in headers:
        walked = check_body(data, position, header, inflated_bytes_max)
        if walked is None:
            raise _past_limit(inflated_bytes_max)
        if needs_keys and walked.keyless >= 0:
            _check_each(data, position, header, rules)
        position += header.size_bytes
    return headers


def _past_limit(limit_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"the records take more than {limit_bytes} bytes uncompressed "
        "(message.inflated.bytes.max); send smaller batches"
    )


# --- the records at fault ---------------------------------------------------------------------


def _check_each(data: Buffer, position: int, header: BatchHeader, rules: BatchRules) -> None:
    """Raise an error that names the records which the topic refuses, if there are any.

    As in Kafka, one refused timestamp makes the whole reply INVALID_TIMESTAMP.
    """
    batch = memoryview(data)[position : position + header.size_bytes]
    wanted = RecordRules(rules.needs_keys, rules.oldest_ms, rules.newest_ms)
    refused = find_refused(batch, wanted, rules.inflated_bytes_max)
    count = len(refused.keyless) + len(refused.mistimed)
    if not count:
        return
    no_key = f"topic {rules.topic} is compacted and requires a key on every record"
    errors = [RecordError(index, no_key) for index in refused.keyless[:RECORD_ERRORS_MAX]]
    errors += [
        RecordError(index, _time_fault(time_ms, rules))
        for index, time_ms in refused.mistimed[:RECORD_ERRORS_MAX]
    ]
    errors.sort()
    message = (
        f"{count} of {header.count} records are refused; record {errors[0].batch_index}: "
        f"{errors[0].reason}"
    )
    error_type = InvalidTimestamp if refused.mistimed else InvalidRecord
    raise error_type(message, errors[:RECORD_ERRORS_MAX])


def _time_fault(time_ms: int, rules: BatchRules) -> str:
    is_early = time_ms < rules.oldest_ms
    bound, bound_ms = ("before", rules.oldest_ms) if is_early else ("after", rules.newest_ms)
    return (
        f"topic {rules.topic} accepts no timestamp {bound} {bound_ms} at the moment "
        f"(message.timestamp.{bound}.max.ms); this one is {time_ms}"
    )
