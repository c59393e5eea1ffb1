"""One transactional id: ``handle(event, now_ms)`` returns the instructions to execute.

The rules are Kafka's before transactions version 2, with two differences:

- an EndTxn is answered after the markers are written, so a commit is readable once the client is
  told of it, and the client's next transaction need not wait;
- a producer whose epoch is already over cannot abort its successor's open transaction by asking for
  a new epoch; it is fenced.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from cordwood.codes import Code
from cordwood.decide.instructions import CodeReply, Forget, Reply, SetTimer, Tick, Token
from cordwood.decide.transactions import messages as m
from cordwood.decide.transactions.record import (
    PREPARED,
    StagedOffsets,
    TransactionRecord,
    TransactionState,
    parse_transaction_record,
)
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, TopicPartition

_FENCED_VERSION = {m.InitProducer: 4, m.AddPartitions: 2, m.AddOffsets: 2, m.EndTransaction: 2}
_ABORTABLE_VERSION = 4  # TxnOffsetCommit version from which clients know TRANSACTION_ABORTABLE

_BEFORE = {
    TransactionState.EMPTY: {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    },
    TransactionState.ONGOING: {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    },
    TransactionState.PREPARE_COMMIT: {TransactionState.ONGOING},
    TransactionState.PREPARE_ABORT: {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: {TransactionState.PREPARE_COMMIT},
    TransactionState.COMPLETE_ABORT: {TransactionState.PREPARE_ABORT},
    TransactionState.DEAD: {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    },
}


class Transaction:
    """The state machine of one transactional id."""

    def __init__(
        self, settings: m.TransactionSettings, txn_record: TransactionRecord | None = None
    ) -> None:
        """Create a new id; use ``restore`` for a stored one."""
        self.txn_record = txn_record or TransactionRecord()
        self._settings = settings
        self._end_token: Token | None = None  # waits for the markers
        self._retry_ms: int | None = None

    @classmethod
    def restore(
        cls, settings: m.TransactionSettings, txn_record: dict[str, Any]
    ) -> tuple[Transaction, list[m.Instruction]]:
        """Restore an id from its last ``Persist``, with the instructions to continue from there."""
        transaction = cls(settings, parse_transaction_record(txn_record))
        if transaction.txn_record.state in PREPARED:
            return transaction, [transaction._markers()]
        return transaction, transaction._arm()

    def handle(self, event: m.Event, now_ms: int) -> list[m.Instruction]:
        """Process one event; execute the returned instructions in order."""
        match event:
            case m.InitProducer():
                return self._init(event, now_ms)
            case m.AddPartitions():
                return self._add_partitions(event, now_ms)
            case m.AddOffsets():
                return self._add_offsets(event, now_ms)
            case m.StageOffsets():
                return self._stage_offsets(event, now_ms)
            case m.EndTransaction():
                return self._end(event, now_ms)
            case m.MarkersWritten():
                return self._complete(now_ms)
            case m.MarkersFailed():
                return self._postpone(now_ms)
            case Tick():
                return self._tick(now_ms)

    def verify(
        self, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> Code:
        """Whether a transactional batch may be appended to the partitions now; changes nothing."""
        code = self._check_producer(producer_id, producer_epoch)
        if code:
            return code
        ongoing = self.txn_record.state is TransactionState.ONGOING
        if not ongoing or not self.txn_record.partitions.issuperset(partitions):
            return Code.INVALID_TXN_STATE
        return Code.NONE

    def is_staged(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether the group's offset there depends on this transaction."""
        return any(
            each.group_id == group_id and any(kept.partition == partition for kept in each.offsets)
            for each in self.txn_record.staged
        )

    # --- producer epochs --------------------------------------------------------------------

    def _init(self, init: m.InitProducer, now_ms: int) -> list[m.Instruction]:
        txn_record = self.txn_record
        if not 0 < init.timeout_ms <= self._settings.timeout_ms_max:
            return self._refuse_init(init, Code.INVALID_TRANSACTION_TIMEOUT)
        if not self._is_heir(init):
            return self._refuse_init(init, Code.PRODUCER_FENCED)
        if txn_record.state in PREPARED:
            return self._refuse_init(init, Code.CONCURRENT_TRANSACTIONS)
        if txn_record.state is TransactionState.ONGOING:
            if init.producer_id != NO_PRODUCER and init.producer_epoch != txn_record.producer_epoch:
                return self._refuse_init(init, Code.PRODUCER_FENCED)
            refusal = self._refuse_init(init, Code.CONCURRENT_TRANSACTIONS)
            return self._fence(now_ms) + refusal
        return self._give_epoch(init, now_ms)

    def _is_heir(self, init: m.InitProducer) -> bool:
        """Whether the claimed producer id is, or last was, the one of this transactional id."""
        txn_record = self.txn_record
        if NO_PRODUCER in (init.producer_id, txn_record.producer_epoch):
            return True
        is_rotated = init.producer_id == txn_record.previous_producer_id
        had_last_epoch = TransactionRecord(producer_epoch=init.producer_epoch).is_exhausted
        return init.producer_id == txn_record.producer_id or (is_rotated and had_last_epoch)

    def _give_epoch(self, init: m.InitProducer, now_ms: int) -> list[m.Instruction]:
        txn_record = self.txn_record
        says_epoch = init.producer_id != NO_PRODUCER
        is_current = init.producer_epoch == txn_record.producer_epoch
        producer_id, epoch = txn_record.producer_id, txn_record.producer_epoch + 1
        last_epoch = txn_record.producer_epoch if says_epoch else NO_PRODUCER
        if txn_record.producer_epoch == NO_PRODUCER:
            producer_id = init.fresh_producer_id
        elif txn_record.is_exhausted and (is_current or not says_epoch):
            producer_id, epoch = init.fresh_producer_id, 0
        elif says_epoch and not is_current:
            if init.producer_epoch != txn_record.last_epoch:
                return self._refuse_init(init, Code.PRODUCER_FENCED)
            # it repeats a request whose reply it did not receive
            epoch, last_epoch = txn_record.producer_epoch, txn_record.last_epoch
        has_new_id = producer_id != txn_record.producer_id
        persist = self._move(
            TransactionRecord(
                state=TransactionState.EMPTY,
                producer_id=producer_id,
                producer_epoch=epoch,
                last_epoch=last_epoch,
                previous_producer_id=(
                    txn_record.producer_id if has_new_id else txn_record.previous_producer_id
                ),
                timeout_ms=init.timeout_ms,
                updated_ms=now_ms,
            )
        )
        return [
            persist,
            Reply(init.token, m.InitReply(Code.NONE, producer_id, epoch)),
            *self._arm(),
        ]

    def _refuse_init(self, init: m.InitProducer, code: Code) -> list[m.Instruction]:
        return [Reply(init.token, m.InitReply(_known_code(init, code)))]

    # --- partitions and offsets -------------------------------------------------------------

    def _add_partitions(self, add: m.AddPartitions, now_ms: int) -> list[m.Instruction]:
        code = self._check_open(add.producer_id, add.producer_epoch)
        is_known = self.txn_record.partitions.issuperset(add.partitions)
        if code or (is_known and self.txn_record.state is TransactionState.ONGOING):
            return _refuse(add, code)
        partitions = self.txn_record.partitions | add.partitions
        return self._go_on(add, replace(self.txn_record, partitions=partitions), now_ms)

    def _add_offsets(self, add: m.AddOffsets, now_ms: int) -> list[m.Instruction]:
        code = self._check_open(add.producer_id, add.producer_epoch)
        is_known = add.group_id in self.txn_record.groups
        if code or (is_known and self.txn_record.state is TransactionState.ONGOING):
            return _refuse(add, code)
        groups = self.txn_record.groups | {add.group_id}
        return self._go_on(add, replace(self.txn_record, groups=groups), now_ms)

    def _stage_offsets(self, stage: m.StageOffsets, now_ms: int) -> list[m.Instruction]:
        code = self._check_open(stage.producer_id, stage.producer_epoch)
        ongoing = self.txn_record.state is TransactionState.ONGOING
        if not code and not (ongoing and stage.group_id in self.txn_record.groups):
            knows = stage.version >= _ABORTABLE_VERSION
            code = Code.TRANSACTION_ABORTABLE if knows else Code.INVALID_TXN_STATE
        if code:
            return _refuse(stage, code)
        staged = self.txn_record.stage(stage.group_id, stage.offsets)
        return self._go_on(stage, replace(self.txn_record, staged=staged), now_ms)

    def _check_producer(self, producer_id: int, producer_epoch: int) -> Code:
        txn_record = self.txn_record
        if producer_id == NO_PRODUCER or producer_id != txn_record.producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != txn_record.producer_epoch:
            return Code.PRODUCER_FENCED
        return Code.NONE

    def _check_open(self, producer_id: int, producer_epoch: int) -> Code:
        code = self._check_producer(producer_id, producer_epoch)
        if not code and self.txn_record.state in PREPARED:
            return Code.CONCURRENT_TRANSACTIONS
        return code

    def _go_on(
        self, request: m.Request, txn_record: TransactionRecord, now_ms: int
    ) -> list[m.Instruction]:
        """Open the transaction, or continue it, with what the request added."""
        is_first = self.txn_record.state is not TransactionState.ONGOING
        started_ms = now_ms if is_first else txn_record.started_ms
        persist = self._move(
            replace(
                txn_record, state=TransactionState.ONGOING, started_ms=started_ms, updated_ms=now_ms
            )
        )
        timer = self._arm() if is_first else []
        return [persist, Reply(request.token, CodeReply()), *timer]

    # --- commit and abort -------------------------------------------------------------------

    def _end(self, end: m.EndTransaction, now_ms: int) -> list[m.Instruction]:
        code = self._check_producer(end.producer_id, end.producer_epoch)
        if code:
            return _refuse(end, code)
        if self.txn_record.state is TransactionState.ONGOING:
            self._end_token = end.token
            return self._prepare(self.txn_record, commit=end.commit, now_ms=now_ms)
        wanted = {
            TransactionState.COMPLETE_COMMIT: (True, Code.NONE),
            TransactionState.COMPLETE_ABORT: (False, Code.NONE),
            TransactionState.PREPARE_COMMIT: (True, Code.CONCURRENT_TRANSACTIONS),
            TransactionState.PREPARE_ABORT: (False, Code.CONCURRENT_TRANSACTIONS),
        }
        was_commit, code = wanted.get(self.txn_record.state, (None, Code.NONE))
        return _refuse(end, code if was_commit is end.commit else Code.INVALID_TXN_STATE)

    def _fence(self, now_ms: int) -> list[m.Instruction]:
        """Abort under an epoch that no producer has, so the current producer is fenced."""
        epoch = self.txn_record.producer_epoch + 1
        txn_record = replace(self.txn_record, producer_epoch=epoch, last_epoch=NO_PRODUCER)
        return self._prepare(txn_record, commit=False, now_ms=now_ms)

    def _prepare(
        self, txn_record: TransactionRecord, *, commit: bool, now_ms: int
    ) -> list[m.Instruction]:
        """Persist the decision, then write the markers."""
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        persist = self._move(replace(txn_record, state=state, updated_ms=now_ms))
        if txn_record.partitions:
            return [persist, self._markers()]
        return self._complete(now_ms)  # no partition to mark: complete at once

    def _complete(self, now_ms: int) -> list[m.Instruction]:
        txn_record = self.txn_record
        assert txn_record.state in PREPARED, (
            f"markers written for a transaction that is {txn_record.state}"
        )
        commit = txn_record.state is TransactionState.PREPARE_COMMIT
        self._retry_ms = None
        persist = self._move(
            replace(
                txn_record,
                state=(
                    TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
                ),
                updated_ms=now_ms,
                started_ms=NO_TIMESTAMP,
                partitions=frozenset(),
                groups=frozenset(),
                staged=(),
            ),
            cursors=txn_record.staged if commit else (),
        )
        return [persist, *self._answer_end(), *self._arm()]

    def _postpone(self, now_ms: int) -> list[m.Instruction]:
        """Retry the markers later; answer the client now, as the decision is already durable."""
        assert self.txn_record.state in PREPARED
        self._retry_ms = now_ms + self._settings.retry_ms
        return [*self._answer_end(), SetTimer(self._retry_ms)]

    def _answer_end(self) -> list[m.Instruction]:
        token, self._end_token = self._end_token, None
        return [] if token is None else [Reply(token, CodeReply())]

    def _markers(self) -> m.WriteMarkers:
        txn_record = self.txn_record
        commit = txn_record.state is TransactionState.PREPARE_COMMIT
        partitions = tuple(sorted(txn_record.partitions))
        return m.WriteMarkers(txn_record.producer_id, txn_record.producer_epoch, commit, partitions)

    # --- timers -----------------------------------------------------------------------------

    def _tick(self, now_ms: int) -> list[m.Instruction]:
        if self._retry_ms is not None and self._retry_ms <= now_ms:
            self._retry_ms = None
            return [self._markers()]
        due_ms = self._due_ms()
        if due_ms is None or now_ms < due_ms:
            return self._arm()
        if self.txn_record.state is TransactionState.ONGOING:
            return self._fence(now_ms)
        self._move(replace(self.txn_record, state=TransactionState.DEAD))
        return [m.Erase(), Forget()]

    def _due_ms(self) -> int | None:
        """When to time out a transaction, retry markers or forget an idle id; None for never."""
        if self._retry_ms is not None:
            return self._retry_ms
        if self.txn_record.state is TransactionState.ONGOING:
            return self.txn_record.started_ms + self.txn_record.timeout_ms
        if self.txn_record.state in PREPARED or self.txn_record.state is TransactionState.DEAD:
            return None
        return self.txn_record.updated_ms + self._settings.expiry_ms

    def _arm(self) -> list[m.Instruction]:
        due_ms = self._due_ms()
        return [] if due_ms is None else [SetTimer(due_ms)]

    def _move(
        self, txn_record: TransactionRecord, cursors: tuple[StagedOffsets, ...] = ()
    ) -> m.Persist:
        assert self.txn_record.state in _BEFORE[txn_record.state], (
            f"{self.txn_record.state} → {txn_record.state}"
        )
        self.txn_record = txn_record
        return m.Persist(txn_record, cursors)


def _refuse(request: m.Request, code: Code) -> list[m.Instruction]:
    return [Reply(request.token, CodeReply(_known_code(request, code)))]


def _known_code(request: m.Request, code: Code) -> Code:
    """The code in a form that clients of this request version know."""
    if code is not Code.PRODUCER_FENCED:
        return code
    knows_from = _FENCED_VERSION.get(type(request))
    if knows_from is None or request.version < knows_from:
        return Code.INVALID_PRODUCER_EPOCH
    return code
