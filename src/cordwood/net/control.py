"""The control door: line commands, answered in the order they came.

One task per connection takes requests and writes replies, so pipelined commands need no care. A
``SUBSCRIBE`` runs beside it as a second task: it reads a slice, writes it, and waits until the peer
has taken it before it reads the next. A slow subscriber therefore costs one slice of memory and
nobody else's time.
"""

from __future__ import annotations

import asyncio
import logging

from cordwood.broker.broker import Broker
from cordwood.broker.commands import CommandDesk
from cordwood.broker.subscription import Subscription
from cordwood.config import MIB
from cordwood.errors import (
    CordwoodError,
    ProtocolError,
    RequestError,
    UnexpectedHttp,
    UnexpectedTls,
)
from cordwood.net.server import Door, Link
from cordwood.wire.line.commands import Put, Quit, Request, Subscribe
from cordwood.wire.line.control import ControlConnection, Refused
from cordwood.wire.line.foreign import encode_refusal
from cordwood.wire.line.framing import Framing
from cordwood.wire.line.replies import encode_error

logger = logging.getLogger("cordwood.net")

REQUESTS_WAITING_MAX = 256  # pipelined commands read ahead of their replies
PAYLOADS_WAITING_BYTES = MIB  # and what their payloads may hold together


class ControlDoor:
    """What the door's connections share."""

    def __init__(self, door: Door, broker: Broker, line_bytes_max: int) -> None:
        self.door = door
        self.desk: CommandDesk = broker.commands
        self.line_bytes_max = line_bytes_max

    def __call__(self) -> ControlProtocol:
        """A protocol for a new connection."""
        return ControlProtocol(self)


class ControlProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, shared: ControlDoor) -> None:
        self._shared = shared
        self._desk = shared.desk
        self._commands = ControlConnection(shared.line_bytes_max)
        self._requests: asyncio.Queue[Request | Refused | None] = asyncio.Queue()
        self._link: Link | None = None
        self._server: asyncio.Task[None] | None = None
        self._subscription: asyncio.Task[None] | None = None
        self._answering = False
        self._reading = True
        self._stopping = False
        self._is_refused = False
        self._is_ended = False
        self._stream: Subscription | None = None
        self._waiting_bytes = 0

    # --- what asyncio calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place and begin to answer."""
        self._link = self._shared.door.admit(transport)
        if self._link:
            self._link.is_busy = self._has_work
            self._link.quiesce = self._quiesce
            self._server = asyncio.ensure_future(self._serve(self._link))

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self._is_refused:
            return
        try:
            self._commands.receive(data)
            self._take_requests()
        except ProtocolError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """The peer sends no more: what it asked is answered, a stream gives what there is now."""
        self._is_ended = True
        if self._stream:
            self._stream.end()
        try:
            self._commands.receive_eof()
            self._take_requests()
        except ProtocolError as error:
            self._refuse(error)
        self._requests.put_nowait(None)
        return self._link is not None and not self._link.transport.get_extra_info("sslcontext")

    def connection_lost(self, _: Exception | None) -> None:
        """End the tasks and give the place back."""
        if self._link:
            self._shared.door.release(self._link)
        for task in (self._server, self._subscription):
            if task:
                task.cancel()

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        assert self._link
        self._link.writable.clear()

    def resume_writing(self) -> None:
        """It caught up."""
        assert self._link
        self._link.writable.set()

    def _refuse(self, error: ProtocolError) -> None:
        """The peer cannot be understood: answer what came before, say why, and close."""
        assert self._link
        self._is_refused = True
        if isinstance(error, UnexpectedHttp | UnexpectedTls):
            self._shared.door.note_foreign(self._link, error)
        self._requests.put_nowait(Refused(error))
        self._requests.put_nowait(None)

    # --- requests and replies -------------------------------------------------------------

    def _has_work(self) -> bool:
        return self._answering or not self._requests.empty()

    def _take_requests(self) -> None:
        assert self._link
        while (request := self._commands.next_request()) is not None:
            self._shared.door.touch(self._link)
            self._waiting_bytes += _payload_bytes(request)
            self._requests.put_nowait(request)
        if self._reading and self._has_enough():
            self._reading = False
            self._link.pause()

    def _has_enough(self) -> bool:
        return (
            self._requests.qsize() > REQUESTS_WAITING_MAX
            or self._waiting_bytes > PAYLOADS_WAITING_BYTES
        )

    def _quiesce(self) -> None:
        """The broker stops: what was read is answered, the rest is left to the next one."""
        assert self._link
        self._stopping = True
        self._reading = False
        self._link.pause()

    def _read_on(self, request: Request | Refused) -> None:
        self._waiting_bytes -= _payload_bytes(request)
        if not self._reading and not self._stopping and not self._has_enough():
            assert self._link
            self._reading = True
            self._link.resume()

    async def _serve(self, link: Link) -> None:
        try:
            await self._serve_requests(link)
        except Exception as error:  # noqa: BLE001 - our own mistake, told in the log
            self._fail(link, error)

    def _fail(self, link: Link, error: Exception) -> None:
        """End a connection that cannot go on; its peer would wait for ever."""
        logger.error("control.failed peer=%s", link.peer, exc_info=error)
        link.transport.abort()

    async def _serve_requests(self, link: Link) -> None:
        while (request := await self._requests.get()) is not None:
            self._answering = True
            self._read_on(request)
            reply = await self._answer(request)
            if reply is not None:
                link.transport.write(self._commands.encode(reply))
            await link.writable.wait()
            self._answering = False
            if isinstance(request, Quit):
                break
        else:
            if self._subscription and not self._is_refused:  # it ends with what there is now
                await asyncio.wait([self._subscription])
        link.transport.close()

    async def _answer(self, request: Request | Refused) -> bytes | None:
        if isinstance(request, Refused):
            return encode_refusal(request.error) or encode_error(request.error)
        try:
            if isinstance(request, Subscribe):
                return await self._subscribe(request)
            return await self._desk.answer(request, self._commands.framing or Framing.TEXT)
        except CordwoodError as error:
            return encode_error(error)
        except Exception as error:
            logger.exception("control.failed request=%r", request)
            return b"ERR INTERNAL %s; see the broker's log" % type(error).__name__.encode()

    async def _subscribe(self, request: Subscribe) -> bytes | None:
        if self._subscription and not self._subscription.done():
            raise RequestError("this connection has a subscription; open another for a second one")
        stream = await self._desk.subscribe(request, self._commands.framing or Framing.TEXT)
        if self._is_ended:
            stream.end()
        self._stream = stream
        self._subscription = asyncio.ensure_future(self._send_all(stream))
        return None

    async def _send_all(self, stream: Subscription) -> None:
        assert self._link
        link = self._link
        link.is_listener = True
        try:
            async for lines in stream:
                link.transport.write(lines)
                await link.writable.wait()
                if link.transport.is_closing():
                    return
        except CordwoodError as error:
            link.transport.write(self._commands.encode(encode_error(error)))
        except Exception as error:  # noqa: BLE001 - our own mistake, told in the log
            self._fail(link, error)
        link.is_listener = False


def _payload_bytes(request: Request | Refused) -> int:
    return len(request.payload) if isinstance(request, Put) else 0
