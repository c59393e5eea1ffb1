"""Produce: batches to the log as they came, offsets back once they are as durable as promised."""

from __future__ import annotations

import asyncio
from typing import Final

from cordwood.broker.kafka.caller import Caller
from cordwood.broker.produce import ProduceDesk
from cordwood.broker.topics import TopicDesk
from cordwood.decide.codes import Code
from cordwood.errors import CordwoodError, InvalidRecord, RequestError
from cordwood.log.partition import Outcome, Partition
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

    def produce(
        self, request: ProduceRequest, _version: int, _caller: Caller
    ) -> asyncio.Future[ProduceResponse | None]:
        """Everything is with the writer when this returns, so order is the client's."""
        answers = _Answers(request)
        for at_topic, topic in enumerate(request.topics):
            for at_part, part in enumerate(topic.partitions):
                self._begin(request.acks, topic.name, part, answers, (at_topic, at_part))
        answers.settle()
        return answers.future

    def _begin(
        self,
        acks: int,
        topic: str,
        part: ProducePartition,
        answers: _Answers,
        place: tuple[int, int],
    ) -> None:
        try:
            if acks not in _ACKS:
                raise InvalidAcks(f"acks is {acks}; it takes 0, 1 or -1 (all)")
            if not part.records:
                raise InvalidRecord(f"no record batch for {topic}-{part.partition}")
            partition = self._topics.get(topic).partition(part.partition)

            def done(outcome: Outcome) -> None:
                answers.put(place, _produced(partition, part.partition, outcome))

            self._produce.append_then(partition, part.records, done)
        except CordwoodError as error:
            answers.put(place, _refused(part.partition, error))


class _Answers:
    """Gathers what became of each batch of one request; the last one ends the future."""

    def __init__(self, request: ProduceRequest) -> None:
        self.future: asyncio.Future[ProduceResponse | None]
        self.future = asyncio.get_running_loop().create_future()
        self._request = request
        self._found: dict[tuple[int, int], ProducedPartition] = {}
        self._missing = 1 + sum(len(topic.partitions) for topic in request.topics)

    def put(self, place: tuple[int, int], answer: ProducedPartition) -> None:
        """The answer for the partition at this place of the request."""
        self._found[place] = answer
        self.settle()

    def settle(self) -> None:
        """One fewer is missing: a partition, or the request's own last word that all are begun."""
        self._missing -= 1
        if self._missing or self.future.done():
            return
        self.future.set_result(self._response() if self._request.acks else None)

    def _response(self) -> ProduceResponse:
        topics = [
            ProducedTopic(
                topic.name, [self._found[at_topic, at] for at in range(len(topic.partitions))]
            )
            for at_topic, topic in enumerate(self._request.topics)
        ]
        return ProduceResponse(topics)


def _produced(partition: Partition, number: int, outcome: Outcome) -> ProducedPartition:
    if isinstance(outcome, CordwoodError):
        return _refused(number, outcome)
    by_broker = partition.config.message_timestamp_type == "LogAppendTime"
    return ProducedPartition(
        partition=number,
        error_code=Code.NONE,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.append_ms if by_broker else _NO_OFFSET,
        log_start_offset=partition.log_start_offset,
    )


def _refused(number: int, error: CordwoodError) -> ProducedPartition:
    return ProducedPartition(
        partition=number, error_code=error.code, base_offset=_NO_OFFSET, error_message=str(error)
    )
