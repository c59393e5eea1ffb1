"""Requests for producer ids and transactions.

Requests become events of ``decide.transactions``, and its answers become replies. This module
checks what a transaction may touch: partitions must exist, and groups must accept the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

from cordwood.broker.kafka.commits import committed, has_partition, in_steps, offsets_of
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.broker.kafka.topic_patterns import STEPS_MAX
from cordwood.broker.kafka.transaction_coordinator import TransactionCoordinator
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices, once_each
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.instructions import CodeReply
from cordwood.decide.offsets import PartitionOffset
from cordwood.decide.re2 import Pattern, PatternError
from cordwood.decide.transactions.messages import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    Event,
    InitProducer,
    InitReply,
    StageOffsets,
)
from cordwood.decide.transactions.record import TransactionRecord, TransactionState
from cordwood.errors import CordwoodError
from cordwood.log.write.partition import Partition
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, TopicPartition
from cordwood.protocol.kafka.messages import transactions as m
from cordwood.protocol.kafka.messages.commits import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from cordwood.protocol.kafka.messages.partitions import (
    PartitionResult,
    TopicPartitions,
    TopicResults,
)

_NO_OFFSET = -1


class KafkaTransactions:
    """The handlers of eight APIs."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        topics: TopicService,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._coordinator = coordinator
        self._groups = groups

    async def init_producer_id(
        self, request: m.InitProducerIdRequest, version: int, _session: Session
    ) -> m.InitProducerIdResponse:
        """Return a producer id; for a transactional id, its own producer id in a new epoch."""
        try:
            fresh_id = await self._coordinator.new_producer_id()
        except CordwoodError:
            return m.InitProducerIdResponse(error_code=Code.COORDINATOR_NOT_AVAILABLE)
        if request.transactional_id is None:
            return m.InitProducerIdResponse(producer_id=fresh_id)
        answer: InitReply = await self._coordinator.ask(
            request.transactional_id,
            lambda token: InitProducer(
                token=token,
                version=version,
                timeout_ms=request.transaction_timeout_ms,
                fresh_producer_id=fresh_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            ),
        )
        return m.InitProducerIdResponse(
            error_code=answer.code,
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )

    # --- contents of a transaction ----------------------------------------------------------

    async def add_partitions_to_txn(
        self, request: m.AddPartitionsToTxnRequest, version: int, _session: Session
    ) -> m.AddPartitionsToTxnResponse:
        """Add partitions to the transaction, all or none."""
        turns = RequestSlices()
        asked = [
            TopicPartition(topic.name, number)
            async for topic in turns.of(request.topics)
            async for number in turns.of(topic.partitions)
        ]
        unknown = {each async for each in turns.of(asked) if not has_partition(self._topics, each)}
        code = Code.OPERATION_NOT_ATTEMPTED  # for existing partitions beside unknown ones
        if not unknown:
            code = await self._ask(request, version, AddPartitions, partitions=frozenset(asked))

        def added(topic: str, number: int) -> PartitionResult:
            is_unknown = TopicPartition(topic, number) in unknown
            return PartitionResult(number, Code.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else code)

        topics = await turns.map_topics(request.topics, TopicResults, added)
        return m.AddPartitionsToTxnResponse(topics=topics)

    async def _ask(
        self,
        request: m.AddPartitionsToTxnRequest
        | m.AddOffsetsToTxnRequest
        | TxnOffsetCommitRequest
        | m.EndTxnRequest,
        version: int,
        event: Callable[..., Event],
        **fields: Any,
    ) -> Code:
        """Handle an event of the request's producer; returns the code of the answer."""
        answer: CodeReply = await self._coordinator.ask(
            request.transactional_id,
            lambda token: event(
                token=token,
                version=version,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                **fields,
            ),
        )
        return answer.code

    async def add_offsets_to_txn(
        self, request: m.AddOffsetsToTxnRequest, version: int, _session: Session
    ) -> m.AddOffsetsToTxnResponse:
        """Add the offsets of a group to the transaction."""
        code = await self._ask(request, version, AddOffsets, group_id=request.group_id)
        return m.AddOffsetsToTxnResponse(error_code=code)

    async def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, version: int, _session: Session
    ) -> TxnOffsetCommitResponse:
        """Stage offsets that count if the transaction commits; the group is checked now."""
        turns = RequestSlices()
        offsets = await offsets_of(request.topics, turns)
        codes = {each.partition: self._check_offset(each) async for each in turns.of(offsets)}
        kept = [each async for each in turns.of(offsets) if not codes[each.partition]]
        for some in in_steps(kept) if kept else ():
            code = await self._stage(request, version, tuple(some))
            codes |= dict.fromkeys((each.partition for each in some), code)
        return TxnOffsetCommitResponse(topics=await committed(request.topics, codes, turns))

    def _check_offset(self, offset: PartitionOffset) -> Code:
        if not has_partition(self._topics, offset.partition):
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if offset.is_metadata_larger(self._config.offset_metadata_max_bytes):
            return Code.OFFSET_METADATA_TOO_LARGE
        return Code.NONE

    async def _stage(
        self, request: TxnOffsetCommitRequest, version: int, offsets: tuple[PartitionOffset, ...]
    ) -> Code:
        if not request.group_id:
            return Code.INVALID_GROUP_ID
        self._groups.adopt(request.group_id)
        code = self._groups.groups.check_txn_commit(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
        if code:
            return code
        fields = {"group_id": request.group_id, "offsets": offsets}
        return await self._ask(request, version, StageOffsets, **fields)

    async def end_txn(
        self, request: m.EndTxnRequest, version: int, _session: Session
    ) -> m.EndTxnResponse:
        """Commit or abort; answered when readers see the outcome."""
        code = await self._ask(request, version, EndTransaction, commit=request.committed)
        return m.EndTxnResponse(error_code=code)

    # --- administration ---------------------------------------------------------------------

    async def describe_producers(
        self, request: m.DescribeProducersRequest, _version: int, _session: Session
    ) -> m.DescribeProducersResponse:
        """Describe the producer state of partitions."""
        turns = RequestSlices()
        topics = [
            topic._replace(partitions=once_each(topic.partitions))
            async for topic in turns.of(request.topics)
        ]
        described = await turns.await_topics(topics, m.ProducersTopic, self._producers)
        return m.DescribeProducersResponse(topics=described)

    async def _producers(self, topic: str, number: int) -> m.ProducersPartition:
        try:
            partition = await self._topics.open_partition(topic, number)
            active = await self._topics.on_writer(lambda: _active_producers(partition))
        except CordwoodError as error:
            return m.ProducersPartition(number, error.code, str(error))
        return m.ProducersPartition(number, Code.NONE, None, active)

    async def describe_transactions(
        self, request: m.DescribeTransactionsRequest, _version: int, _session: Session
    ) -> m.DescribeTransactionsResponse:
        """Describe the state of transactional ids."""
        return m.DescribeTransactionsResponse(
            transactions=[
                _described(each, self._coordinator.transactions.describe(each))
                async for each in RequestSlices().of(once_each(request.transactional_ids))
            ]
        )

    async def list_transactions(
        self, request: m.ListTransactionsRequest, _version: int, _session: Session
    ) -> m.ListTransactionsResponse:
        """List the transactional ids that match every filter; durations match only running ones.

        A pattern matches a whole id, and one that costs too much is refused.
        """
        known = {state.value for state in TransactionState}
        unknown = [name for name in request.state_filters if name not in known]
        matches = self._coordinator.transactions.listing(
            request.state_filters, request.producer_id_filters
        )
        now_ms = self._clock.now_ms()
        running = [
            (name, txn_record)
            for name, txn_record in matches
            if _has_run_for(txn_record, request.duration_filter_ms, now_ms)
        ]
        try:
            names = await _matching([name for name, _ in running], request.transactional_id_pattern)
        except PatternError:
            return m.ListTransactionsResponse(error_code=Code.INVALID_REGULAR_EXPRESSION)
        listed = [
            m.ListedTransaction(name, txn_record.producer_id, txn_record.state.value)
            for name, txn_record in running
            if name in names
        ]
        return m.ListTransactionsResponse(unknown_state_filters=unknown, transactions=listed)


async def _matching(names: Sequence[str], text: str | None) -> Collection[str]:
    """Return the names that match the pattern as a whole; raises ``PatternError``."""
    if not text:
        return frozenset(names)
    pattern, found = Pattern(text), set()
    async for name in RequestSlices().of(names):
        if pattern.matches(name):
            found.add(name)
        if pattern.steps > STEPS_MAX:
            raise PatternError(f"the regular expression {text!r} is too costly to match")
    return found


def _active_producers(partition: Partition) -> list[m.ActiveProducer]:
    """Read the producer state; runs on the writer thread, which owns it."""
    return [
        m.ActiveProducer(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence(),
            last_timestamp_ms=producer.seen_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=_NO_OFFSET if begun is None else begun,
        )
        for producer_id, producer, begun in partition.producers.active()
    ]


def _has_run_for(txn_record: TransactionRecord, duration_ms: int, now_ms: int) -> bool:
    if duration_ms < 0:
        return True
    return txn_record.started_ms != NO_TIMESTAMP and now_ms - txn_record.started_ms > duration_ms


def _described(
    transactional_id: str, txn_record: TransactionRecord | None
) -> m.DescribedTransaction:
    if txn_record is None or txn_record.producer_id == NO_PRODUCER:
        return m.DescribedTransaction(Code.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    return m.DescribedTransaction(
        Code.NONE,
        transactional_id,
        txn_record.state.value,
        txn_record.timeout_ms,
        txn_record.started_ms,
        txn_record.producer_id,
        txn_record.producer_epoch,
        _by_topic(txn_record.partitions),
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Sequence[TopicPartitions]:
    return [
        TopicPartitions(name, [tp.partition for tp in group])
        for name, group in groupby(sorted(partitions), key=lambda tp: tp.topic)
    ]
