"""The async client: the names and rules of ``cordwood.client``, on the running event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack, cast

from cordwood.client import control_flows
from cordwood.client.control_flows import ClientFlows, Question, Status, SubscriptionFlows, Taken
from cordwood.client.effects import Address, Connect, Effect, Flow, Pause, Transfer, parse_address
from cordwood.client.producer_flows import Limits, ProducerFlows, ProducerOptions
from cordwood.client.send_buffer import Message, Sendable
from cordwood.errors import CordwoodError
from cordwood.protocol.line import commands as c
from cordwood.protocol.line.records import Line

T = TypeVar("T")

_ARRIVED_BYTES_MAX: Final = 1024 * 1024  # above it the transport stops reading


class Channel(asyncio.Protocol):
    """The state of one connection, updated by the event loop; a transfer waits for a change."""

    def __init__(self) -> None:
        """Created by the event loop's ``create_connection``."""
        self._arrived = bytearray()
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self.is_writable = True
        self.is_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Keep the data until a transfer takes it; stop reading above a limit."""
        self._arrived += data
        if len(self._arrived) > _ARRIVED_BYTES_MAX and self._transport:
            self._transport.pause_reading()
        self._changed.set()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """The peer has read enough."""
        self.is_writable = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The connection is closed."""
        self.is_ended = True
        self._changed.set()

    def write(self, data: bytes) -> None:
        """Queue data; ``is_writable`` says whether the transport accepts more."""
        if self._transport and data and not self.is_ended:
            self._transport.write(data)

    def take(self) -> bytes:
        """Return and clear what has arrived."""
        arrived = bytes(self._arrived)
        self._arrived.clear()
        if self._transport and not self.is_ended:
            self._transport.resume_reading()
        self._changed.clear()
        return arrived

    async def wait(self) -> None:
        """Wait until something changes after the last ``take``."""
        await self._changed.wait()

    def close(self) -> None:
        """Abort the connection."""
        if self._transport:
            self._transport.abort()


class AsyncConnection:
    """One connection and the flows that use it."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        """Does not connect before a flow requests it."""
        self._address = address
        self._tls = tls
        self._channel: Channel | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow; close the connection if cancelled, because a write may be incomplete."""
        try:
            effect = next(flow)
            while True:
                try:
                    result = await self._perform(effect)
                except OSError as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except CordwoodError:
            raise  # a reply like any other; the flow decides what it means for the connection
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; a flow may open another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _perform(self, effect: Effect) -> bytes:
        match effect:
            case Connect(timeout_s):
                await self._connect(timeout_s)
            case Pause(seconds):
                await asyncio.sleep(max(seconds, 0))
            case Transfer():
                return await self._transfer(effect)
        return b""

    async def _connect(self, timeout_s: float) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, self._channel = await loop.create_connection(
                Channel, self._address.host, self._address.port, ssl=self._tls
            )

    async def _transfer(self, effect: Transfer) -> bytes:
        channel = self._channel
        if channel is None:
            raise ConnectionError("the connection was closed")
        channel.write(effect.data)
        arrived = b""
        try:
            async with asyncio.timeout(effect.timeout_s):
                while True:
                    arrived += channel.take()
                    if channel.is_ended and not arrived:
                        raise ConnectionError("the broker closed the connection")
                    is_written = channel.is_writable or channel.is_ended
                    if is_written and (arrived or not effect.is_awaited):
                        return arrived
                    await channel.wait()
        except TimeoutError:
            if not channel.is_writable:
                raise TimeoutError("the broker takes no more data") from None
            return arrived


class Producer:
    """The async version of ``cordwood.client.Producer``."""

    def __init__(
        self,
        address: str | tuple[str, int],
        name: str | None = None,
        epoch: int | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        **limits: Unpack[Limits],
    ) -> None:
        """Connects on the first record; ``timeout_s`` limits every call."""
        where = parse_address(address)
        self._timeout_s = timeout_s
        self._flows = ProducerFlows(where, ProducerOptions(name=name, epoch=epoch, **limits))
        self._wire = AsyncConnection(where, tls)
        self._is_opened = False

    @property
    def name(self) -> str:
        """The name of this producer at the broker."""
        return self._flows.name

    @property
    def epoch(self) -> int | None:
        """The epoch that the broker confirmed; before that, the one given."""
        return self._flows.epoch

    @property
    def unconfirmed(self) -> int:
        """The number of records that the broker has not confirmed yet."""
        return len(self._flows.outbox)

    @property
    def confirmed_n(self) -> int:
        """The ``n`` up to which everything is durable; 0 before the first."""
        return self._flows.outbox.confirmed_n

    async def send(
        self, routing_key: str | bytes, payload: str | bytes, timestamp_ms: int | None = None
    ) -> int:
        """Queue one record and return its ``n``."""
        if not self._is_opened:
            await self._wire.run(self._flows.open(self._timeout_s))
            self._is_opened = True
        n = self._flows.add(Message(routing_key, payload, timestamp_ms))
        if self._flows.is_due():
            await self._wire.run(self._flows.relieve(self._timeout_s))
        return n

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent is durable; reconnects and resends as necessary."""
        await self._wire.run(self._flows.flush(self._timeout_s if timeout_s is None else timeout_s))

    async def send_and_confirm(
        self, records: Iterable[Sendable], timeout_s: float | None = None
    ) -> int:
        """Send records, wait until all are durable, each exactly once, and return their number."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        count = await self._wire.run(self._flows.send_and_confirm(records, limit_s))
        self._is_opened = True
        return count

    async def close(self) -> None:
        """Close the connection; records that were not flushed may or may not be stored."""
        self._wire.close()

    async def __aenter__(self) -> Self:
        """For ``async with``."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush if the block raised no exception; close in any case."""
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()


