"""What a transactional id is told, what it answers, and what it asks its caller to do: values only.

A ``token`` stands for a waiting request and is answered exactly once. ``version`` is that of the
request: older clients know fewer codes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.offsets import PartitionOffset
from cordwood.decide.transactions.record import (
    StagedOffsets,
    TransactionRecord,
    encode_transaction_record,
)
from cordwood.model import NO_PRODUCER, TopicPartition

Token = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The limits a broker sets for all transactional ids."""

    timeout_ms_max: int = 900_000
    expiry_ms: int = 7 * 24 * 3_600_000  # an id unused for this long is forgotten
    retry_ms: int = 1_000  # how long after failed markers they are tried again

    @classmethod
    def from_config(cls, config: BrokerConfig) -> TransactionSettings:
        """As the operator set them."""
        return cls(
            timeout_ms_max=config.transaction_max_timeout_ms,
            expiry_ms=config.transactional_id_expiration_ms,
        )


# --- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """InitProducerId with a transactional id.

    ``producer_id`` and ``producer_epoch`` are what the producer has, from version 3 on.
    ``fresh_producer_id`` was never given to anybody; it is spent whether it is needed or not.
    """

    token: Token
    version: int
    timeout_ms: int
    fresh_producer_id: int
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn, of partitions that exist."""

    token: Token
    version: int
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """AddOffsetsToTxn: offsets of this group will come."""

    token: Token
    version: int
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOffsets:
    """TxnOffsetCommit, after the group has agreed (``Groups.check_txn_commit``)."""

    token: Token
    version: int
    producer_id: int
    producer_epoch: int
    group_id: str
    offsets: tuple[PartitionOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """EndTxn."""

    token: Token
    version: int
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """What ``WriteMarkers`` asked for is durable in every partition."""


@dataclass(frozen=True, slots=True)
class MarkersFailed:
    """Some marker could not be written; the others may have been."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to look at deadlines; early or spare ticks do no harm."""


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
    """The answer to ``InitProducer``."""

    code: Code = Code.NONE
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class TxnReply:
    """The answer to every other request; one code for all it named."""

    code: Code = Code.NONE


# --- instructions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request behind the token."""

    token: Token
    answer: InitReply | TxnReply


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the id's transaction record durable and move these groups' cursors, in one step."""

    state: TransactionRecord
    cursors: tuple[StagedOffsets, ...] = ()

    __match_args__ = ("txn_record", "cursors")

    @property
    def txn_record(self) -> dict[str, Any]:
        """As JSON can hold it; ``Transaction.restore`` takes it back. Long where it is large."""
        return encode_transaction_record(self.state)


@dataclass(frozen=True, slots=True)
class Erase:
    """Remove the id's transaction record durably."""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write a commit or abort marker of this producer to each partition, and report back."""

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send a ``Tick`` once this time has come; replaces what was set before."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The id is gone; cancel its timer."""


Instruction = Reply | Persist | Erase | WriteMarkers | SetTimer | Forget
