"""The control listener: line commands, answered in request order.

One task per connection takes requests and writes replies, so pipelined commands stay in order. A
``SUBSCRIBE`` runs in a second task: it reads a slice, writes it, and waits until the peer has
received it before it reads the next one. A slow subscriber therefore costs one slice of memory and
delays nobody else.
"""

from __future__ import annotations

import asyncio
import logging

from cordwood.broker.broker import Broker
from cordwood.broker.commands import CommandContext, CommandService
from cordwood.broker.session import Session
from cordwood.broker.subscription import TopicSubscription
from cordwood.config import MIB
from cordwood.errors import (
    CordwoodError,
    ProtocolError,
    RequestError,
    UnexpectedHttp,
    UnexpectedTls,
)
from cordwood.protocol.line.commands import LineRequest, Put, Quit, Subscribe
from cordwood.protocol.line.control import ControlConnection, Refused
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.http_detection import encode_refusal
from cordwood.protocol.line.replies import encode_error
from cordwood.server.listeners import Connection, Listener, ListenerProtocol

logger = logging.getLogger("cordwood.server")

REQUESTS_WAITING_MAX = 256  # pipelined commands read ahead of their replies
PAYLOADS_WAITING_BYTES = MIB  # limit on the total payload size of those commands


class ControlListener:
    """State shared by all connections of the listener."""

    def __init__(self, listener: Listener, broker: Broker, line_bytes_max: int) -> None:
        self.listener = listener
        self.service: CommandService = broker.commands
        self.line_bytes_max = line_bytes_max

    def __call__(self) -> ControlProtocol:
        """Create the protocol object of a new connection."""
        return ControlProtocol(self)


class ControlProtocol(ListenerProtocol, asyncio.Protocol):
    """One connection."""

    def __init__(self, shared: ControlListener) -> None:
        self._shared = shared
        self._service = shared.service
        self._commands = ControlConnection(shared.line_bytes_max)
        self._requests: asyncio.Queue[LineRequest | Refused | None] = asyncio.Queue()
        self._session: Session | None = None
        self._server: asyncio.Task[None] | None = None
        self._subscription: asyncio.Task[None] | None = None
        self._answering = False
        self._reading = True
        self._stopping = False
        self._is_refused = False
        self._is_ended = False
        self._stream: TopicSubscription | None = None
        self._waiting_bytes = 0

    # --- asyncio callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and start answering."""
        self._connection = self._shared.listener.admit(transport)
        if self._connection:
            self._session = self._shared.listener.session(self._connection)
            self._connection.is_busy = self._has_work
            self._connection.quiesce = self._quiesce
            self._server = asyncio.ensure_future(self._serve(self._connection))

    def data_received(self, data: bytes) -> None:
        """Parse the bytes and queue the complete requests."""
        if self._is_refused:
            return
        try:
            self._commands.receive(data)
            self._take_requests()
        except ProtocolError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """Answer what was already requested; a subscription ends with the records present now."""
        self._is_ended = True
        if self._stream:
            self._stream.end()
        try:
            self._commands.receive_eof()
            self._take_requests()
        except ProtocolError as error:
            self._refuse(error)
        self._requests.put_nowait(None)
        return self._stays_open()

    def connection_lost(self, _: Exception | None) -> None:
        """Cancel the tasks and unregister the connection."""
        if self._connection:
            self._shared.listener.release(self._connection)
        for task in (self._server, self._subscription):
            if task:
                task.cancel()

    def _refuse(self, error: ProtocolError) -> None:
        """The input is not valid: answer the earlier requests, send the error, and close."""
        assert self._connection
        self._is_refused = True
        if isinstance(error, UnexpectedHttp | UnexpectedTls):
            self._shared.listener.count_foreign(self._connection, error)
        self._requests.put_nowait(Refused(error))
        self._requests.put_nowait(None)

    # --- requests and replies -------------------------------------------------------------

    def _has_work(self) -> bool:
        return self._answering or not self._requests.empty()

    def _take_requests(self) -> None:
        assert self._connection
        while (request := self._commands.next_request()) is not None:
            self._shared.listener.touch(self._connection)
            self._waiting_bytes += _payload_bytes(request)
            self._requests.put_nowait(request)
        if self._reading and self._has_enough():
            self._reading = False
            self._connection.pause()

    def _has_enough(self) -> bool:
        return (
            self._requests.qsize() > REQUESTS_WAITING_MAX
            or self._waiting_bytes > PAYLOADS_WAITING_BYTES
        )

    def _quiesce(self) -> None:
        """The broker is stopping: answer the requests already read, and read no more."""
        assert self._connection
        self._stopping = True
        self._reading = False
        self._connection.pause()

    def _read_on(self, request: LineRequest | Refused) -> None:
        self._waiting_bytes -= _payload_bytes(request)
        if not self._reading and not self._stopping and not self._has_enough():
            assert self._connection
            self._reading = True
            self._connection.resume()

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._serve_requests(connection)
        except Exception as error:  # noqa: BLE001 - a bug; it is logged
            self._fail(connection, error)

    def _fail(self, connection: Connection, error: Exception) -> None:
        """Abort a connection that cannot continue; otherwise its peer would wait forever."""
        logger.error("control.failed peer=%s", connection.peer, exc_info=error)
        connection.transport.abort()

    async def _serve_requests(self, connection: Connection) -> None:
        while (request := await self._requests.get()) is not None:
            self._answering = True
            self._read_on(request)
            reply = await self._answer(request)
            if reply is not None:
                connection.transport.write(self._commands.encode(reply))
            await connection.writable.wait()
            self._answering = False
            if isinstance(request, Quit):
                break
        else:
            if self._subscription and not self._is_refused:  # it ends with the records present now
                await asyncio.wait([self._subscription])
        connection.transport.close()

    async def _answer(self, request: LineRequest | Refused) -> bytes | None:
        if isinstance(request, Refused):
            return encode_refusal(request.error) or encode_error(request.error)
        try:
            if isinstance(request, Subscribe):
                return await self._subscribe(request)
            return await self._service.answer(request, self._context())
        except CordwoodError as error:
            return encode_error(error)
        except Exception as error:
            logger.exception("control.failed request=%r", request)
            return b"ERR INTERNAL %s; see the broker's log" % type(error).__name__.encode()

    def _context(self) -> CommandContext:
        assert self._session
        return CommandContext(self._session, self._commands.framing or Framing.TEXT)

    async def _subscribe(self, request: Subscribe) -> bytes | None:
        if self._subscription and not self._subscription.done():
            raise RequestError(
                "this connection already has a subscription; open another connection for a "
                "second one"
            )
        stream = await self._service.subscribe(request, self._context())
        if self._is_ended:
            stream.end()
        self._stream = stream
        self._subscription = asyncio.ensure_future(self._send_all(stream))
        return None

    async def _send_all(self, stream: TopicSubscription) -> None:
        assert self._connection
        connection = self._connection
        connection.is_subscriber = True
        try:
            async for lines in stream:
                connection.transport.write(lines)
                await connection.writable.wait()
                if connection.transport.is_closing():
                    return
        except CordwoodError as error:
            connection.transport.write(self._commands.encode(encode_error(error)))
        except Exception as error:  # noqa: BLE001 - a bug; it is logged
            self._fail(connection, error)
        connection.is_subscriber = False


def _payload_bytes(request: LineRequest | Refused) -> int:
    return len(request.payload) if isinstance(request, Put) else 0
