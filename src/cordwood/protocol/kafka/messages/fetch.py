"""Fetch: returns complete batches, starting at an offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from cordwood.protocol.kafka.messages.partitions import CurrentLeader, LeaderNode
from cordwood.protocol.kafka.primitives import (
    NO_ID,
    Int8,
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


class FetchPartition(NamedTuple):
    """The offset to read from in one partition, and the maximum size."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9)] = -1  # -1: the client does not know it
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1  # a follower's; consumers send -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Since(17), Tag(0)] = NO_ID  # a follower's
    high_watermark: Annotated[Int64, Since(18), Tag(1)] = 2**63 - 1  # a follower's


class FetchTopic(NamedTuple):
    """The requested partitions of one topic, by name or, since version 13, by id."""

    name: Annotated[Str, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_ID
    partitions: Sequence[FetchPartition] = ()


class FetchForgottenTopic(NamedTuple):
    """Partitions that an incremental fetch session no longer wants."""

    name: Annotated[Str, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_ID
    partitions: Sequence[Int32] = ()


class FetchReplica(NamedTuple):
    """The follower that fetches; a consumer sends none."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchRequest(NamedTuple):
    """Fetch records; the reply waits for ``min_bytes``, at most ``max_wait_ms``."""

    replica_id: Annotated[Int32, Until(14)] = -1  # -1: a consumer
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0  # 1: read_committed
    session_id: Annotated[Int32, Since(7)] = 0
    session_epoch: Annotated[Int32, Since(7)] = -1
    topics: Sequence[FetchTopic] = ()
    forgotten_topics: Annotated[Sequence[FetchForgottenTopic], Since(7)] = ()
    rack_id: Annotated[Str, Since(11)] = ""
    cluster_id: Annotated[Str | None, Since(12), Tag(0)] = None
    replica: Annotated[FetchReplica, Since(15), Tag(1)] = FetchReplica()


class FetchEpochEnd(NamedTuple):
    """The point where the reader's history diverges from ours."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


class FetchSnapshot(NamedTuple):
    """A snapshot of the metadata log; our topics have none."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(NamedTuple):
    """A read_committed reader skips this producer's records from here to the abort marker."""

    producer_id: Int64
    first_offset: Int64


class FetchedPartition(NamedTuple):
    """Complete batches; the first may begin before the requested offset."""

    partition: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    diverging_epoch: Annotated[FetchEpochEnd, Since(12), Tag(0)] = FetchEpochEnd()
    current_leader: Annotated[CurrentLeader, Since(12), Tag(1)] = CurrentLeader()
    snapshot: Annotated[FetchSnapshot, Since(12), Tag(2)] = FetchSnapshot()
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Records | None = b""


class FetchedTopic(NamedTuple):
    """The results for one topic."""

    name: Annotated[Str, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_ID
    partitions: Sequence[FetchedPartition] = ()


class FetchResponse(NamedTuple):
    """The batches; session id 0 declines an incremental session."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(7)] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    topics: Sequence[FetchedTopic] = ()
    nodes: Annotated[Sequence[LeaderNode], Since(16), Tag(0)] = ()
