"""Before Produce: a transactional batch is taken only while its transaction is open here.

A batch that was on its way when its transaction ended would otherwise begin another that nobody
ends, and hold back every ``read_committed`` reader of the partition for good.
"""

from __future__ import annotations

from collections.abc import Awaitable

from cordwood.batch.header import BatchHeader, parse_header
from cordwood.broker.kafka.caller import Caller
from cordwood.broker.kafka.produce import KafkaProduce
from cordwood.broker.kafka.transaction_coordinator import TransactionCoordinator
from cordwood.decide.codes import Code
from cordwood.errors import CorruptBatch
from cordwood.model import TopicPartition
from cordwood.wire.kafka.messages.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

_NO_OFFSET = -1


class VerifiedProduce:
    """The handler of Produce, with the check in front."""

    def __init__(self, produce: KafkaProduce, coordinator: TransactionCoordinator) -> None:
        self._produce = produce
        self._coordinator = coordinator

    def produce(
        self, request: ProduceRequest, version: int, caller: Caller
    ) -> Awaitable[ProduceResponse | None]:
        """As ``KafkaProduce.produce``; batches are with the writer when this returns."""
        refused = {
            TopicPartition(topic.name, part.partition): code
            for topic in request.topics
            for part in topic.partitions
            if (code := self._check(request.transactional_id, topic.name, part))
        }
        if not refused:
            return self._produce.produce(request, version, caller)
        kept = [_without(topic, refused) for topic in request.topics]
        under_way = self._produce.produce(request._replace(topics=kept), version, caller)
        return _merged(request, under_way, refused)

    def _check(self, transactional_id: str | None, topic: str, part: ProducePartition) -> Code:
        header = _first_header(part)
        if header is None or not header.is_transactional:
            return Code.NONE  # whatever else is wrong with it is the produce desk's to say
        if transactional_id is None:
            return Code.INVALID_TXN_STATE
        code = self._coordinator.transactions.verify(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            frozenset({TopicPartition(topic, part.partition)}),
        )
        # Producers know that one by its older name.
        return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED else code


def _first_header(part: ProducePartition) -> BatchHeader | None:
    """A producer sends one batch for a partition; were there more, the first speaks for them."""
    try:
        return parse_header(part.records) if part.records else None
    except CorruptBatch:
        return None


def _without(topic: ProduceTopic, refused: dict[TopicPartition, Code]) -> ProduceTopic:
    kept = [
        part
        for part in topic.partitions
        if TopicPartition(topic.name, part.partition) not in refused
    ]
    return topic._replace(partitions=kept)


async def _merged(
    request: ProduceRequest,
    under_way: Awaitable[ProduceResponse | None],
    refused: dict[TopicPartition, Code],
) -> ProduceResponse | None:
    response = await under_way
    return response and response._replace(topics=_merge(request, response, refused))


def _merge(
    request: ProduceRequest, response: ProduceResponse, refused: dict[TopicPartition, Code]
) -> list[ProducedTopic]:
    """Every partition in the order of the request."""
    answers = {
        TopicPartition(topic.name, part.partition): part
        for topic in response.topics
        for part in topic.partitions
    }
    for tp, code in refused.items():
        text = f"{tp} is in no open transaction of this producer"
        answers[tp] = ProducedPartition(tp.partition, code, _NO_OFFSET, error_message=text)
    return [
        ProducedTopic(
            topic.name,
            [answers[TopicPartition(topic.name, part.partition)] for part in topic.partitions],
        )
        for topic in request.topics
    ]
