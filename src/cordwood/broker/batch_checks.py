"""What batches must hold before they are appended: frame, header, every record, the topic's rules.

As Kafka's broker asks it, with Kafka's error codes. Pure and safe on any thread; ``broker.produce``
decides on which. The bytes are changed in one case, as Kafka does: a header that states another
newest timestamp than its records have is set right, because retention and time lookups believe it.
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
from cordwood.batch.validation import BodyCheck, check_body
from cordwood.config import KEEP_ALL, KIB, MIB, TopicConfig
from cordwood.errors import BatchTooLarge, InvalidRecord, InvalidTimestamp
from cordwood.model import NO_TIMESTAMP

# What one append may cost the event loop: a few milliseconds at the worst.
LOOP_BYTES: Final = MIB + 64 * KIB  # of a batch: its checksum, and a kernel over its records
LOOP_PACKED_BYTES: Final = 64 * KIB  # of a compressed one
LOOP_INFLATED_BYTES: Final = 256 * KIB
LOOP_PLAIN_RECORDS: Final = 512  # walked without kernels


class BatchRules(NamedTuple):
    """What a topic asks of a producer's batch, beyond what must hold of any."""

    topic: str
    batch_bytes_max: int
    inflated_bytes_max: int
    needs_keys: bool
    oldest_ms: int = -(2**63)  # of its timestamps
    newest_ms: int = 2**63 - 1


def producer_rules(
    topic: str, config: TopicConfig, inflated_bytes_max: int, now_ms: int
) -> BatchRules:
    """For what a Kafka client sends."""
    needs_keys = "compact" in config.cleanup_policy
    rules = BatchRules(topic, config.max_message_bytes, inflated_bytes_max, needs_keys)
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if before == after == KEEP_ALL or config.message_timestamp_type == "LogAppendTime":
        return rules  # in the last case the producer's clock is not kept
    return rules._replace(oldest_ms=now_ms - before, newest_ms=now_ms + after)


# --- a producer's batch -----------------------------------------------------------------------


def check_frame(data: Buffer, rules: BatchRules) -> BatchHeader:
    """Its header; raises for a frame, a checksum or a claim that does not hold.

    As Kafka's broker asks it of a producer: one batch, from offset 0, by the client's clock.
    """
    headers = check_batches(data, rules.batch_bytes_max)
    if len(headers) != 1:
        raise InvalidRecord(f"{len(headers)} batches for one partition; send exactly one")
    header = headers[0]
    if header.base_offset:
        raise InvalidRecord(f"the batch starts at offset {header.base_offset}; producers send 0")
    if header.attributes & APPEND_TIME_BIT:
        raise InvalidTimestamp("the batch claims the broker's clock; only the broker may set that")
    return header


def is_for_loop(data: Buffer, header: BatchHeader) -> bool:
    """Whether its records are walked in a moment, unless they inflate far."""
    if header.attributes & CODEC_BITS and len(data) > LOOP_PACKED_BYTES:
        return False
    return header.count <= LOOP_PLAIN_RECORDS or kernels_ready()


def check_records(
    data: bytearray | memoryview, header: BatchHeader, rules: BatchRules, inflated_bytes_max: int
) -> BatchHeader | None:
    """Walk every record; the header as it is then. None: they may inflate past the limit."""
    walked = check_body(data, 0, header, inflated_bytes_max)
    if walked is None:
        return None
    _check_keys(walked, rules.topic, needs_keys=rules.needs_keys)
    if walked.oldest_ms < rules.oldest_ms or walked.newest_ms > rules.newest_ms:
        _check_times(walked, rules)
    if walked.newest_ms != header.max_timestamp_ms:
        stamp_max_timestamp(data, 0, walked.newest_ms)
        return parse_header(data)
    return header


def check_whole(data: bytearray | memoryview, rules: BatchRules) -> BatchHeader:
    """Everything at once, for a thread that may take its time."""
    header = check_records(data, check_frame(data, rules), rules, rules.inflated_bytes_max)
    if header is None:
        raise _past_limit(rules.inflated_bytes_max)
    return header


# --- staged batches ---------------------------------------------------------------------------


def check_staged(
    data: Buffer, topic: str, batch_bytes_max: int, *, needs_keys: bool
) -> list[BatchHeader]:
    """The headers of batches that Spark delivers or an archive restores, every record walked.

    They may be many, carry offsets and the broker's clock, and are not changed.
    """
    headers = check_batches(data, batch_bytes_max)
    position = 0
    for header in headers:
        walked = check_body(data, position, header, INFLATED_BYTES_MAX)
        if walked is None:
            raise _past_limit(INFLATED_BYTES_MAX)
        _check_keys(walked, topic, needs_keys=needs_keys)
        position += header.size_bytes
    return headers


def _past_limit(limit_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"the records inflate past {limit_bytes} bytes (message.inflated.bytes.max); "
        "send smaller batches"
    )


def _check_keys(walked: BodyCheck, topic: str, *, needs_keys: bool) -> None:
    if needs_keys and walked.keyless >= 0:
        raise InvalidRecord(
            f"topic {topic} is compacted and takes no record without a key "
            f"(record {walked.keyless})"
        )


def _check_times(walked: BodyCheck, rules: BatchRules) -> None:
    if walked.oldest_ms < rules.oldest_ms and walked.oldest_ms != NO_TIMESTAMP:
        raise InvalidTimestamp(
            f"topic {rules.topic} takes no record older than {rules.oldest_ms} now "
            f"(message.timestamp.before.max.ms); one is of {walked.oldest_ms}"
        )
    if walked.newest_ms > rules.newest_ms:
        raise InvalidTimestamp(
            f"topic {rules.topic} takes no record newer than {rules.newest_ms} now "
            f"(message.timestamp.after.max.ms); one is of {walked.newest_ms}"
        )
