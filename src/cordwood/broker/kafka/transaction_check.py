"""Checks before an append that a transactional batch belongs to an open transaction.

A batch that was in flight when its transaction ended would otherwise begin another transaction that
nobody ends, and hold back every ``read_committed`` reader of the partition for good. So the check
runs on the event loop, in the same step that submits the batch to the writer.
"""

from __future__ import annotations

from cordwood.batch.header import TRANSACTIONAL_BIT, BatchHeader
from cordwood.broker.kafka.transaction_coordinator import TransactionCoordinator
from cordwood.codes import Code
from cordwood.errors import RequestError
from cordwood.model import TopicPartition


class TransactionRefused(RequestError):
    """The batch belongs to no open transaction of its producer."""

    code, name = Code.INVALID_TXN_STATE, "TRANSACTION_REFUSED"

    def __init__(self, text: str, code: Code = Code.INVALID_TXN_STATE) -> None:
        super().__init__(text)
        self.code = code  # type: ignore[misc]  # the coordinator chooses it


class TransactionCheck:
    """Checks batches against the transaction coordinator."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    def admit(self, transactional_id: str | None, tp: TopicPartition, header: BatchHeader) -> None:
        """Raise ``TransactionRefused`` unless the batch may be appended now."""
        if header.attributes & TRANSACTIONAL_BIT:
            code = self._verify(transactional_id, tp, header)
            if code:
                raise TransactionRefused(
                    f"{tp} is not part of an open transaction of this producer", code
                )

    def _verify(
        self, transactional_id: str | None, tp: TopicPartition, header: BatchHeader
    ) -> Code:
        if transactional_id is None:
            return Code.INVALID_TXN_STATE
        code = self._coordinator.transactions.verify(
            transactional_id, header.producer_id, header.producer_epoch, frozenset({tp})
        )
        # Producers know that error by its older name.
        return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED else code
