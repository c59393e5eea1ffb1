"""The ingress listener: passes lines from a socket, in blocks, to the ingress service.

All connections of the listener share one buffer: a read fills it, and the data is handed on before
the event loop reads from the next socket. ``FlowControl`` decides when the socket is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine

from cordwood.broker.ingest.flow_control import FlowControl, PauseReason
from cordwood.broker.ingest.service import IngressService
from cordwood.broker.ingest.stream import LineStream
from cordwood.broker.session import Session
from cordwood.config import KIB
from cordwood.errors import CordwoodError, ProtocolError, UnexpectedHttp, UnexpectedTls
from cordwood.protocol.line.framing import TooLong
from cordwood.protocol.line.http_detection import encode_refusal
from cordwood.protocol.line.ingress import (
    Frames,
    HalfLine,
    Hello,
    IngressConnection,
    IngressEvent,
    Lines,
)
from cordwood.protocol.line.replies import encode_error, encode_welcome
from cordwood.server.listeners import Connection, Listener, ListenerProtocol

logger = logging.getLogger("cordwood.server")

READ_BYTES = 512 * KIB  # a few thousand lines, so that the cost per block hardly matters
NEWLINE = 10


class IngressListener:
    """State shared by all connections of the listener."""

    def __init__(self, listener: Listener, service: IngressService, line_bytes_max: int) -> None:
        self.listener = listener
        self.service = service
        self.line_bytes_max = line_bytes_max
        self.buffer = memoryview(bytearray(READ_BYTES))

    def __call__(self) -> IngressProtocol:
        """Create the protocol object of a new connection."""
        return IngressProtocol(self)


class IngressProtocol(ListenerProtocol, asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, shared: IngressListener) -> None:
        self._shared = shared
        self._service = shared.service
        self._lines = IngressConnection(shared.line_bytes_max)
        self._stream: LineStream | None = None
        self._flow = FlowControl(self._service.buffer, self)
        self._pauses = self._flow.reasons  # the same set, for the hot path
        self._ended = False
        self._started = asyncio.Event()  # the stream is open, and a HELLO has been answered
        self._tasks: set[asyncio.Task[None]] = set()

    # --- asyncio callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; nothing is read before the stream is open."""
        self._connection = self._shared.listener.admit(transport)
        if self._connection:
            self._flow.pause(PauseReason.OPENING)
            session = self._shared.listener.session(self._connection)
            self._start(self._open(self._connection, session))

    def get_buffer(self, _: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes in the buffer."""
        if self._pauses and self._connection:
            self._connection.pause()  # uvloop starts reading after connection_made regardless
        data = self._shared.buffer[:nbytes]
        if self._stream and not self._pauses and data[-1] == NEWLINE:
            block = bytes(data)
            if self._lines.is_block(block):
                self._take(self._stream, Lines(block))  # no earlier event is waiting
                return
        self._receive(data)

    def eof_received(self) -> bool:
        """The peer sends no more; keep the connection until its lines are acknowledged."""
        self._ended = True
        try:
            self._lines.receive_eof()
        except ProtocolError as error:
            self._refuse(error)
        self.process_events()
        self._start(self._finish())
        return self._stays_open()

    def connection_lost(self, _: Exception | None) -> None:
        """Unregister the connection and release the producer name; keep a half-received line."""
        if self._connection:
            self._shared.listener.release(self._connection)
        if self._stream:
            if not self._ended and self._stream.producer is None:  # a named one sends it again
                self._ended = True
                with contextlib.suppress(ProtocolError):
                    self._lines.receive_eof()
                self.process_events()
            self._stream.close()
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        """The peer does not read its acknowledgements: read no more lines from it."""
        self._flow.pause(PauseReason.UNREAD_REPLIES)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._flow.resume(PauseReason.UNREAD_REPLIES)

    # --- from bytes to the service --------------------------------------------------------

    async def _open(self, connection: Connection, session: Session) -> None:
        try:
            self._stream = await self._service.open(session, self, self._flow)
        except CordwoodError as error:
            self._refuse(error)
        else:
            connection.is_busy = self._has_work
            connection.quiesce = lambda: self._flow.pause(PauseReason.STOPPING)
            self._flow.resume(PauseReason.OPENING)
            if PauseReason.HELLO not in self._pauses:
                self._started.set()

    def _has_work(self) -> bool:
        """A connection with unacknowledged lines, or one that we keep waiting, is not idle."""
        return self._stream is not None and (self._stream.pending > 0 or self._flow.is_kept_waiting)

    def _receive(self, data: memoryview) -> None:
        try:
            self._lines.receive(data)
        except ProtocolError as error:
            self.process_events()  # the lines before the error are complete
            self._refuse(error)
        else:
            self.process_events()

    def process_events(self) -> None:
        """Pass events on in order, until there are no more or one must be waited for."""
        stream = self._stream
        if stream is None:
            return
        while self._flow.takes_events and (event := self._lines.next_event()) is not None:
            if not self._take(stream, event):
                return
        self._flow.check()

    def _take(self, stream: LineStream, event: IngressEvent) -> bool:
        """Pass one event on; return False if the connection was refused."""
        assert self._connection
        self._shared.listener.touch(self._connection)
        try:
            self._handle(stream, event)
        except CordwoodError as error:  # the broker is stopping
            self._refuse(error)
            return False
        return True

    def _handle(self, stream: LineStream, event: IngressEvent) -> None:
        if isinstance(event, Lines):
            self._service.lines(stream, event.block)
        elif isinstance(event, Frames):
            self._service.frames(stream, event.bodies)
        elif isinstance(event, TooLong):
            self._service.reject(stream, event.kept, f"too_long {event.total_bytes} bytes")
        elif isinstance(event, HalfLine):
            self._service.reject(stream, event.data, "half_line")
        else:
            self._flow.pause(PauseReason.HELLO)
            self._start(self._hello(stream, event))

    async def _hello(self, stream: LineStream, hello: Hello) -> None:
        try:
            welcome = await self._service.names.take(stream, hello.producer, hello.epoch)
        except CordwoodError as error:
            self._refuse(error)
            return
        self.send(encode_welcome(welcome))
        self._flow.resume(PauseReason.HELLO)
        self._started.set()

    def send(self, reply: bytes) -> None:
        """Send a reply in the framing of the peer."""
        if self._connection and not self._connection.transport.is_closing():
            self._connection.transport.write(self._lines.encode(reply))

    def _refuse(self, error: CordwoodError) -> None:
        assert self._connection
        if isinstance(error, UnexpectedHttp | UnexpectedTls):
            self._ended = True  # the input is not lines, so no half-received line is kept
            self._shared.listener.count_foreign(self._connection, error)
        else:
            logger.info(
                "connection.refused listener=ingress peer=%s error=%s", self._connection.peer, error
            )
        self.send(encode_refusal(error) or encode_error(error))
        self.close()

    def close(self) -> None:
        """Close the connection after what was sent."""
        if self._connection:
            self._connection.transport.close()

    async def _finish(self) -> None:
        """After the peer's last byte, wait until its lines are durable, then close."""
        await self._started.wait()
        if self._stream:
            while not self._stream.drained.is_set():  # the end of some lines may start others
                await self._stream.drained.wait()
        self.close()

    def pause_reading(self) -> None:
        """Leave the socket unread; after its end there is nothing to pause."""
        if self._connection and not self._ended:
            self._connection.pause()

    def resume_reading(self) -> None:
        """Read the socket again."""
        if self._connection and not self._ended:
            self._connection.resume()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
