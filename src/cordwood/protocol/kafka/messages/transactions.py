"""Producer ids and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.primitives import Bool, Int16, Int32, Int64, Since, Str

# --- InitProducerId -------------------------------------------------------------------------


class InitProducerIdRequest(NamedTuple):
    """A producer id; with a transactional id also fence whoever had it before."""

    transactional_id: Str | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1


class InitProducerIdResponse(NamedTuple):
    """The id and epoch to write into every batch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0


# --- AddPartitionsToTxn ---------------------------------------------------------------------


class TxnTopic(NamedTuple):
    """The partitions of one topic a transaction writes to."""

    name: Str
    partitions: Sequence[Int32]


class AddPartitionsToTxnRequest(NamedTuple):
    """This transaction is going to write to these partitions."""

    transactional_id: Str
    producer_id: Int64
    producer_epoch: Int16
    topics: Sequence[TxnTopic]


class AddedPartition(NamedTuple):
    """Whether one partition joined the transaction."""

    partition: Int32
    error_code: Int16


class AddedTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[AddedPartition]


class AddPartitionsToTxnResponse(NamedTuple):
    """Every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[AddedTopic] = ()


# --- AddOffsetsToTxn, EndTxn ----------------------------------------------------------------


class AddOffsetsToTxnRequest(NamedTuple):
    """This transaction is going to move this group's cursors."""

    transactional_id: Str
    producer_id: Int64
    producer_epoch: Int16
    group_id: Str


class AddOffsetsToTxnResponse(NamedTuple):
    """Whether the group's cursors joined the transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


class EndTxnRequest(NamedTuple):
    """Commit or abort."""

    transactional_id: Str
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(NamedTuple):
    """Whether the transaction ended so."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


# --- DescribeProducers ----------------------------------------------------------------------


class DescribeProducersTopic(NamedTuple):
    """The partitions asked about in one topic."""

    name: Str
    partitions: Sequence[Int32]


class DescribeProducersRequest(NamedTuple):
    """Who writes to these partitions."""

    topics: Sequence[DescribeProducersTopic]


class ActiveProducer(NamedTuple):
    """What a partition remembers of one producer."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp_ms: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class ProducersPartition(NamedTuple):
    """The producers of one partition."""

    partition: Int32
    error_code: Int16
    error_message: Str | None = None
    active_producers: Sequence[ActiveProducer] = ()


class ProducersTopic(NamedTuple):
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ProducersPartition]


class DescribeProducersResponse(NamedTuple):
    """Every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[ProducersTopic] = ()


# --- DescribeTransactions, ListTransactions -------------------------------------------------


class DescribeTransactionsRequest(NamedTuple):
    """How these transactions stand."""

    transactional_ids: Sequence[Str]


class DescribedTransaction(NamedTuple):
    """One transactional id: its state, its producer and the partitions written to."""

    error_code: Int16
    transactional_id: Str
    state: Str = ""
    timeout_ms: Int32 = 0
    start_time_ms: Int64 = -1
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    topics: Sequence[TxnTopic] = ()


class DescribeTransactionsResponse(NamedTuple):
    """Every transactional id of the request."""

    throttle_time_ms: Int32 = 0
    transactions: Sequence[DescribedTransaction] = ()


class ListTransactionsRequest(NamedTuple):
    """The transactions that pass every filter; an empty filter passes all."""

    state_filters: Sequence[Str]
    producer_id_filters: Sequence[Int64]
    duration_filter_ms: Annotated[Int64, Since(1)] = -1


class ListedTransaction(NamedTuple):
    """A transactional id, its producer and its state."""

    transactional_id: Str
    producer_id: Int64
    state: Str


class ListTransactionsResponse(NamedTuple):
    """The transactions this broker coordinates."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: Sequence[Str] = ()
    transactions: Sequence[ListedTransaction] = ()
