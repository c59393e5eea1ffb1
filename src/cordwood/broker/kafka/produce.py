"""Produce: batches to the log as they came, offsets back once they are as durable as promised."""

from __future__ import annotations

import asyncio
from typing import Final

from cordwood.broker.kafka.caller import Caller
from cordwood.broker.produce import ProduceDesk
from cordwood.broker.topics import TopicDesk
from cordwood.decide.codes import Code
from cordwood.errors import CordwoodError, InvalidRecord, RequestError
from cordwood.log.partition import Appended, Partition
from cordwood.wire.kafka.messages.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

_NO_OFFSET: Final = -1
_ACKS: Final = {-1, 0, 1}  # one broker: its own durable copy is all of them


class InvalidAcks(RequestError):
    """``acks`` is 0, 1 or all (-1)."""

    code, name = Code.INVALID_REQUIRED_ACKS, "INVALID_ACKS"


class KafkaProduce:
    """The handler of one API."""

    def __init__(self, topics: TopicDesk, produce: ProduceDesk) -> None:
        self._topics = topics
        self._produce = produce

    async def produce(
        self, request: ProduceRequest, _version: int, _caller: Caller
    ) -> ProduceResponse | None:
        """Everything is handed to the writer before the first await, so order is the client's."""
        under_way = [
            [(part.partition, self._begin(request, topic.name, part)) for part in topic.partitions]
            for topic in request.topics
        ]
        answered = []
        for topic, parts in zip(request.topics, under_way, strict=True):
            answers = [await _answer(number, append) for number, append in parts]
            answered.append(ProducedTopic(topic.name, answers))
        return ProduceResponse(answered) if request.acks else None

    def _begin(
        self, request: ProduceRequest, topic: str, part: ProducePartition
    ) -> tuple[Partition, asyncio.Future[Appended]] | CordwoodError:
        try:
            if request.acks not in _ACKS:
                raise InvalidAcks(f"acks is {request.acks}; it takes 0, 1 or -1 (all)")
            if not part.records:
                raise InvalidRecord(f"no record batch for {topic}-{part.partition}")
            partition = self._topics.get(topic).partition(part.partition)
            return partition, self._produce.append(partition, part.records)
        except CordwoodError as error:
            return error


async def _answer(
    number: int, append: tuple[Partition, asyncio.Future[Appended]] | CordwoodError
) -> ProducedPartition:
    if isinstance(append, CordwoodError):
        return _refused(number, append)
    partition, future = append
    try:
        appended = await future
    except CordwoodError as error:
        return _refused(number, error)
    by_broker = partition.config.message_timestamp_type == "LogAppendTime"
    return ProducedPartition(
        partition=number,
        error_code=Code.NONE,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_ms if by_broker else _NO_OFFSET,
        log_start_offset=partition.log_start_offset,
    )


def _refused(number: int, error: CordwoodError) -> ProducedPartition:
    return ProducedPartition(
        partition=number, error_code=error.code, base_offset=_NO_OFFSET, error_message=str(error)
    )
