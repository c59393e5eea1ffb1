"""Service for line commands: carries out each request and returns the bytes of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from cordwood.batch.kernels.loader import load_kernels_soon
from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.monitor import Monitor
from cordwood.broker.produce import ProduceService
from cordwood.broker.readers import ReaderService
from cordwood.broker.session import Session
from cordwood.broker.subscription import PartitionStream, TopicSubscription, read_committed
from cordwood.broker.topics import TopicService
from cordwood.config import BrokerConfig
from cordwood.errors import InvalidPartitions, RequestError
from cordwood.log.write.partition import Partition
from cordwood.model import Record, TopicPartition
from cordwood.protocol.api.readers import Drained, DrainReader
from cordwood.protocol.line import commands as c
from cordwood.protocol.line import replies
from cordwood.protocol.line.arguments import StartPosition, Target, encode_target
from cordwood.protocol.line.framing import Framing

DEFAULT_READER = "default"  # GET without a reader name: one cursor shared by all such clients


class CommandContext(NamedTuple):
    """What an answer depends on besides the command."""

    session: Session
    framing: Framing


@dataclass(slots=True)
class Getting:
    """The GETs of one reader on a topic: one at a time, and partitions in turn."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    next_partition: int = 0


NeedsPartition = c.GetStatus | c.Subscribe | c.Ack | c.Reset  # a seq is of one partition


