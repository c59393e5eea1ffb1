"""The events, replies and instructions of a transactional id; values only.

A ``token`` identifies a waiting request and is answered exactly once. ``version`` is the version of
the request: older clients know fewer codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.instructions import Forget, Reply, SetTimer, Tick, Token
from cordwood.decide.offsets import PartitionOffset
from cordwood.decide.transactions.record import (
    StagedOffsets,
    TransactionRecord,
    encode_transaction_record,
)
from cordwood.model import NO_PRODUCER, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The limits a broker sets for all transactional ids."""

    timeout_ms_max: int = 900_000
    expiry_ms: int = 7 * 24 * 3_600_000  # an id unused for this long is forgotten
    retry_ms: int = 1_000  # the delay before failed markers are retried

    @classmethod
    def from_config(cls, config: BrokerConfig) -> TransactionSettings:
        """The limits from the broker's settings."""
        return cls(
            timeout_ms_max=config.transaction_max_timeout_ms,
            expiry_ms=config.transactional_id_expiration_ms,
        )


# --- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """InitProducerId with a transactional id.

    ``producer_id`` and ``producer_epoch`` are the producer's current ones, from version 3 on.
    ``fresh_producer_id`` was never assigned before; it is used up whether it is needed or not.
    """

    token: Token
    version: int
    timeout_ms: int
    fresh_producer_id: int
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRequest:
    """A request of the producer of the id, which names its id and epoch."""

    token: Token
    version: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(ProducerRequest):
    """AddPartitionsToTxn for existing partitions."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsets(ProducerRequest):
    """AddOffsetsToTxn: announces offsets of this group."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOffsets(ProducerRequest):
    """TxnOffsetCommit, after ``GroupDirectory.check_txn_commit`` has allowed it."""

    group_id: str
    offsets: tuple[PartitionOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(ProducerRequest):
    """EndTxn."""

    commit: bool


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """The markers of ``WriteMarkers`` are durable in every partition."""


@dataclass(frozen=True, slots=True)
class MarkersFailed:
    """At least one marker could not be written; the others may have been."""


Event = (
    InitProducer
    | AddPartitions
    | AddOffsets
    | StageOffsets
    | EndTransaction
    | MarkersWritten
    | MarkersFailed
    | Tick
)
Request = InitProducer | AddPartitions | AddOffsets | StageOffsets | EndTransaction


# --- replies --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitReply:
    """The reply to ``InitProducer``."""

    code: Code = Code.NONE
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER


# --- instructions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the id's transaction record durable and move these groups' cursors, in one step."""

    state: TransactionRecord
    cursors: tuple[StagedOffsets, ...] = ()

    __match_args__ = ("txn_record", "cursors")

    @property
    def txn_record(self) -> dict[str, Any]:
        """The record as plain JSON values for ``Transaction.restore``; slow for a large record."""
        return encode_transaction_record(self.state)


@dataclass(frozen=True, slots=True)
class Erase:
    """Delete the id's transaction record durably."""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write this producer's commit or abort marker to each partition, and report the result."""

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]


Instruction = Reply | Persist | Erase | WriteMarkers | SetTimer | Forget
