"""Produce: appends batches as they arrive; returns offsets once they are as durable as promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, NamedTuple

from cordwood.batch.header import CODEC_BITS, CRC_START, HEADER_BYTES, Buffer
from cordwood.broker.kafka.transaction_check import TransactionCheck
from cordwood.broker.produce import ProduceService
from cordwood.broker.session import Session
from cordwood.broker.time_slices import TURN_ITEMS, RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.config import MIB
from cordwood.errors import (
    CordwoodError,
    InvalidRecord,
    InvalidTimestamp,
    NotEnoughReplicas,
    RecordError,
    RequestError,
    UnsupportedCompression,
)
from cordwood.log.write.partition import Outcome, Partition
from cordwood.model import Codec
from cordwood.protocol.kafka.messages import produce as m

_NO_OFFSET: Final = -1
_ZSTD_VERSION: Final = 7
LOOP_BYTES: Final = 2 * MIB  # of one request, checked on the event loop; a thread checks the rest
_ALL: Final = -1
_ACKS: Final = {_ALL, 0, 1}  # with one broker, its own durable copy satisfies all of them


class InvalidAcks(RequestError):
    """``acks`` is 0, 1 or all (-1)."""

    code, name = Code.INVALID_REQUIRED_ACKS, "INVALID_ACKS"


class KafkaProduce:
    """The handler of one API."""

    def __init__(
        self, topics: TopicService, produce: ProduceService, transactions: TransactionCheck
    ) -> None:
        self._topics = topics
        self._produce = produce
        self._transactions = transactions

    def produce(
        self, request: m.ProduceRequest, version: int, _session: Session
    ) -> Awaitable[m.ProduceResponse | None]:
        """Append the batches of a request.

        If this returns a future, every batch is already with the writer or queued in order. A task
        is still submitting them: a request with many partitions yields to the event loop in
        between.
        """
        answers = _Answers(request)
        if answers.is_large:
            return asyncio.ensure_future(self._produce_in_turns(request, version, answers))
        left_bytes = LOOP_BYTES
        for at_topic, topic in enumerate(request.topics):
            for at_part, part in enumerate(topic.partitions):
                place = _Place(at_topic, at_part, version, left_bytes > 0)
                left_bytes -= self._begin(request, topic, part, answers, place)
        answers.settle()
        return answers.future

    async def _produce_in_turns(
        self, request: m.ProduceRequest, version: int, answers: _Answers
    ) -> m.ProduceResponse | None:
        left_bytes = LOOP_BYTES
        turns = RequestSlices()
        async for at_topic, topic in turns.of(enumerate(request.topics)):
            async for at_part, part in turns.of(enumerate(topic.partitions)):
                place = _Place(at_topic, at_part, version, left_bytes > 0)
                left_bytes -= self._begin(request, topic, part, answers, place)
        answers.settle()
        await answers.future
        return await answers.response(turns) if request.acks else None

    def _begin(
        self,
        request: m.ProduceRequest,
        topic: m.ProduceTopic,
        part: m.ProducePartition,
        answers: _Answers,
        place: _Place,
    ) -> int:
        """Check and append one partition's batch; returns its size in bytes."""
        number, records = part
        try:
            if request.acks not in _ACKS:
                raise InvalidAcks(f"acks is {request.acks}; use 0, 1 or -1 (all)")
            if place.version >= m.TOPIC_ID_VERSION:
                partition = self._topics.get_by_id(topic.topic_id).partition(number)
            else:
                partition = self._topics.get(topic.name).partition(number)
            if not records:
                raise InvalidRecord(f"no record batch for {partition.tp}")
            if place.version < _ZSTD_VERSION:
                _refuse_zstd(records, place.version)
            if request.acks == _ALL:
                _check_in_sync(partition)

            def done(outcome: Outcome) -> None:
                answers.put(place, _produced(partition, number, outcome))

            admit = partial(self._transactions.admit, request.transactional_id, partition.tp)
            self._produce.append_then(
                partition, records, done, admit=admit, is_for_loop=place.is_for_loop
            )
        except CordwoodError as error:
            answers.put(place, _refused(number, error))
        return len(records or b"")


