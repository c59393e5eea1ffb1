"""The HTTP listener: h11 parses and writes HTTP/1.1, a router answers.

A request is checked twice. The request head decides whether it is accepted at all: the host and
origin (``decide.web``), the route, the content type, the size. Only then is the body read, decoded
into the route's message (``protocol.api``) and passed to the handler. A ``CordwoodError`` from a
handler becomes JSON with the error's name, its text and a fitting status. So does every refusal,
even of input that is not HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Final

import h11

from cordwood.broker.session import Session
from cordwood.config import KIB, MIB
from cordwood.decide.web import AllowedHosts, check_access
from cordwood.errors import (
    CordwoodError,
    ForeignHost,
    ForeignOrigin,
    Overloaded,
    RequestError,
    UnexpectedTls,
)
from cordwood.protocol.api.call import Failure
from cordwood.server.http_routes import HttpRequest, HttpResponse, Router
from cordwood.server.listeners import Connection, Listener, ListenerProtocol

logger = logging.getLogger("cordwood.server")

BODY_BYTES_MAX: Final = 16 * MIB
HEADERS_BYTES_MAX: Final = 16 * KIB
BODIES_BYTES_MAX: Final = 128 * MIB  # over all connections; beyond it uploads are refused
AHEAD_BYTES_MAX: Final = 64 * KIB  # read beyond a request that is still being answered
TLS_HANDSHAKE: Final = b"\x16\x03"
LINGER_S: Final = 2.0


class HttpListener:
    """State shared by all connections of the listener."""

    def __init__(
        self,
        listener: Listener,
        router: Router,
        hosts: AllowedHosts,
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        """``linger_s`` limits how long a refused peer may keep sending before it is cut off."""
        self.listener = listener
        self.router = router
        self.hosts = hosts
        self.linger_s = linger_s
        self.body_bytes = 0  # of requests that are still being read

    def __call__(self) -> HttpProtocol:
        """Create the protocol object of a new connection."""
        return HttpProtocol(self)


class HttpProtocol(ListenerProtocol, asyncio.Protocol):
    """One connection; its requests are answered one after another."""

    def __init__(self, shared: HttpListener) -> None:
        self._shared = shared
        self._http = h11.Connection(h11.SERVER, HEADERS_BYTES_MAX)
        self._received = asyncio.Event()
        self._answering = False
        self._ahead_bytes = 0
        self._body = bytearray()
        self._is_first = True
        self._is_head = False
        self._has_ended = False  # the peer sends no more
        self._lingering: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # --- asyncio callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and start answering."""
        self._connection = self._shared.listener.admit(transport)
        if self._connection:
            self._connection.is_busy = lambda: self._answering
            self._connection.quiesce = self._connection.pause
            self._task = asyncio.ensure_future(self._serve(self._connection))

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to h11; after a refusal they are discarded."""
        if self._lingering:
            return
        if self._is_first:
            self._is_first = False
            if data.startswith(TLS_HANDSHAKE):
                self._refuse_tls()
                return
        self._http.receive_data(data)
        self._received.set()
        if self._answering:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > AHEAD_BYTES_MAX and self._connection:
                self._connection.pause()

    def eof_received(self) -> bool:
        """The peer sends no more; answer what it has already requested."""
        self._has_ended = True
        if self._lingering:
            return False
        self._http.receive_data(b"")
        self._received.set()
        return self._stays_open()

    def connection_lost(self, _: Exception | None) -> None:
        """Unregister the connection and cancel its task; nobody waits for the answer any more."""
        if self._connection:
            self._shared.listener.release(self._connection)
        if self._task:
            self._task.cancel()
        if self._lingering:
            self._lingering.cancel()

    # --- requests -------------------------------------------------------------------------

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._serve_requests(connection)
        except Exception:
            logger.exception("http.failed peer=%s", connection.peer)
            connection.transport.abort()
        finally:
            self._answering = False
            self._forget_body()

    async def _serve_requests(self, connection: Connection) -> None:
        """Answer one request after the other; refuse those that cannot be answered."""
        session = self._shared.listener.session(connection)
        try:
            while (query := await self._next_query(connection)) is not None:
                self._answering = True
                self._shared.listener.touch(connection)
                await self._send(connection, await self._answer(query, session))
                await connection.writable.wait()
                self._answering = False
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    break
                self._http.start_next_cycle()
                self._is_head = False  # until the next request head sets it
                self._ahead_bytes = 0
                connection.resume()
            connection.transport.close()
        except _Refused as refused:
            self._refuse(connection, refused.answer)
        except h11.RemoteProtocolError as error:
            logger.info("http.malformed peer=%s error=%s", connection.peer, error)
            self._refuse(connection, _malformed(error))

    async def _next_query(self, connection: Connection) -> HttpRequest | None:
        request: h11.Request | None = None
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._received.clear()
                await self._received.wait()
            elif isinstance(event, h11.Request):
                request = event
                self._check_head(connection, request)
            elif isinstance(event, h11.Data):
                self._add_body(event.data)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                query = HttpRequest.of(request, bytes(self._body))
                self._forget_body()
                return query
            else:  # ConnectionClosed, or a state that only closing can leave
                return None

    def _check_head(self, connection: Connection, request: h11.Request) -> None:
        """Refuse, before the body is read, a request that no body can make valid."""
        self._is_head = request.method == b"HEAD"
        headers = _headers(request)
        if sum(len(name) + len(value) for name, value in request.headers) > HEADERS_BYTES_MAX:
            raise _Refused(_headers_too_large())
        try:
            query = HttpRequest.of(request, b"")
            # A target such as http://name/path contains a host of its own.
            for host in filter(None, (headers.get("host"), query.authority)):
                self._check_access(connection, query, {**headers, "host": host})
            if "host" not in headers:
                self._check_access(connection, query, headers)
            route, _ = self._shared.router.find(query)
            route.check_content_type(headers)
        except CordwoodError as error:
            raise _Refused(HttpResponse.error(error)) from None
        if int(headers.get("content-length", "0")) > BODY_BYTES_MAX:
            raise _too_large()
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            connection.transport.write(self._http.send(go_on) or b"")

    def _check_access(
        self, connection: Connection, query: HttpRequest, headers: dict[str, str]
    ) -> None:
        refusal = check_access(query.method, query.path, headers, self._shared.hosts)
        if isinstance(refusal, ForeignHost | ForeignOrigin):
            self._shared.listener.count_foreign(connection, refusal)
            raise refusal

    def _add_body(self, data: bytes | bytearray) -> None:
        self._body += data
        self._shared.body_bytes += len(data)
        if len(self._body) > BODY_BYTES_MAX:
            raise _too_large()
        if self._shared.body_bytes > BODIES_BYTES_MAX:
            busy = Overloaded("too many uploads at once; try again in a moment")
            raise _Refused(HttpResponse.error(busy))

    def _forget_body(self) -> None:
        self._shared.body_bytes -= len(self._body)
        self._body = bytearray()

    async def _answer(self, query: HttpRequest, session: Session) -> HttpResponse:
        try:
            return await self._shared.router.answer(query, session)
        except CordwoodError as error:
            return HttpResponse.error(error)
        except Exception:
            logger.exception("http.failed peer=%s path=%s", session.peer, query.path)
            return HttpResponse.of(Failure("INTERNAL", "see the broker's log"), 500)

    # --- answers --------------------------------------------------------------------------

    async def _send(self, connection: Connection, answer: HttpResponse) -> None:
        """Send an answer; a stream waits whenever the peer reads slowly."""
        if isinstance(answer.body, bytes):
            self._send_whole(connection, answer, answer.body)
            return
        connection.transport.write(self._head(answer))
        if not self._is_head:
            async for part in answer.body:
                connection.transport.write(self._http.send(h11.Data(data=part)) or b"")
                await connection.writable.wait()
        connection.transport.write(self._http.send(h11.EndOfMessage()) or b"")

    def _send_whole(
        self, connection: Connection, answer: HttpResponse, body: bytes, *extra: tuple[str, str]
    ) -> None:
        parts = [self._head(answer, ("content-length", str(len(body))), *extra)]
        if not self._is_head:
            parts.append(self._http.send(h11.Data(data=body)) or b"")
        parts.append(self._http.send(h11.EndOfMessage()) or b"")
        connection.transport.write(b"".join(parts))

    def _head(self, answer: HttpResponse, *extra: tuple[str, str]) -> bytes:
        headers = [
            ("content-type", answer.content_type),
            ("x-content-type-options", "nosniff"),
            *answer.headers,
            *extra,
        ]
        reason = HTTPStatus(answer.status).phrase
        head = h11.Response(status_code=answer.status, headers=headers, reason=reason)
        return self._http.send(head) or b""

    def _refuse_tls(self) -> None:
        """Close immediately: a TLS client cannot read a plain answer and would wait for its own."""
        if self._connection:
            error = UnexpectedTls(
                "a TLS handshake arrived at a plain HTTP listener; connect to http.tls, or use "
                "http://"
            )
            self._shared.listener.count_foreign(self._connection, error)
            self._connection.transport.close()

    def _refuse(self, connection: Connection, answer: HttpResponse) -> None:
        """Answer and close, but give a peer that is still sending time to read the answer.

        Closing a socket with unread bytes resets the connection, and the answer would be lost.
        """
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            assert isinstance(answer.body, bytes), "a refusal is short"
            self._send_whole(connection, answer, answer.body, ("connection", "close"))
        loop = asyncio.get_running_loop()
        self._lingering = loop.call_later(self._shared.linger_s, connection.transport.abort)
        if self._has_ended or self._http.their_state in {h11.DONE, h11.MUST_CLOSE, h11.CLOSED}:
            connection.transport.close()
        elif connection.transport.can_write_eof():
            connection.transport.write_eof()


class _Refused(Exception):
    """The request is answered without a handler, and the connection is closed."""

    def __init__(self, answer: HttpResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


def _too_large() -> _Refused:
    text = f"a body has at most {BODY_BYTES_MAX} bytes; send less, or in parts"
    return _Refused(HttpResponse.of(Failure("BODY_TOO_LARGE", text), 413))


def _headers_too_large() -> HttpResponse:
    text = f"a request line and its headers have at most {HEADERS_BYTES_MAX} bytes; send fewer"
    return HttpResponse.of(Failure("HEADERS_TOO_LARGE", text), 431)


def _malformed(error: h11.RemoteProtocolError) -> HttpResponse:
    """The answer to input that h11 rejects: a bad request line, header or length, or too many."""
    if error.error_status_hint == 431:
        return _headers_too_large()
    what = str(error).partition(": bytearray")[0]
    refusal = RequestError(f"this is not an HTTP/1.1 request: {what}")
    return HttpResponse.of(Failure(refusal.name, str(refusal)), error.error_status_hint)


def _headers(request: h11.Request) -> dict[str, str]:
    """Headers by lower-case name; h11 guarantees at most one Host and one Content-Length."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