class Client:
    """The async version of ``cordwood.client.Client``."""

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects on the first request; ``timeout_s`` limits the wait for a reply."""
        self._address = parse_address(address)
        self._tls = tls
        self._timeout_s = timeout_s
        self._flows = ClientFlows(self._address)
        self._wire = AsyncConnection(self._address, tls)

    async def get_ack(self, topic: str | None = None) -> int:
        """Return the last durable seq of the topic (default: the ingress topic); 0 if empty."""
        return await self._ask(control_flows.ask_ack(topic))

    async def status(self, seq: int, topic: str | None = None) -> Status:
        """Return the state of a record."""
        return await self._ask(control_flows.ask_status(seq, topic))

    def subscribe(
        self,
        topic: str,
        *,
        from_seq: int | None = None,
        from_start: bool = False,
        reader: str | None = None,
        idle_timeout_s: float | None = None,
    ) -> Subscription:
        """Stream records on a separate connection; iterate with ``async for``."""
        start = control_flows.plan_start(from_seq=from_seq, from_start=from_start)
        request = c.Subscribe(topic, start, reader)
        flows = SubscriptionFlows(self._address, request, idle_timeout_s)
        return Subscription(flows, AsyncConnection(self._address, self._tls), self._timeout_s)

    async def ack(self, topic: str, reader: str, seq: int) -> None:
        """Mark everything up to and including ``seq`` as processed; durable on return."""
        await self._ask(control_flows.ask_done(c.Ack(topic, reader, seq)))

    async def register(self, topic: str, reader: str | None = None) -> None:
        """Create the topic if it is missing and, with a name, register a reader on it."""
        await self._ask(control_flows.ask_done(c.Register(topic, reader)))

    async def put(self, topic: str, payload: str | bytes) -> None:
        """Append one record, durable on return. Not repeated if the connection breaks."""
        body = payload.encode() if isinstance(payload, str) else payload
        await self._ask(control_flows.ask_done(c.Put(topic, body), is_repeatable=False))

    async def get(self, topic: str, reader: str | None = None) -> Taken | None:
        """Take the reader's next record; None if there is none."""
        return await self._ask(control_flows.ask_get(topic, reader))

    async def state(self, topic: str) -> dict[str, object]:
        """Return the topic's segments."""
        return await self._ask(control_flows.ask_json(c.State(topic)))

    async def metrics(self) -> dict[str, object]:
        """Return the broker's counters."""
        return await self._ask(control_flows.ask_json(c.Metrics()))

    async def readers(self, topic: str | None = None) -> dict[str, object]:
        """Return the registered readers and their cursors."""
        return await self._ask(control_flows.ask_json(c.Readers(topic)))

    async def reset(self, topic: str, reader: str, to: int | c.StartPosition) -> None:
        """Move a reader's cursor: it reads next at ``to``, a seq, ``START`` or ``END``."""
        await self._ask(control_flows.ask_done(c.Reset(topic, reader, to)))

    async def remove(self, topic: str, reader: str) -> None:
        """Remove a reader; RECLAIM no longer waits for it."""
        await self._ask(control_flows.ask_done(c.Remove(topic, reader)))

    async def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change a topic's settings, all or none, with Kafka's names and values."""
        await self._ask(control_flows.ask_done(c.Configure(topic, tuple(settings.items()))))

    async def cut(self, topic: str) -> int:
        """Seal the active segment now; return how many segments were sealed."""
        return await self._ask(control_flows.ask_count(c.Cut(topic)))

    async def reclaim(self, topic: str | None = None) -> int:
        """Delete the segments that RECLAIM allows now; return how many were deleted."""
        return await self._ask(control_flows.ask_count(c.Reclaim(topic)))

    async def close(self) -> None:
        """Close the connection; subscriptions have connections of their own."""
        self._wire.close()

    async def __aenter__(self) -> Self:
        """For ``async with``."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def _ask(self, question: Question[T]) -> T:
        return await self._wire.run(self._flows.ask(question, self._timeout_s))


class Subscription:
    """An async iterator of records that owns its connection; ``close`` it or use ``async with``."""

    def __init__(self, flows: SubscriptionFlows, wire: AsyncConnection, timeout_s: float) -> None:
        """Created by ``Client.subscribe``."""
        self._flows = flows
        self._wire = wire
        self._timeout_s = timeout_s

    def __aiter__(self) -> AsyncIterator[Line]:
        """Itself."""
        return self

    async def __anext__(self) -> Line:
        """Return the next record; raise ``UnavailableError`` if the connection breaks."""
        line = self._flows.take() or await self._wire.run(self._flows.next_line(self._timeout_s))
        if line is None:
            await self.close()
            raise StopAsyncIteration
        return line

    async def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    async def __aenter__(self) -> Self:
        """For ``async with``."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()
