"""Service for line commands: carries out each request and returns the bytes of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from cordwood.batch.kernels.loader import load_kernels_soon
from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.monitor import Monitor
from cordwood.broker.produce import ProduceService
from cordwood.broker.readers import ReaderService
from cordwood.broker.session import Session
from cordwood.broker.subscription import PartitionSubscription, read_committed
from cordwood.broker.topics import TopicService
from cordwood.config import BrokerConfig
from cordwood.errors import RequestError
from cordwood.log.write.partition import Partition
from cordwood.model import Record
from cordwood.protocol.line import commands as c
from cordwood.protocol.line import replies
from cordwood.protocol.line.framing import Framing

DEFAULT_READER = "default"  # GET without a reader name: one cursor shared by all such clients


class CommandContext(NamedTuple):
    """What an answer depends on besides the command."""

    session: Session
    framing: Framing


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
    ) -> None:
        self._config = config
        self._topics = topics
        self._produce = produce
        self._readers = readers
        self._monitor = monitor
        self._notifier = notifier
        self._status = status
        self._getting: dict[tuple[str, str], asyncio.Lock] = {}
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
            c.Configure: self._configure,
            c.Cut: self._cut,
            c.Reclaim: self._reclaim,
            c.Help: self._help,
            c.Quit: self._quit,
        }

    async def answer(self, request: c.Request, context: CommandContext) -> bytes:
        """Return the reply without its framing; raises ``CordwoodError``s."""
        return await self._answers[type(request)](request, context)

    async def subscribe(
        self, request: c.Subscribe, context: CommandContext
    ) -> PartitionSubscription:
        """Return a stream of encoded records, open until its ``end`` is called; may raise first."""
        partition = await self._partition(request.topic)
        load_kernels_soon()
        if request.reader is not None:
            await self._readers.register(request.topic, request.reader)
        offset = self._start_offset(partition, request)
        return PartitionSubscription(partition, offset, context.framing, self._notifier)

    def _start_offset(self, partition: Partition, request: c.Subscribe) -> int:
        if request.start is c.StartPosition.START:
            return partition.log_start_offset
        if isinstance(request.start, int):
            self._readers.check_present(partition, request.start - 1)
            return request.start - 1
        cursor = self._readers.position(partition.tp, request.reader) if request.reader else None
        return partition.high_watermark if cursor is None else cursor

    async def _partition(self, topic: str | None) -> Partition:
        return await self._topics.open_partition(topic or self._config.ingress_topic, 0)

    # --- one method per command -----------------------------------------------------------

    async def _get_ack(self, request: c.GetAck, _: CommandContext) -> bytes:
        if request.topic is None and self._config.ingress_topic not in self._topics.all():
            return replies.encode_ack(0)  # no line has arrived yet
        return replies.encode_ack((await self._partition(request.topic)).high_watermark)

    async def _get_status(self, request: c.GetStatus, _: CommandContext) -> bytes:
        status = self._readers.status(await self._partition(request.topic), request.seq - 1)
        return status.encode()

    async def _ack(self, request: c.Ack, _: CommandContext) -> bytes:
        partition = await self._partition(request.topic)
        if request.seq > partition.high_watermark:
            raise RequestError(
                f"{request.topic} ends at seq {partition.high_watermark}; {request.seq} cannot be "
                "acknowledged yet"
            )
        await self._readers.advance(partition.tp, request.reader, request.seq)
        return replies.OK

    async def _register(self, request: c.Register, _: CommandContext) -> bytes:
        await self._topics.ensure(request.topic, explicit=True)
        if request.reader is not None:
            await self._readers.register(request.topic, request.reader)
        return replies.OK

    async def _put(self, request: c.Put, _: CommandContext) -> bytes:
        topic = await self._topics.ensure(request.topic)
        await self._produce.append_record(topic.partition(0), None, request.payload)
        return replies.OK

    async def _get(self, request: c.Get, context: CommandContext) -> bytes:
        """Return the reader's next record; the lock keeps two GETs from taking the same one."""
        partition = await self._partition(request.topic)
        reader = request.reader or DEFAULT_READER
        async with self._getting.setdefault((request.topic, reader), asyncio.Lock()):
            await self._readers.register(request.topic, reader)
            record = await self._next_record(partition, reader)
            if record is None:
                return replies.EMPTY
            await self._readers.advance(partition.tp, reader, record.offset + 1)
            return replies.encode_got(record.value, context.framing)

    async def _next_record(self, partition: Partition, reader: str) -> Record | None:
        loop = asyncio.get_running_loop()
        offset = max(self._readers.position(partition.tp, reader) or 0, partition.log_start_offset)
        while offset < partition.last_stable_offset:
            records, offset = await loop.run_in_executor(None, read_committed, partition, offset, 1)
            if records:
                return records[0]
        return None

    async def _state(self, request: c.State, _: CommandContext) -> bytes:
        await self._partition(request.topic)
        return replies.encode_json(self._topics.state(request.topic))

    async def _metrics(self, _request: c.Metrics, _: CommandContext) -> bytes:
        return await self._status()

    async def _list_readers(self, request: c.Readers, _: CommandContext) -> bytes:
        for name in [request.topic] if request.topic else self._readers.topics():
            await self._topics.open_topic(name)
        rows = [msgspec.structs.asdict(row) for row in self._readers.rows(request.topic)]
        return replies.encode_json({"readers": rows})

    async def _reset(self, request: c.Reset, _: CommandContext) -> bytes:
        partition = await self._partition(request.topic)
        places = {
            c.StartPosition.START: partition.log_start_offset,
            c.StartPosition.END: partition.high_watermark,
        }
        offset = request.to - 1 if isinstance(request.to, int) else places[request.to]
        self._readers.check_present(partition, offset)
        await self._readers.reset(partition.tp, request.reader, offset)
        return replies.OK

    async def _remove(self, request: c.Remove, _: CommandContext) -> bytes:
        await self._readers.remove(request.topic, request.reader)
        return replies.OK

    async def _configure(self, request: c.Configure, _: CommandContext) -> bytes:
        await self._topics.alter(request.topic, dict(request.settings))
        return replies.OK

    async def _cut(self, request: c.Cut, _: CommandContext) -> bytes:
        return replies.encode_count(await self._monitor.cut(request.topic))

    async def _reclaim(self, request: c.Reclaim, _: CommandContext) -> bytes:
        return replies.encode_count(await self._monitor.reclaim(request.topic))

    async def _help(self, _request: c.Help, _: CommandContext) -> bytes:
        return c.encode_help()

    async def _quit(self, _request: c.Quit, _: CommandContext) -> bytes:
        return replies.OK
