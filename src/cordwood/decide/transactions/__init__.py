"""Kafka's transactions: one state machine per transactional id, an event in, instructions out.

``TransactionDirectory`` is the directory a broker holds; ``Transaction`` is one id's machine;
``txn_record`` is the state that survives a crash, as a value; ``messages`` are events, replies and
instructions.

The life of an id, with Kafka's names::

    Empty ──add──▶ Ongoing ──end(commit)──▶ PrepareCommit ──markers written──▶ CompleteCommit
                      │                                                            │ add: Ongoing
                      └─end(abort), timeout, a newer producer──▶ PrepareAbort ──▶ CompleteAbort

Only while no transaction is open may a producer be given an epoch (``InitProducer``) or the id be
forgotten. A transaction's fate is sealed by the ``Persist`` of a Prepare state; from then on every
way, also through a crash, leads to its Complete state.

The caller carries instructions out strictly in order, one list of an id after the other:

- ``Persist`` is durable before the next instruction is begun. It carries the whole transaction
record and, when
  a transaction that committed offsets completes, the cursors to move; both become durable together
  or not at all, so no crash can move them twice.
- ``WriteMarkers`` is answered by the event ``MarkersWritten`` once the markers are durable in every
  partition named (one deleted meanwhile counts as marked), or ``MarkersFailed``. A marker may be
  written twice: to a partition where the producer has nothing open it must change nothing.
- If a ``Persist`` fails, memory is ahead of the disk: answer the tokens of what is left with
  ``COORDINATOR_NOT_AVAILABLE`` and restore the id from the last transaction record, as after a
  crash.

Never here: sockets, files, the clock, logging, chance. Time and producer ids come with the event.
"""

from cordwood.decide.transactions.directory import TransactionDirectory
from cordwood.decide.transactions.messages import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    Erase,
    Event,
    Forget,
    InitProducer,
    InitReply,
    Instruction,
    MarkersFailed,
    MarkersWritten,
    Persist,
    Reply,
    SetTimer,
    StageOffsets,
    Tick,
    TransactionSettings,
    TxnReply,
    WriteMarkers,
)
from cordwood.decide.transactions.record import StagedOffsets, TransactionRecord, TransactionState
from cordwood.decide.transactions.transaction import Transaction

__all__ = [
    "AddOffsets",
    "AddPartitions",
    "EndTransaction",
    "Erase",
    "Event",
    "Forget",
    "InitProducer",
    "InitReply",
    "Instruction",
    "MarkersFailed",
    "MarkersWritten",
    "Persist",
    "Reply",
    "SetTimer",
    "StageOffsets",
    "StagedOffsets",
    "Tick",
    "Transaction",
    "TransactionDirectory",
    "TransactionRecord",
    "TransactionSettings",
    "TransactionState",
    "TxnReply",
    "WriteMarkers",
]