class _Place(NamedTuple):
    """The position of a partition in its request, and how to check its batch."""

    topic: int
    partition: int
    version: int
    is_for_loop: bool


def _refuse_zstd(records: Buffer, version: int) -> None:
    """Refuse zstd in a version older than the codec; consumers that old could not read it."""
    if len(records) >= HEADER_BYTES and records[CRC_START + 1] & CODEC_BITS == Codec.ZSTD.value:
        raise UnsupportedCompression(
            f"Produce version {version} does not support zstd; use a client that sends version "
            f"{_ZSTD_VERSION} or later, or another codec"
        )


def _check_in_sync(partition: Partition) -> None:
    """Refuse acks=all on a topic that asks for more replicas than this broker, the only one."""
    if partition.config.min_insync_replicas > 1:
        raise NotEnoughReplicas(
            f"{partition.tp} has 1 replica in sync, and min.insync.replicas is "
            f"{partition.config.min_insync_replicas}; set it to 1, or send with acks=1"
        )


class _Answers:
    """Collects the outcome of each batch of one request; the last one completes the future.

    For a large request the future only signals completion; ``response`` builds the reply in slices.
    """

    def __init__(self, request: m.ProduceRequest) -> None:
        self.future: asyncio.Future[m.ProduceResponse | None]
        self.future = asyncio.get_running_loop().create_future()
        self._request = request
        self._found: dict[tuple[int, int], m.ProducedPartition] = {}  # by position
        count = 0
        for topic in request.topics:  # faster than a generator for the usual single topic
            count += len(topic.partitions)
        self.is_large = len(request.topics) + count > TURN_ITEMS
        self._missing = 1 + count

    def put(self, place: _Place, answer: m.ProducedPartition) -> None:
        """Store the answer for the partition at this position of the request."""
        self._found[place.topic, place.partition] = answer
        self.settle()

    def settle(self) -> None:
        """Count down by one: for each partition, and once when all batches are submitted."""
        self._missing -= 1
        if self._missing or self.future.done():
            return
        is_answered = self._request.acks and not self.is_large
        self.future.set_result(self._response() if is_answered else None)

    def _response(self) -> m.ProduceResponse:
        topics = [
            m.ProducedTopic(
                topic.name,
                topic.topic_id,
                [self._found[at_topic, at] for at in range(len(topic.partitions))],
            )
            for at_topic, topic in enumerate(self._request.topics)
        ]
        return m.ProduceResponse(topics)

    async def response(self, turns: RequestSlices) -> m.ProduceResponse:
        """Return the reply to a large request, once the future is done."""
        return m.ProduceResponse(
            [
                m.ProducedTopic(
                    topic.name,
                    topic.topic_id,
                    [self._found[at, n] async for n in turns.of(range(len(topic.partitions)))],
                )
                async for at, topic in turns.of(enumerate(self._request.topics))
            ]
        )


def _produced(partition: Partition, number: int, outcome: Outcome) -> m.ProducedPartition:
    if isinstance(outcome, CordwoodError):
        return _refused(number, outcome)
    by_broker = partition.config.message_timestamp_type == "LogAppendTime"
    return m.ProducedPartition(
        partition=number,
        error_code=Code.NONE,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.append_ms if by_broker else _NO_OFFSET,
        log_start_offset=partition.log_start_offset,
    )


def _refused(number: int, error: CordwoodError) -> m.ProducedPartition:
    """Return the refusal of a batch; it names the records at fault, so the rest can be resent."""
    record_errors: Sequence[RecordError] = ()
    if isinstance(error, InvalidRecord | InvalidTimestamp):
        record_errors = error.record_errors
    return m.ProducedPartition(
        partition=number,
        error_code=error.code,
        base_offset=_NO_OFFSET,
        record_errors=[m.ProduceRecordError(*each) for each in record_errors],
        error_message=str(error),
    )
