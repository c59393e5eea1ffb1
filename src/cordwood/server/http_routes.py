"""Routes of the HTTP listener: what each takes, how it is decoded, and how errors are told.

A route takes the parameters of its URL or a body of one declared content type, never both kinds of
fields, and its handler gets a message of ``wire.api``, decoded and checked. No route takes a form
or plain text: those, and nothing else, a foreign web page may send without asking first. A GET
changes nothing.

A body is bounded by its values, not only by its bytes, before it is parsed. What jobs send may be
long (``by_long_json``); it is decoded on a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import h11

from cordwood.errors import (
    CordwoodError,
    MethodNotAllowed,
    RequestError,
    UnknownPath,
    UnsupportedContentType,
)
from cordwood.protocol.api.decoding import (
    count_values,
    decode_json,
    decode_json_aside,
    decode_params,
)

M = TypeVar("M")

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
VALUES_MAX: Final = 1_000  # of a body that is decoded on the event loop: a few milliseconds
LONG_VALUES_MAX: Final = 1_000_000  # a delivery of 100,000 parts has half as many
BRIEF_VALUES: Final = 20_000  # the parser in C keeps the GIL no longer than 20 ms for these
SHORT_BYTES: Final = 16_384  # a body of so many is looked at on the event loop


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, read whole."""

    method: str
    path: str
    params: str  # what follows the ?
    body: bytes
    authority: str = ""  # the host in a target such as http://host/path

    @classmethod
    def of(cls, request: h11.Request, body: bytes) -> HttpRequest:
        """From what h11 read; HEAD is a GET whose body is not sent."""
        try:
            target = urlsplit(request.target.decode("ascii"))
        except ValueError:
            raise RequestError("the request's target is no URL") from None
        method = request.method.decode("ascii")
        return cls(
            "GET" if method == "HEAD" else method,
            unquote(target.path),
            target.query,
            body,
            target.netloc,
        )


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What goes back."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: object, status: int = 200) -> HttpResponse:
        """A JSON answer."""
        return cls(json.dumps(value, indent=1).encode() + b"\n", status)

    @classmethod
    def error(cls, error: CordwoodError) -> HttpResponse:
        """An error of ours, with its name, text and status."""
        answer = cls.of({"error": error.name, "message": str(error)}, error.http_status)
        allow = error.allow if isinstance(error, MethodNotAllowed) else ()
        headers = (("allow", ", ".join(allow)),) if allow else ()
        return cls(answer.body, answer.status, headers=headers)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """What answers one method of one path."""

    answer: Callable[[HttpRequest], Awaitable[HttpResponse]]
    takes: str | None  # the content type of its body; None: it has none
    message: type[Any]
    about: Callable[..., Any]  # the handler, whose first sentence is in the docs

    def check_content_type(self, headers: Mapping[str, str]) -> None:
        """Raise ``UnsupportedContentType`` for a body of another type, or of none."""
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.takes is not None and given != self.takes:
            raise UnsupportedContentType(
                f"this route takes {self.takes}, not {ascii(given[:80]) if given else 'nothing'}; "
                f"set the header content-type: {self.takes}"
            )
        if self.takes is None and has_body:
            raise UnsupportedContentType("this route takes no body; put its fields in the URL")


Routes = Mapping[tuple[str, str], HttpRoute]


def by_params(message: type[M], handler: Callable[[M], Awaitable[HttpResponse]]) -> HttpRoute:
    """A route that takes the parameters of its URL."""

    async def answer(query: HttpRequest) -> HttpResponse:
        return await handler(decode_params(message, query.params))

    return HttpRoute(answer, None, message, handler)


def by_json(message: type[M], handler: Callable[[M], Awaitable[HttpResponse]]) -> HttpRoute:
    """A route that takes a small JSON object."""

    async def answer(query: HttpRequest) -> HttpResponse:
        _check_values(query, VALUES_MAX)
        return await handler(decode_json(message, query.body))

    return HttpRoute(answer, JSON, message, handler)


def by_long_json(
    message: type[M], handler: Callable[[M], Awaitable[HttpResponse]], turn: asyncio.Semaphore
) -> HttpRoute:
    """A route that takes a JSON object of any length a body may have.

    ``turn`` is shared by all of them: two threads that decode would take the GIL from the event
    loop twice as often.
    """

    def decode(query: HttpRequest) -> M:
        is_brief = _check_values(query, LONG_VALUES_MAX) <= BRIEF_VALUES
        return (decode_json if is_brief else decode_json_aside)(message, query.body)

    async def answer(query: HttpRequest) -> HttpResponse:
        is_short = len(query.body) <= SHORT_BYTES
        if is_short and _check_values(query, LONG_VALUES_MAX) <= VALUES_MAX:
            return await handler(decode_json(message, query.body))
        async with turn:
            decoded = await asyncio.to_thread(decode, query)
        return await handler(decoded)

    return HttpRoute(answer, JSON, message, handler)


def _check_values(query: HttpRequest, most: int) -> int:
    """About how many values the body has; raises ``RequestError`` for more than ``most``."""
    if query.params:
        raise RequestError("this route takes its fields in the body, not in the URL")
    found = count_values(query.body, most)
    if found > most:
        raise RequestError(f"the body has more than {most:,} values; this route takes no more")
    return found


def by_bytes(message: type[M], handler: Callable[[M, bytes], Awaitable[HttpResponse]]) -> HttpRoute:
    """A route that takes a file, and in its URL what to do with it."""

    async def answer(query: HttpRequest) -> HttpResponse:
        return await handler(decode_params(message, query.params), query.body)

    return HttpRoute(answer, BYTES, message, handler)


def find_route(routes: Routes, query: HttpRequest) -> HttpRoute:
    """The route of a request; raises ``UnknownPath`` or ``MethodNotAllowed``."""
    route = routes.get((query.method, query.path))
    if route is not None:
        return route
    methods = sorted(method for method, path in routes if path == query.path)
    if methods:
        raise MethodNotAllowed(f"{query.path} takes {', '.join(methods)}", methods)
    known = sorted({path for _, path in routes})
    raise UnknownPath(f"paths: {', '.join(known)}")
