"""Produce: sends batches, returns the assigned offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from cordwood.protocol.kafka.messages.partitions import CurrentLeader, LeaderNode
from cordwood.protocol.kafka.primitives import (
    NO_ID,
    Int16,
    Int32,
    Int64,
    Records,
    Since,
    Str,
    Tag,
    Until,
    Uuid,
)

TOPIC_ID_VERSION: Final = 13
"""The first version that names topics by id."""


class ProducePartition(NamedTuple):
    """The batches for one partition, complete and as the producer framed them."""

    partition: Int32
    records: Records | None


class ProduceTopic(NamedTuple):
    """The batches for one topic, by name or, since version 13, by id."""

    name: Annotated[Str, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_ID
    partitions: Sequence[ProducePartition] = ()


class ProduceRequest(NamedTuple):
    """Append these batches; ``acks`` is 0 (no reply at all), 1 or -1."""

    transactional_id: Str | None
    acks: Int16
    timeout_ms: Int32
    topics: Sequence[ProduceTopic]


class ProduceRecordError(NamedTuple):
    """The record that caused the whole batch to be refused, and why."""

    batch_index: Int32
    message: Str | None = None


class ProducedPartition(NamedTuple):
    """The offset of the first stored record, or the reason why nothing was stored."""

    partition: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = -1  # -1: the topic keeps the producer's timestamps
    log_start_offset: Annotated[Int64, Since(5)] = -1
    record_errors: Annotated[Sequence[ProduceRecordError], Since(8)] = ()
    error_message: Annotated[Str | None, Since(8)] = None
    current_leader: Annotated[CurrentLeader, Since(10), Tag(0)] = CurrentLeader()


class ProducedTopic(NamedTuple):
    """The results for one topic."""

    name: Annotated[Str, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_ID
    partitions: Sequence[ProducedPartition] = ()


class ProduceResponse(NamedTuple):
    """The result for every partition of the request, in the same order."""

    topics: Sequence[ProducedTopic]
    throttle_time_ms: Int32 = 0
    nodes: Annotated[Sequence[LeaderNode], Since(10), Tag(0)] = ()
