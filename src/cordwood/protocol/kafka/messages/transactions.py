"""Producer ids and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.messages.partitions import TopicPartitions, TopicResults
from cordwood.protocol.kafka.primitives import Bool, Int8, Int16, Int32, Int64, Since, Str

# --- InitProducerId -------------------------------------------------------------------------


class InitProducerIdRequest(NamedTuple):
    """Request a producer id; with a transactional id, also fence its previous owner."""

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


class AddPartitionsToTxnRequest(NamedTuple):
    """Announce the partitions that this transaction will write to."""

    transactional_id: Str
    producer_id: Int64
    producer_epoch: Int16
    topics: Sequence[TopicPartitions]


class AddPartitionsToTxnResponse(NamedTuple):
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[TopicResults] = ()


# --- AddOffsetsToTxn, EndTxn ----------------------------------------------------------------


class AddOffsetsToTxnRequest(NamedTuple):
    """Announce that this transaction will move this group's cursors."""

    transactional_id: Str
    producer_id: Int64
    producer_epoch: Int16
    group_id: Str


class AddOffsetsToTxnResponse(NamedTuple):
    """Whether the group's cursors joined the transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


class EndTxnRequest(NamedTuple):
    """Commit or abort the transaction."""

    transactional_id: Str
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(NamedTuple):
    """Whether the transaction ended as requested."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


# --- WriteTxnMarkers ------------------------------------------------------------------------


class TxnMarker(NamedTuple):
    """Ends the transaction of a producer in these partitions."""

    producer_id: Int64
    producer_epoch: Int16
    committed: Bool
    topics: Sequence[TopicPartitions]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Since(2)] = 0


class WriteTxnMarkersRequest(NamedTuple):
    """Write these markers; Kafka's admin clients abort hanging transactions with it."""

    markers: Sequence[TxnMarker]


class WrittenTxnMarker(NamedTuple):
    """The result for every partition of one marker."""

    producer_id: Int64
    topics: Sequence[TopicResults]


class WriteTxnMarkersResponse(NamedTuple):
    """The result for every marker of the request."""

    markers: Sequence[WrittenTxnMarker] = ()


# --- DescribeProducers ----------------------------------------------------------------------


class DescribeProducersRequest(NamedTuple):
    """List the producers that write to these partitions."""

    topics: Sequence[TopicPartitions]


class ActiveProducer(NamedTuple):
    """The producer state that a partition keeps of one producer."""

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
    """The result for every partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: Sequence[ProducersTopic] = ()


# --- DescribeTransactions, ListTransactions -------------------------------------------------


class DescribeTransactionsRequest(NamedTuple):
    """Ask for the state of these transactions."""

    transactional_ids: Sequence[Str]


class DescribedTransaction(NamedTuple):
    """One transactional id: its state, its producer and its partitions."""

    error_code: Int16
    transactional_id: Str
    state: Str = ""
    timeout_ms: Int32 = 0
    start_time_ms: Int64 = -1
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    topics: Sequence[TopicPartitions] = ()


class DescribeTransactionsResponse(NamedTuple):
    """The result for every transactional id of the request."""

    throttle_time_ms: Int32 = 0
    transactions: Sequence[DescribedTransaction] = ()


class ListTransactionsRequest(NamedTuple):
    """List the transactions that match every filter; an empty filter matches all."""

    state_filters: Sequence[Str]
    producer_id_filters: Sequence[Int64]
    duration_filter_ms: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[Str | None, Since(2)] = None


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
