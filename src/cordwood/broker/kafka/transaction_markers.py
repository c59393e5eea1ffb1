"""WriteTxnMarkers: ends a transaction in the partitions that an operator names.

In Kafka the transaction coordinator sends these requests to other brokers, and admin clients use
them to abort a hanging transaction: one that is open in a partition but unknown to the coordinator.
Here the coordinator is in this process and writes its markers itself. A transaction that it still
knows is aborted through it, in all its partitions, so that no transaction is ever cut in two.
"""

from __future__ import annotations

from cordwood.broker.kafka.transaction_coordinator import (
    COORDINATOR_EPOCH,
    TransactionCoordinator,
)
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.decide.instructions import CodeReply
from cordwood.decide.transactions.messages import EndTransaction
from cordwood.decide.transactions.record import TransactionState
from cordwood.errors import CordwoodError
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.partitions import PartitionResult, TopicResults
from cordwood.protocol.kafka.messages.transactions import (
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenTxnMarker,
)


class KafkaTransactionMarkers:
    """The handler of one API."""

    def __init__(self, topics: TopicService, coordinator: TransactionCoordinator) -> None:
        self._topics = topics
        self._coordinator = coordinator

    async def write_txn_markers(
        self, request: WriteTxnMarkersRequest, version: int, _session: Session
    ) -> WriteTxnMarkersResponse:
        """Write the markers one after the other; each partition has its own result."""
        turns = RequestSlices()
        return WriteTxnMarkersResponse(
            [
                WrittenTxnMarker(marker.producer_id, await self._write(marker, version, turns))
                async for marker in turns.of(request.markers)
            ]
        )

    async def _write(
        self, marker: TxnMarker, version: int, turns: RequestSlices
    ) -> list[TopicResults]:
        async def write(topic: str, number: int) -> PartitionResult:
            return PartitionResult(
                number, await self._end(marker, TopicPartition(topic, number), version)
            )

        return await turns.await_topics(marker.topics, TopicResults, write)

    async def _end(self, marker: TxnMarker, tp: TopicPartition, version: int) -> Code:
        for transactional_id, known in self._coordinator.transactions.listing(
            producer_ids=(marker.producer_id,)
        ):
            if tp in known.partitions:
                return await self._end_known(transactional_id, known.state, marker, version)
        try:
            partition = await self._topics.open_partition(tp.topic, tp.partition)
            await self._coordinator.append_marker(
                partition,
                commit=marker.committed,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                # a higher epoch would make the partition refuse the coordinator's own markers
                coordinator_epoch=min(marker.coordinator_epoch, COORDINATOR_EPOCH),
            )
        except CordwoodError as error:
            return Code(error.code)
        return Code.NONE

    async def _end_known(
        self, transactional_id: str, state: TransactionState, marker: TxnMarker, version: int
    ) -> Code:
        """Abort the whole transaction; only its producer may commit it."""
        if state is not TransactionState.ONGOING:
            return Code.CONCURRENT_TRANSACTIONS  # its own markers are being written
        if marker.committed:
            return Code.INVALID_TXN_STATE
        answer: CodeReply = await self._coordinator.ask(
            transactional_id,
            lambda token: EndTransaction(
                token=token,
                version=version,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                commit=False,
            ),
        )
        return answer.code
