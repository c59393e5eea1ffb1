"""The HTTP door: h11 reads and writes the protocol, a table of routes answers.

Small on purpose: metrics, health and a JSON API whose answers come from the broker's desks.
A handler takes a ``Query`` and returns an ``Answer``; what it raises of ours becomes JSON with the
error's name and text and a fitting status.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from cordwood.config import MIB
from cordwood.errors import (
    ConfigError,
    CordwoodError,
    CorruptionError,
    RequestError,
    UnavailableError,
)
from cordwood.net.server import Door, Link

logger = logging.getLogger("cordwood.net")

BODY_BYTES_MAX = 16 * MIB


@dataclass(frozen=True, slots=True)
class Query:
    """One request, read whole."""

    method: str
    path: str
    params: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; raises ``RequestError``."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise RequestError(f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RequestError("the body must be a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"

    @classmethod
    def of(cls, value: object, status: int = 200) -> Answer:
        """A JSON answer."""
        return cls(json.dumps(value, indent=1).encode() + b"\n", status)


Handler = Callable[[Query], Awaitable[Answer]]


class HttpProtocol(asyncio.Protocol):
    """One connection; requests are answered one after another."""

    def __init__(self, door: Door, routes: Mapping[tuple[str, str], Handler]) -> None:
        self._door = door
        self._routes = routes
        self._http = h11.Connection(h11.SERVER)
        self._link: Link | None = None
        self._received = asyncio.Event()
        self._answering = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place at the door and begin to answer."""
        self._link = self._door.admit(transport)
        if self._link:
            self._link.is_busy = lambda: self._answering
            self._link.quiesce = self._link.pause
            self._task = asyncio.ensure_future(self._serve(self._link))

    def data_received(self, data: bytes) -> None:
        """Bytes for h11."""
        self._http.receive_data(data)
        self._received.set()

    def eof_received(self) -> None:
        """The peer sends no more."""
        self._http.receive_data(b"")
        self._received.set()

    def connection_lost(self, _: Exception | None) -> None:
        """Give the place back."""
        if self._link:
            self._door.release(self._link)
        if self._task:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        assert self._link
        self._link.writable.clear()

    def resume_writing(self) -> None:
        """It caught up."""
        assert self._link
        self._link.writable.set()

    async def _serve(self, link: Link) -> None:
        try:
            while (query := await self._next_query()) is not None:
                self._answering = True
                self._door.touch(link)
                link.pause()  # a peer that pipelines waits its turn unread
                answer = await self._answer(query)
                self._send(link, query, answer)
                await link.writable.wait()
                self._answering = False
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    break
                self._http.start_next_cycle()
                link.resume()
        except h11.RemoteProtocolError as error:
            self._refuse(link, error)
        finally:
            self._answering = False
            link.transport.close()

    async def _next_query(self) -> Query | None:
        request: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._received.clear()
                await self._received.wait()
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    raise h11.RemoteProtocolError("body too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return _query(request, bytes(body))
            else:  # ConnectionClosed, or a state we only leave by closing
                return None

    async def _answer(self, query: Query) -> Answer:
        handler = self._routes.get((query.method, query.path))
        if handler is None:
            known = sorted({path for _, path in self._routes})
            return Answer.of({"error": "NOT_FOUND", "message": f"paths: {', '.join(known)}"}, 404)
        try:
            return await handler(query)
        except CordwoodError as error:
            return Answer.of({"error": error.name, "message": str(error)}, _status(error))
        except Exception:
            logger.exception("http.failed path=%s", query.path)
            return Answer.of({"error": "INTERNAL", "message": "see the broker's log"}, 500)

    def _send(self, link: Link, query: Query, answer: Answer) -> None:
        headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body)))]
        parts = [self._http.send(h11.Response(status_code=answer.status, headers=headers))]
        if query.method != "HEAD":
            parts.append(self._http.send(h11.Data(data=answer.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        link.transport.write(b"".join(part or b"" for part in parts))

    def _refuse(self, link: Link, error: h11.RemoteProtocolError) -> None:
        logger.info("http.malformed peer=%s error=%s", link.peer, error)
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = h11.Response(
                status_code=error.error_status_hint, headers=[("content-length", "0")]
            )
            link.transport.write(self._http.send(response) or b"")


def _query(request: h11.Request, body: bytes) -> Query:
    target = urlsplit(request.target.decode("ascii", "replace"))
    params = dict(parse_qsl(target.query, keep_blank_values=True))
    return Query(request.method.decode("ascii"), unquote(target.path), params, body)


def _status(error: CordwoodError) -> int:
    if error.exit_code == 3:
        return 404
    if error.exit_code == 4:
        return 409
    families = {RequestError: 400, ConfigError: 400, UnavailableError: 503, CorruptionError: 500}
    return next((code for family, code in families.items() if isinstance(error, family)), 500)
