"""All transactional ids of a broker: finds or creates the one an event is for, and lists them.

It only dispatches and lists; the rules are in ``Transaction``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cordwood.codes import Code
from cordwood.decide.instructions import CodeReply, Forget, Reply, Tick
from cordwood.decide.transactions import messages as m
from cordwood.decide.transactions.record import TransactionRecord, TransactionState
from cordwood.decide.transactions.transaction import Transaction
from cordwood.model import TopicPartition


class TransactionDirectory:
    """The state machines by transactional id; ``handle`` looks up the id first."""

    def __init__(self, settings: m.TransactionSettings | None = None) -> None:
        """Start without ids; call ``restore`` for each record stored before a restart."""
        self._settings = settings or m.TransactionSettings()
        self._transactions: dict[str, Transaction] = {}

    def restore(self, transactional_id: str, txn_record: dict[str, Any]) -> list[m.Instruction]:
        """Restore an id from its last ``Persist``; replaces a state machine that is ahead of it."""
        transaction, instructions = Transaction.restore(self._settings, txn_record)
        self._transactions[transactional_id] = transaction
        return instructions

    def drop(self, transactional_id: str) -> None:
        """Forget an id whose very first ``Persist`` failed: there is nothing to restore it from."""
        self._transactions.pop(transactional_id, None)

    def handle(self, transactional_id: str, event: m.Event, now_ms: int) -> list[m.Instruction]:
        """Process one event for one id; execute the returned instructions in order."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None and isinstance(event, m.InitProducer):
            if not transactional_id:
                return [Reply(event.token, m.InitReply(Code.INVALID_REQUEST))]
            transaction = Transaction(self._settings)
        if transaction is None:
            return _answer_for_absent(transactional_id, event)
        instructions = transaction.handle(event, now_ms)
        if Forget() in instructions:
            del self._transactions[transactional_id]
        elif (
            transaction.txn_record.producer_id >= 0
        ):  # a refused first request leaves nothing behind
            self._transactions[transactional_id] = transaction
        return instructions

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> Code:
        """Whether a transactional batch may be appended to the partitions now."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return Code.INVALID_PRODUCER_ID_MAPPING
        return transaction.verify(producer_id, producer_epoch, partitions)

    def unstable(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """The partitions where the group's offset depends on an open transaction."""
        staging = [each for each in self._transactions.values() if each.txn_record.staged]
        return frozenset(
            partition
            for partition in partitions
            if any(each.is_staged(group_id, partition) for each in staging)
        )

    def describe(self, transactional_id: str) -> TransactionRecord | None:
        """The transaction record of one id, or ``None``."""
        transaction = self._transactions.get(transactional_id)
        return None if transaction is None else transaction.txn_record

    def listing(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[tuple[str, TransactionRecord]]:
        """All ids by name, or those in the given states and of the given producers."""
        wanted_states, wanted_ids = frozenset(states), frozenset(producer_ids)
        return [
            (transactional_id, transaction.txn_record)
            for transactional_id, transaction in sorted(self._transactions.items())
            if (not wanted_states or transaction.txn_record.state in wanted_states)
            and (not wanted_ids or transaction.txn_record.producer_id in wanted_ids)
        ]

    def count(self) -> dict[TransactionState, int]:
        """The number of ids in each state, for metrics."""
        counts = dict.fromkeys(TransactionState, 0)
        for transaction in self._transactions.values():
            counts[transaction.txn_record.state] += 1
        return counts


def _answer_for_absent(transactional_id: str, event: m.Event) -> list[m.Instruction]:
    if isinstance(event, Tick | m.MarkersWritten | m.MarkersFailed):
        return []  # the id was forgotten meanwhile
    assert not isinstance(event, m.InitProducer)
    code = Code.INVALID_PRODUCER_ID_MAPPING if transactional_id else Code.INVALID_REQUEST
    return [Reply(event.token, CodeReply(code))]
