"""The ingress listener: passes lines from a socket, in blocks, to the ingress service.

All connections of the listener share one buffer: a read fills it, and the data is handed on before
the event loop reads from the next socket. When the service is at capacity, or the peer does not
read its acknowledgements, the socket is not read. TCP flow control then blocks the peer, and
nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine

from cordwood.broker.ingest.service import IngressService, IngressSession
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
from cordwood.server.listeners import Connection, Listener

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


class IngressProtocol(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, shared: IngressListener) -> None:
        self._shared = shared
        self._service = shared.service
        self._lines = IngressConnection(shared.line_bytes_max)
        self._connection: Connection | None = None
        self._session: IngressSession | None = None
        self._waits: set[str] = set()  # the reasons why the socket is not being read
        self._ended = False
        self._started = asyncio.Event()  # the session is open, and a HELLO has been answered
        self._tasks: set[asyncio.Task[None]] = set()

    # --- asyncio callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; nothing is read before the session is open."""
        self._connection = self._shared.listener.admit(transport)
        if self._connection:
            self._pause("opening")
            self._start(self._open(self._connection))

    def get_buffer(self, _: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes in the buffer."""
        if self._waits and self._connection:
            self._connection.pause()  # uvloop starts reading after connection_made regardless
        data = self._shared.buffer[:nbytes]
        if self._session and not self._waits and data[-1] == NEWLINE:
            block = bytes(data)
            if self._lines.is_block(block):
                self._take(self._session, Lines(block))  # no earlier event is waiting
                return
        self._receive(data)

    def eof_received(self) -> bool:
        """The peer sends no more; keep the connection until its lines are acknowledged."""
        self._ended = True
        try:
            self._lines.receive_eof()
        except ProtocolError as error:
            self._refuse(error)
        self._pump()
        self._start(self._finish())
        return self._connection is not None and not self._connection.transport.get_extra_info(
            "sslcontext"
        )

    def connection_lost(self, _: Exception | None) -> None:
        """Unregister the connection and release the producer name; keep a half-received line."""
        if self._connection:
            self._shared.listener.release(self._connection)
        if self._session:
            if not self._ended and self._session.producer is None:  # a named one sends it again
                self._ended = True
                with contextlib.suppress(ProtocolError):
                    self._lines.receive_eof()
                self._pump()
            self._service.leave(self._session)
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        """The peer does not read its acknowledgements: read no more lines from it."""
        self._pause("unread replies")

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._resume("unread replies")

    # --- from bytes to the service --------------------------------------------------------

    async def _open(self, connection: Connection) -> None:
        try:
            self._session = await self._service.open(
                connection.peer, self._tell, connection.transport.close, self._hold, self._on_resume
            )
        except CordwoodError as error:
            self._refuse(error)
        else:
            connection.is_busy = self._has_work
            connection.quiesce = lambda: self._pause("stopping")
            self._resume("opening")
            self._pump()
            if "hello" not in self._waits:
                self._started.set()

    def _has_work(self) -> bool:
        """A connection with unacknowledged lines, or one that we keep waiting, is not idle."""
        is_held = bool(self._waits & {"room", "hello", "rejects"})
        return self._session is not None and (self._session.under_way > 0 or is_held)

    def _receive(self, data: memoryview) -> None:
        try:
            self._lines.receive(data)
        except ProtocolError as error:
            self._pump()  # the lines before the error are complete
            self._refuse(error)
        else:
            self._pump()

    def _pump(self) -> None:
        """Pass events on in order, until there are no more or one must be waited for."""
        session = self._session
        while session and not self._waits & {"hello", "opening", "rejects"}:
            event = self._lines.next_event()
            if event is None:
                break
            if not self._take(session, event):
                return
            if session.rejects:
                self._pause("rejects")
        self._hold()

    def _take(self, session: IngressSession, event: IngressEvent) -> bool:
        """Pass one event on; return False if the connection was refused."""
        assert self._connection
        self._shared.listener.touch(self._connection)
        try:
            self._handle(session, event)
        except CordwoodError as error:  # the broker is stopping
            self._refuse(error)
            return False
        return True

    def _hold(self) -> None:
        """Stop reading while bad lines are being written or the service is at capacity."""
        session = self._session
        if session is None or session.is_gone:
            return
        if session.rejects:
            self._pause("rejects")
        if "room" not in self._waits and self._service.must_wait(session):
            self._pause("room")
            self._service.wait_for_capacity(session)

    def _handle(self, session: IngressSession, event: IngressEvent) -> None:
        if isinstance(event, Lines):
            self._service.lines(session, event.block)
        elif isinstance(event, Frames):
            self._service.frames(session, event.bodies)
        elif isinstance(event, TooLong):
            self._service.reject(session, event.kept, f"too_long {event.total_bytes} bytes")
        elif isinstance(event, HalfLine):
            self._service.reject(session, event.data, "half_line")
        else:
            self._pause("hello")
            self._start(self._hello(session, event))

    async def _hello(self, session: IngressSession, hello: Hello) -> None:
        try:
            epoch, last_n = await self._service.hello(session, hello.producer, hello.epoch)
        except CordwoodError as error:
            self._refuse(error)
            return
        self._tell(f"OK {hello.producer} {epoch} {last_n}".encode())
        self._resume("hello")
        self._pump()
        self._started.set()

    def _tell(self, reply: bytes) -> None:
        if self._connection and not self._connection.transport.is_closing():
            self._connection.transport.write(self._lines.encode(reply))

    def _refuse(self, error: CordwoodError) -> None:
        assert self._connection
        if isinstance(error, UnexpectedHttp | UnexpectedTls):
            self._ended = True  # the input is not lines, so no half-received line is kept
            self._shared.listener.note_foreign(self._connection, error)
        else:
            logger.info(
                "connection.refused listener=ingress peer=%s error=%s", self._connection.peer, error
            )
        self._tell(encode_refusal(error) or f"ERR {error.name} {error}".encode())
        self._connection.transport.close()

    async def _finish(self) -> None:
        """After the peer's last byte, wait until its lines are durable, then close."""
        assert self._connection
        await self._started.wait()
        if self._session:
            while not self._session.drained.is_set():  # the end of some lines may start others
                await self._session.drained.wait()
        self._connection.transport.close()

    # --- pausing and resuming reads -------------------------------------------------------

    def _on_resume(self, reason: str) -> None:
        self._resume(reason)
        self._pump()

    def _pause(self, reason: str) -> None:
        assert self._connection
        if not self._waits and not self._ended:
            self._connection.pause()
        self._waits.add(reason)

    def _resume(self, reason: str) -> None:
        assert self._connection
        self._waits.discard(reason)
        if not self._waits and not self._ended:
            self._connection.resume()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
