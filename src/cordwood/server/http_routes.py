"""Routes of the HTTP listener: what each accepts, how it is decoded, and how errors are answered.

A route takes its fields from the parameters of its URL or from a body of one declared content type,
never from both. Its handler receives a decoded and validated message of ``protocol.api``. No route
accepts a form or plain text, because those are the only types that a page of another origin may
send without a CORS preflight. A GET changes nothing.

The number of values in a body is limited before it is parsed, not only its size. Jobs may send long
bodies (``by_long_json``); they are decoded on a thread, one at a time.
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
VALUES_MAX: Final = 1_000  # in a body decoded on the event loop: takes a few milliseconds
LONG_VALUES_MAX: Final = 1_000_000  # a delivery of 100,000 parts has about half as many
BRIEF_VALUES: Final = 20_000  # the C parser holds the GIL for at most 20 ms for this many
SHORT_BYTES: Final = 16_384  # a body up to this size is counted on the event loop


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete request."""

    method: str
    path: str
    params: str  # the part of the URL after the ?
    body: bytes
    authority: str = ""  # the host in a target such as http://host/path

    @classmethod
    def of(cls, request: h11.Request, body: bytes) -> HttpRequest:
        """Build a request from what h11 parsed; HEAD becomes a GET whose body is not sent."""
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
    """The answer to one request."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: object, status: int = 200) -> HttpResponse:
        """Create a JSON answer."""
        return cls(json.dumps(value, indent=1).encode() + b"\n", status)

    @classmethod
    def error(cls, error: CordwoodError) -> HttpResponse:
        """Create the answer for an error, with its name, text and status."""
        answer = cls.of({"error": error.name, "message": str(error)}, error.http_status)
        allow = error.allow if isinstance(error, MethodNotAllowed) else ()
        headers = (("allow", ", ".join(allow)),) if allow else ()
        return cls(answer.body, answer.status, headers=headers)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """The handler of one method of one path, and what it accepts."""

    answer: Callable[[HttpRequest], Awaitable[HttpResponse]]
    takes: str | None  # content type of the body; None: no body
    message: type[Any]
    about: Callable[..., Any]  # the handler; its docstring appears in docs/http.md

    def check_content_type(self, headers: Mapping[str, str]) -> None:
        """Raise ``UnsupportedContentType`` for a body of another type, of none, or unwanted."""
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
    """Make a route that takes the parameters of its URL."""

    async def answer(query: HttpRequest) -> HttpResponse:
        return await handler(decode_params(message, query.params))

    return HttpRoute(answer, None, message, handler)


def by_json(message: type[M], handler: Callable[[M], Awaitable[HttpResponse]]) -> HttpRoute:
    """Make a route that takes a small JSON object."""

    async def answer(query: HttpRequest) -> HttpResponse:
        _check_values(query, VALUES_MAX)
        return await handler(decode_json(message, query.body))

    return HttpRoute(answer, JSON, message, handler)


def by_long_json(
    message: type[M], handler: Callable[[M], Awaitable[HttpResponse]], turn: asyncio.Semaphore
) -> HttpRoute:
    """Make a route that takes a JSON object as long as the body limit allows.

    All such routes share ``turn``, so one body is decoded at a time: two decoding threads would
    take the GIL from the event loop twice as often.
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
    """Return roughly how many values the body has; raise ``RequestError`` above ``most``."""
    if query.params:
        raise RequestError("this route takes its fields in the body, not in the URL")
    found = count_values(query.body, most)
    if found > most:
        raise RequestError(f"the body has more than {most:,} values; this route takes no more")
    return found


def by_bytes(message: type[M], handler: Callable[[M, bytes], Awaitable[HttpResponse]]) -> HttpRoute:
    """Make a route that takes a file as its body and its fields from the URL."""

    async def answer(query: HttpRequest) -> HttpResponse:
        return await handler(decode_params(message, query.params), query.body)

    return HttpRoute(answer, BYTES, message, handler)


def find_route(routes: Routes, query: HttpRequest) -> HttpRoute:
    """Return the route of a request; raise ``UnknownPath`` or ``MethodNotAllowed``."""
    route = routes.get((query.method, query.path))
    if route is not None:
        return route
    methods = sorted(method for method, path in routes if path == query.path)
    if methods:
        raise MethodNotAllowed(f"{query.path} takes {', '.join(methods)}", methods)
    known = sorted({path for _, path in routes})
    raise UnknownPath(f"paths: {', '.join(known)}")
