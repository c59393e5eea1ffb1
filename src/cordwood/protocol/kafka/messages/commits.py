"""Cursors of consumer groups: commit, fetch and delete offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import (
    NO_ID,
    Bool,
    Int16,
    Int32,
    Int64,
    NullSince,
    Since,
    Str,
    Until,
    Uuid,
)

# --- OffsetCommit ---------------------------------------------------------------------------


class OffsetCommitPartition(NamedTuple):
    """The next offset to read, with the member's own metadata."""

    partition: Int32
    offset: Int64
    leader_epoch: Annotated[Int32, Since(6)] = -1
    metadata: Str | None = None


class OffsetCommitTopic(NamedTuple):
    """The cursors on one topic, which later versions name by its id."""

    name: Annotated[Str, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_ID
    partitions: Sequence[OffsetCommitPartition] = ()


class OffsetCommitRequest(NamedTuple):
    """Move a group's cursors; generation -1 without a member commits from outside the group."""

    group_id: Str
    generation_id: Int32 = -1
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, Since(7)] = None
    retention_time_ms: Annotated[Int64, Until(4)] = -1
    topics: Sequence[OffsetCommitTopic] = ()


class CommittedPartition(NamedTuple):
    """Whether one cursor moved; OffsetCommit and TxnOffsetCommit share this response."""

    partition: Int32
    error_code: Int16


class CommittedTopic(NamedTuple):
    """The cursors of one topic."""

    name: Annotated[Str, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_ID
    partitions: Sequence[CommittedPartition] = ()


class OffsetCommitResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: Sequence[CommittedTopic] = ()


# --- OffsetFetch ----------------------------------------------------------------------------


class OffsetFetchTopic(NamedTuple):
    """The requested partitions of one topic."""

    name: Str
    partitions: Sequence[Int32]


class OffsetFetchGroupTopic(NamedTuple):
    """The requested partitions of one topic, which later versions name by its id."""

    name: Annotated[Str, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_ID
    partitions: Sequence[Int32] = ()


class OffsetFetchGroup(NamedTuple):
    """The request for one group; null topics means everything it has committed."""

    group_id: Str
    member_id: Annotated[Str | None, Since(9)] = None
    member_epoch: Annotated[Int32, Since(9)] = -1
    topics: Sequence[OffsetFetchGroupTopic] | None = None


class OffsetFetchRequest(NamedTuple):
    """Fetch the cursors of one group, or since version 8 of several."""

    group_id: Annotated[Str, Until(7)] = ""
    topics: Annotated[Sequence[OffsetFetchTopic] | None, Until(7), NullSince(2)] = ()
    groups: Annotated[Sequence[OffsetFetchGroup], Since(8)] = ()
    require_stable: Annotated[Bool, Since(7)] = False


class FetchedOffset(NamedTuple):
    """A cursor; offset -1 if nothing was committed."""

    partition: Int32
    offset: Int64
    leader_epoch: Annotated[Int32, Since(5)] = -1
    metadata: Str | None = ""
    error_code: Int16 = 0


class FetchedOffsetTopic(NamedTuple):
    """The cursors on one topic."""

    name: Str
    partitions: Sequence[FetchedOffset]


class FetchedGroupTopic(NamedTuple):
    """The cursors on one topic, which later versions name by its id."""

    name: Annotated[Str, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_ID
    partitions: Sequence[FetchedOffset] = ()


class FetchedOffsetGroup(NamedTuple):
    """The cursors of one group."""

    group_id: Str
    topics: Sequence[FetchedGroupTopic]
    error_code: Int16 = 0


class OffsetFetchResponse(NamedTuple):
    """The topics of one group, or since version 8 the groups."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: Annotated[Sequence[FetchedOffsetTopic], Until(7)] = ()
    error_code: Annotated[Int16, Since(2), Until(7)] = 0
    groups: Annotated[Sequence[FetchedOffsetGroup], Since(8)] = ()


# --- OffsetDelete ---------------------------------------------------------------------------


class OffsetDeletePartition(NamedTuple):
    """A cursor to delete."""

    partition: Int32


class OffsetDeleteTopic(NamedTuple):
    """The cursors of one topic."""

    name: Str
    partitions: Sequence[OffsetDeletePartition]


class OffsetDeleteRequest(NamedTuple):
    """Delete a group's cursors on topics that it is not subscribed to."""

    group_id: Str
    topics: Sequence[OffsetDeleteTopic]


class OffsetDeletedPartition(NamedTuple):
    """Whether one cursor was deleted."""

    partition: Int32
    error_code: Int16


class OffsetDeletedTopic(NamedTuple):
    """The cursors of one topic."""

    name: Str
    partitions: Sequence[OffsetDeletedPartition]


class OffsetDeleteResponse(NamedTuple):
    """The result for every partition of the request, unless the whole group was refused."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetDeletedTopic] = ()


# --- TxnOffsetCommit ------------------------------------------------------------------------


class TxnOffsetPartition(NamedTuple):
    """The next offset to read, once the transaction commits."""

    partition: Int32
    offset: Int64
    leader_epoch: Annotated[Int32, Since(2)] = -1
    metadata: Str | None = None


class TxnOffsetTopic(NamedTuple):
    """The cursors on one topic."""

    name: Str
    partitions: Sequence[TxnOffsetPartition]


class TxnOffsetCommitRequest(NamedTuple):
    """Move the group's cursors together with a transaction's records, or not at all."""

    transactional_id: Str
    group_id: Str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[Str, Since(3)] = ""
    group_instance_id: Annotated[Str | None, Since(3)] = None
    topics: Sequence[TxnOffsetTopic] = ()


class TxnOffsetCommitResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[CommittedTopic] = ()
