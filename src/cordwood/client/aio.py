"""The async client: the names and rules of ``cordwood.client``, on the running event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from cordwood.address import Address
from cordwood.client.control_flows import ClientFlows, SubscriptionFlows
from cordwood.client.diagnosis import ListenerKind, diagnose
from cordwood.client.effects import Connect, Diagnose, Effect, Flow, Pause, Transfer
from cordwood.client.flow_methods import Runner
from cordwood.client.producer_flows import ProducerFlows
from cordwood.client.send_buffer import Message
from cordwood.errors import CordwoodError
from cordwood.protocol.line.commands import Subscribe
from cordwood.protocol.line.records import Line
from cordwood.tls import ClientTls, context_of

__all__ = ["Client", "Producer", "Subscription"]

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

    def __init__(self, address: Address, tls: ClientTls | ssl.SSLContext | None) -> None:
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
            case Diagnose(error):
                await self._diagnose(error)
        return b""

    async def _diagnose(self, error: OSError) -> None:
        context = context_of(self._tls)
        ask = asyncio.to_thread(diagnose, error, self._address, ListenerKind.LINES, context)
        if found := await ask:
            raise found from error

    async def _connect(self, timeout_s: float) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, self._channel = await loop.create_connection(
                Channel, self._address.host, self._address.port, ssl=context_of(self._tls)
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
                raise TimeoutError("the broker accepts no more data") from None
            return arrived


class AsyncRunner(Runner):
    """The half of each class that is awaited: a connection, and ``async with``."""

    is_async = True
    _connection_type = AsyncConnection
    _connection: AsyncConnection

    async def _run(self, flow: Flow[T]) -> T:
        return await self._connection.run(flow)

    async def close(self) -> None:
        """Close the connection; records that were not flushed may or may not be stored."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        """For ``async with``."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; a producer flushes before that, if the block raised no exception."""
        try:
            if kind is None:
                await self._run(self._finish())
        finally:
            await self.close()


class Producer(ProducerFlows, AsyncRunner):
    """The async version of ``cordwood.client.Producer``."""

    async def send(
        self, routing_key: str | bytes, payload: str | bytes, timestamp_ms: int | None = None
    ) -> int:
        """Queue one record and return its ``n``, as ``cordwood.client.Producer.send`` does."""
        if not self._is_opened:
            await self._run(self._open())
        n = self._add(Message(routing_key, payload, timestamp_ms))
        if self._is_due():
            await self._run(self._relieve(self._timeout_s))
        return n


class Subscription(SubscriptionFlows, AsyncRunner):
    """An async iterator of records that owns its connection; ``close`` it or use ``async with``."""

    def __aiter__(self) -> AsyncIterator[Line]:
        """Itself."""
        return self

    async def __anext__(self) -> Line:
        """Return the next record; raise ``UnavailableError`` if the connection breaks."""
        line = self._take() or await self._run(self._next_line())
        if line is None:
            await self.close()
            raise StopAsyncIteration
        return line


class Client(ClientFlows[Subscription], AsyncRunner):
    """The async version of ``cordwood.client.Client``; a subscription takes ``async for``."""

    def _subscription(self, request: Subscribe, idle_timeout_s: float | None) -> Subscription:
        return Subscription(self._address, self._tls, self._timeout_s, request, idle_timeout_s)
