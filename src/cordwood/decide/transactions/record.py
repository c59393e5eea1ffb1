"""The state of a transactional id that survives a crash: a frozen value and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from cordwood.decide.offsets import PartitionOffset
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, TopicPartition

_EPOCH_MAX = 2**15 - 1


class TransactionState(StrEnum):
    """The state of an id; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})


class StagedOffsets(NamedTuple):
    """Offsets of one group that take effect only if the transaction commits."""

    group_id: str
    offsets: tuple[PartitionOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """One transactional id: its producer, and its open or last transaction."""

    state: TransactionState = TransactionState.EMPTY
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER
    last_epoch: int = NO_PRODUCER  # the previous epoch, if the same producer asked for the new one
    previous_producer_id: int = NO_PRODUCER
    timeout_ms: int = 0
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = 0
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()  # groups announced by AddOffsetsToTxn
    staged: tuple[StagedOffsets, ...] = ()

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left to assign; the last one is reserved for fencing."""
        return self.producer_epoch >= _EPOCH_MAX - 1

    def stage(
        self, group_id: str, offsets: tuple[PartitionOffset, ...]
    ) -> tuple[StagedOffsets, ...]:
        """The staged offsets with these added; the latest offset of a partition wins."""
        by_group = {each.group_id: each.offsets for each in self.staged}
        by_partition = {each.partition: each for each in (*by_group.get(group_id, ()), *offsets)}
        by_group[group_id] = tuple(by_partition.values())
        return tuple(StagedOffsets(group_id, kept) for group_id, kept in by_group.items())


def encode_transaction_record(txn_record: TransactionRecord) -> dict[str, Any]:
    """The record as plain JSON values; a staged offset names its topic and partition inline."""
    values: dict[str, Any] = msgspec.to_builtins(txn_record)
    return values | {
        "partitions": [list(each) for each in sorted(txn_record.partitions)],
        "groups": sorted(txn_record.groups),
        "staged": [
            [group_id, [[*each.partition, *each[1:]] for each in offsets]]
            for group_id, offsets in txn_record.staged
        ],
    }


def parse_transaction_record(values: Mapping[str, Any]) -> TransactionRecord:
    """The inverse of ``encode_transaction_record``."""
    staged = [
        (group_id, [((topic, number), *others) for topic, number, *others in offsets])
        for group_id, offsets in values["staged"]
    ]
    return msgspec.convert({**values, "staged": staged}, TransactionRecord)
