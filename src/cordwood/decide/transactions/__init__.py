"""Kafka's transactions: one pure state machine per transactional id, events in, instructions out.

``TransactionDirectory`` holds all transactional ids of a broker; ``Transaction`` is the state
machine of one id; ``record`` defines the state that survives a crash, as a value; ``messages``
defines events, replies and instructions.

The states of an id, with Kafka's names::

    Empty ──add──▶ Ongoing ──end(commit)──▶ PrepareCommit ──markers written──▶ CompleteCommit
                      │                                                            │ add: Ongoing
                      └─end(abort), timeout, a newer producer──▶ PrepareAbort ──▶ CompleteAbort

A producer can get an epoch (``InitProducer``), or the id be forgotten, only while no transaction is
open. The ``Persist`` of a Prepare state decides the transaction; from then on it always reaches its
Complete state, even through a crash.

The caller executes instructions strictly in order, one list of an id after the other:

- ``Persist`` is durable before the next instruction starts. It carries the whole transaction record
  and, when a transaction with committed offsets completes, the cursors to move. Both become durable
  together or not at all, so no crash can move cursors twice.
- ``WriteMarkers`` is answered by the event ``MarkersWritten`` once the markers are durable in every
  named partition (a partition deleted meanwhile counts as marked), or by ``MarkersFailed``. A
  marker may be written twice: it must change nothing where the producer has no open transaction.
- If a ``Persist`` fails, memory is ahead of the disk: answer the remaining tokens with
  ``COORDINATOR_NOT_AVAILABLE`` and restore the id from the last transaction record, as after a
  crash.

Never here: sockets, files, the clock, logging, randomness. Time and producer ids come with the
event.
"""
