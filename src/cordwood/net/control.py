"""The control door: line commands, answered in the order they came.

One task per connection takes requests and writes replies, so pipelined commands need no care. A
``SUBSCRIBE`` runs beside it as a second task: it reads a slice, writes it, and waits until the peer
has taken it before it reads the next. A slow subscriber therefore costs one slice of memory and
nobody else's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from cordwood.broker.broker import Broker
from cordwood.broker.commands import CommandDesk
from cordwood.errors import CordwoodError, ProtocolError, RequestError
from cordwood.net.server import Door, Link
from cordwood.wire.line.commands import Quit, Request, Subscribe
from cordwood.wire.line.control import ControlConnection, Refused
from cordwood.wire.line.framing import Framing
from cordwood.wire.line.replies import encode_error

logger = logging.getLogger("cordwood.net")

REQUESTS_WAITING_MAX = 256  # pipelined commands read ahead of their replies


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

    # --- what asyncio calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place and begin to answer."""
        self._link = self._shared.door.admit(transport)
        if self._link:
            self._link.is_busy = self._has_work
            self._server = asyncio.ensure_future(self._serve(self._link))

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        assert self._link
        self._shared.door.touch(self._link)
        try:
            self._commands.receive(data)
            self._take_requests()
        except ProtocolError as error:
            self._requests.put_nowait(Refused(error))
            self._requests.put_nowait(None)

    def eof_received(self) -> bool:
        """The peer sends no more commands; its replies and its stream go on."""
        try:
            self._commands.receive_eof()
            self._take_requests()
        except ProtocolError as error:
            self._requests.put_nowait(Refused(error))
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

    # --- requests and replies -------------------------------------------------------------

    def _has_work(self) -> bool:
        return self._answering or not self._requests.empty()

    def _take_requests(self) -> None:
        while (request := self._commands.next_request()) is not None:
            self._requests.put_nowait(request)
        if self._reading and self._requests.qsize() > REQUESTS_WAITING_MAX:
            assert self._link
            self._reading = False
            self._link.transport.pause_reading()

    def _read_on(self) -> None:
        if not self._reading and self._requests.qsize() < REQUESTS_WAITING_MAX // 2:
            assert self._link
            self._reading = True
            with contextlib.suppress(RuntimeError):  # the peer has closed its side meanwhile
                self._link.transport.resume_reading()

    async def _serve(self, link: Link) -> None:
        while (request := await self._requests.get()) is not None:
            self._answering = True
            self._read_on()
            reply = await self._answer(request)
            if reply is not None:
                link.transport.write(self._commands.encode(reply))
            await link.writable.wait()
            self._answering = False
            if isinstance(request, Quit):
                break
        else:
            if self._subscription:  # no more commands; the stream goes on until the peer closes
                await asyncio.wait([self._subscription])
        link.transport.close()

    async def _answer(self, request: Request | Refused) -> bytes | None:
        if isinstance(request, Refused):
            return encode_error(request.error)
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
        self._subscription = asyncio.ensure_future(self._stream(stream))
        return None

    async def _stream(self, stream: AsyncIterator[bytes]) -> None:
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
        link.is_listener = False