class CommandService:
    """Answers every command but ``SUBSCRIBE``, which returns a stream (``subscribe``)."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicService,
        produce: ProduceService,
        readers: ReaderService,
        monitor: Monitor,
        notifier: AppendNotifier,
        status: Callable[[], Awaitable[bytes]],
        drain: Callable[[DrainReader], Awaitable[Drained]],
    ) -> None:
        self._config = config
        self._topics = topics
        self._produce = produce
        self._readers = readers
        self._monitor = monitor
        self._notifier = notifier
        self._status = status
        self._drain_reader = drain
        self._getting: dict[tuple[str, str], Getting] = {}
        self._next_put: dict[str, int] = {}  # by topic: whose turn it is, of several partitions
        self._answers: dict[type, Callable[[Any, CommandContext], Awaitable[bytes]]] = {
            c.GetAck: self._get_ack,
            c.GetStatus: self._get_status,
            c.Ack: self._ack,
            c.Register: self._register,
            c.Put: self._put,
            c.Get: self._get,
            c.State: self._state,
            c.Metrics: self._metrics,
            c.Readers: self._list_readers,
            c.Reset: self._reset,
            c.Remove: self._remove,
            c.Drain: self._drain,
            c.Configure: self._configure,
            c.Cut: self._cut,
            c.Reclaim: self._reclaim,
            c.Set: self._set,
            c.Help: self._help,
            c.Quit: self._quit,
        }

    async def answer(self, request: c.LineRequest, context: CommandContext) -> bytes:
        """Return the reply without its framing; raises ``CordwoodError``s."""
        return await self._answers[type(request)](request, context)

    async def subscribe(self, request: c.Subscribe, context: CommandContext) -> TopicSubscription:
        """Return a stream of encoded records, open until its ``end`` is called; may raise first."""
        partitions = await self._partitions(request.target)
        if isinstance(request.start, int):
            self._check_single(request, partitions)
        load_kernels_soon()
        topic = _topic(request.target)
        if request.reader is not None:
            await self._readers.register(topic, request.reader)
        is_labelled = len(partitions) > 1
        streams = [
            PartitionStream(
                partition,
                self._start_offset(partition, request),
                partition.tp.partition if is_labelled else None,
            )
            for partition in partitions
        ]
        whole = self._topics.get(topic) if isinstance(request.target, str) else None
        return TopicSubscription(streams, context.framing, self._notifier, whole=whole)

    def _start_offset(self, partition: Partition, request: c.Subscribe) -> int:
        if request.start is StartPosition.START:
            return partition.log_start_offset
        if isinstance(request.start, int):
            self._readers.check_present(partition, request.start - 1)
            return request.start - 1
        cursor = self._readers.position(partition.tp, request.reader) if request.reader else None
        return partition.high_watermark if cursor is None else cursor

    async def _partitions(self, target: Target | None) -> list[Partition]:
        """Return what a command addresses: one partition, or all of a topic in their order.

        None is the partition that ingress lines are written to.
        """
        target = target or TopicPartition(self._config.ingress_topic, 0)
        if isinstance(target, TopicPartition):
            return [await self._topics.open_partition(*target)]
        if self._topics.get(target).partition_count == 1:
            return [await self._topics.open_partition(target, 0)]
        topic = await self._topics.open_topic(target)
        return [topic.partition(number) for number in range(topic.partition_count)]

    async def _single(self, request: NeedsPartition) -> Partition:
        partitions = await self._partitions(request.target)
        self._check_single(request, partitions)
        return partitions[0]

    def _check_single(self, request: NeedsPartition, partitions: list[Partition]) -> None:
        """Raise if a seq could be of several partitions; the error shows how to name one."""
        if len(partitions) > 1:
            tp = partitions[0].tp
            form = c.encode_command(replace(request, target=tp)).decode()
            raise InvalidPartitions(
                f"{tp.topic} has {len(partitions)} partitions, each with a seq of its own; name "
                f"one, as in {form}"
            )

    # --- one method per command -----------------------------------------------------------

    async def _get_ack(self, request: c.GetAck, _: CommandContext) -> bytes:
        if request.target is None and self._config.ingress_topic not in self._topics.all():
            return replies.encode_ack(0)  # no line has arrived yet
        ends = [each.high_watermark for each in await self._partitions(request.target)]
        return replies.encode_ack(ends[0]) if len(ends) == 1 else replies.encode_acks(ends)

    async def _get_status(self, request: c.GetStatus, _: CommandContext) -> bytes:
        return self._readers.status(await self._single(request), request.seq - 1).encode()

    async def _ack(self, request: c.Ack, _: CommandContext) -> bytes:
        partition = await self._single(request)
        if request.seq > partition.high_watermark:
            raise RequestError(
                f"{encode_target(request.target)} ends at seq {partition.high_watermark}; "
                f"{request.seq} cannot be acknowledged yet"
            )
        await self._readers.advance(partition.tp, request.reader, request.seq)
        return replies.OK

    async def _register(self, request: c.Register, _: CommandContext) -> bytes:
        await self._topics.ensure(request.topic, explicit=True)
        if request.reader is not None:
            await self._readers.register(request.topic, request.reader)
        return replies.OK

    async def _put(self, request: c.Put, _: CommandContext) -> bytes:
        await self._produce.append_record(
            await self._put_partition(request.target), None, request.payload
        )
        return replies.OK

    async def _put_partition(self, target: Target) -> Partition:
        """Return the named partition, or else the next in turn that is not offline."""
        if isinstance(target, TopicPartition):
            return self._topics.get(target.topic).partition(target.partition)
        topic = await self._topics.ensure(target)
        choices = topic.held() if topic.partition_count > 1 else []
        if not choices:
            return topic.partition(0)
        turn = self._next_put.get(target, 0) % len(choices)
        self._next_put[target] = turn + 1
        return choices[turn]

    async def _get(self, request: c.Get, context: CommandContext) -> bytes:
        """Return the reader's next record; the lock keeps two GETs from taking the same one."""
        partitions = await self._partitions(request.target)
        topic, reader = _topic(request.target), request.reader or DEFAULT_READER
        getting = self._getting.setdefault((topic, reader), Getting())
        async with getting.lock:
            await self._readers.register(topic, reader)
            turn = getting.next_partition if len(partitions) > 1 else 0
            for partition in partitions[turn:] + partitions[:turn]:
                record = await self._next_record(partition, reader)
                if record is not None:
                    await self._readers.advance(partition.tp, reader, record.offset + 1)
                    if len(partitions) > 1:
                        getting.next_partition = partition.tp.partition + 1
                    return replies.encode_got(record.value, context.framing)
            return replies.EMPTY

    async def _next_record(self, partition: Partition, reader: str) -> Record | None:
        loop = asyncio.get_running_loop()
        offset = max(self._readers.position(partition.tp, reader) or 0, partition.log_start_offset)
        while offset < partition.last_stable_offset:
            records, offset = await loop.run_in_executor(None, read_committed, partition, offset, 1)
            if records:
                return records[0]
        return None

    async def _state(self, request: c.State, _: CommandContext) -> bytes:
        return replies.encode_json(self._topics.state(await self._partitions(request.target)))

    async def _metrics(self, _request: c.Metrics, _: CommandContext) -> bytes:
        return await self._status()

    async def _list_readers(self, request: c.Readers, _: CommandContext) -> bytes:
        for name in [request.topic] if request.topic else self._readers.topics():
            await self._topics.open_topic(name)
        rows = [msgspec.structs.asdict(row) for row in self._readers.rows(request.topic)]
        return replies.encode_json({"readers": rows})

    async def _reset(self, request: c.Reset, _: CommandContext) -> bytes:
        partitions = await self._partitions(request.target)
        if isinstance(request.to, int):
            self._check_single(request, partitions)
        offsets = {each.tp: _reset_offset(each, request.to) for each in partitions}
        for partition in partitions:
            self._readers.check_present(partition, offsets[partition.tp])
        await self._readers.reset_all(request.reader, offsets)
        return replies.OK

    async def _remove(self, request: c.Remove, _: CommandContext) -> bytes:
        await self._readers.remove(request.topic, request.reader)
        return replies.OK

    async def _drain(self, request: c.Drain, _: CommandContext) -> bytes:
        topics = () if request.topic is None else (request.topic,)
        drained = await self._drain_reader(DrainReader(request.reader, topics))
        return replies.encode_count(sum(row.records for row in drained.partitions))

    async def _configure(self, request: c.Configure, _: CommandContext) -> bytes:
        await self._topics.alter(request.topic, dict(request.settings))
        return replies.OK

    async def _cut(self, request: c.Cut, _: CommandContext) -> bytes:
        return replies.encode_count(await self._monitor.cut(request.topic))

    async def _reclaim(self, request: c.Reclaim, _: CommandContext) -> bytes:
        return replies.encode_count(await self._monitor.reclaim(request.topic))

    async def _set(self, _request: c.Set, _: CommandContext) -> bytes:
        return replies.OK  # ``ControlConnection`` applies it when it reads the next commands

    async def _help(self, _request: c.Help, _: CommandContext) -> bytes:
        return c.encode_help()

    async def _quit(self, _request: c.Quit, _: CommandContext) -> bytes:
        return replies.OK


def _topic(target: Target) -> str:
    return target.topic if isinstance(target, TopicPartition) else target


def _reset_offset(partition: Partition, to: int | StartPosition) -> int:
    if isinstance(to, int):
        return to - 1
    return partition.log_start_offset if to is StartPosition.START else partition.high_watermark
