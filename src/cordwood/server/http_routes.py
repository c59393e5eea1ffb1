"""Routes of the HTTP listener: what each accepts, how it is decoded, and how errors are answered.

A route takes its fields from its path, from the parameters of its URL or from a body of one
declared content type. Its handler receives a decoded and validated message of ``protocol.api`` and
returns another one, or a response that may be a stream. No route accepts a form or plain text, as
those are the only types that a page of another origin may send without a CORS preflight. A GET
changes nothing.

The number of values in a body is limited before it is parsed, not only its size. Jobs may send long
bodies (``is_long``); they are decoded on a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args
from urllib.parse import quote, unquote, urlsplit

import h11

from cordwood.broker.session import Session
from cordwood.errors import (
    CordwoodError,
    MethodNotAllowed,
    RequestError,
    UnknownPath,
    UnsupportedContentType,
)
from cordwood.protocol.api.call import API_PREFIX, OLD_PREFIX, Failure
from cordwood.protocol.api.codec import (
    count_values,
    decode_json,
    decode_json_on_thread,
    decode_params,
    encode_json,
)

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
VALUES_MAX: Final = 1_000  # in a body decoded on the event loop: takes a few milliseconds
LONG_VALUES_MAX: Final = 1_000_000  # a delivery of 100,000 parts has about half as many
BRIEF_VALUES: Final = 20_000  # the C parser holds the GIL for at most 20 ms for this many
SHORT_BYTES: Final = 16_384  # a body up to this size is counted on the event loop
_FIELD: Final = re.compile(r"\{(\w+)\}")

Decode = Callable[[Any, bytes], Any]


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
            raise RequestError("the request's target is not a URL") from None
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
    """The answer to one request; a body of unknown length is sent in chunks as it is produced."""

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: object, status: int = 200) -> HttpResponse:
        """Create a JSON answer."""
        return cls(encode_json(value), status)

    @classmethod
    def error(cls, error: CordwoodError) -> HttpResponse:
        """Create the answer for an error, with its name, text and status."""
        allow = error.allow if isinstance(error, MethodNotAllowed) else ()
        headers = (("allow", ", ".join(allow)),) if allow else ()
        body = encode_json(Failure(error.name, str(error)))
        return cls(body, error.http_status, headers=headers)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """The handler of one method of one path, and what it accepts."""

    message: Any  # a ``Call``, or a union of calls with the same route
    handler: Callable[..., Awaitable[object]]  # of the handlers, the message and an uploaded body
    path: str  # may name fields of the message: /topics/{name}
    method: str = "GET"
    is_long: bool = False  # takes a JSON object as long as the body limit allows

    @property
    def takes(self) -> str | None:
        """The content type of the body; None if the route takes no body."""
        return {"POST": JSON, "PUT": BYTES}.get(self.method)

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
            raise UnsupportedContentType("this route accepts no body; put the fields in the URL")


def api_route(message: Any, handler: Callable[..., Awaitable[object]], **more: bool) -> HttpRoute:
    """Make the route that a message of the API, or a union of messages, declares."""
    method, path = (get_args(message) or (message,))[0].route
    return HttpRoute(message, handler, API_PREFIX + path, method, **more)


class Router:
    """Finds the route of a request, decodes its message and calls its handler."""

    def __init__(
        self,
        routes: Iterable[HttpRoute],
        handlers: Callable[[Session], Any],
        *,
        decode: Decode = decode_json,
        decode_on_thread: Decode = decode_json_on_thread,
    ) -> None:
        """``handlers`` makes the object whose methods the routes name, for one session."""
        self.routes = tuple(routes)
        self._patterns = [(_pattern(route.path), route) for route in self.routes]
        self._handlers = handlers
        self._decode_json = decode
        self._decode_on_thread = decode_on_thread
        # One body is decoded at a time: two threads would take the GIL from the event loop twice
        # as often.
        self._turn = asyncio.Semaphore(1)

    def find(self, request: HttpRequest) -> tuple[HttpRoute, dict[str, str]]:
        """Return the route and the fields in its path; raises if there is none."""
        path = request.path
        if path.startswith(f"{OLD_PREFIX}/") and not path.startswith(f"{API_PREFIX}/"):
            path = API_PREFIX + path.removeprefix(OLD_PREFIX)
        matches = [
            (route, match)
            for pattern, route in self._patterns
            if (match := pattern.fullmatch(path))
        ]
        for route, match in matches:
            if route.method == request.method:
                return route, match.groupdict()
        if matches:
            methods = sorted(route.method for route, _ in matches)
            raise MethodNotAllowed(f"{request.path} takes {', '.join(methods)}", methods)
        known = sorted({route.path for route in self.routes})
        raise UnknownPath(f"paths: {', '.join(known)}")

    async def answer(self, request: HttpRequest, session: Session) -> HttpResponse:
        """Decode the request, let its handler answer, and encode the reply."""
        route, fields = self.find(request)
        params = "&".join(
            [*filter(None, [request.params]), *(f"{k}={quote(v)}" for k, v in fields.items())]
        )
        handlers = self._handlers(session)
        if route.takes == JSON:
            reply = await route.handler(handlers, await self._decode(route, request))
        elif route.takes == BYTES:
            message = decode_params(route.message, params)
            reply = await route.handler(handlers, message, request.body)
        else:
            reply = await route.handler(handlers, decode_params(route.message, params))
        return reply if isinstance(reply, HttpResponse) else HttpResponse.of(reply)

    async def _decode(self, route: HttpRoute, request: HttpRequest) -> Any:
        """Decode a body: a short one at once, a long one on a thread."""
        most = LONG_VALUES_MAX if route.is_long else VALUES_MAX
        is_counted = not route.is_long or len(request.body) <= SHORT_BYTES
        if is_counted and _check_values(request, most) <= VALUES_MAX:
            return self._decode_json(route.message, request.body)
        async with self._turn:
            return await asyncio.to_thread(self._decode_long, route, request)

    def _decode_long(self, route: HttpRoute, request: HttpRequest) -> Any:
        is_brief = _check_values(request, LONG_VALUES_MAX) <= BRIEF_VALUES
        decode = self._decode_json if is_brief else self._decode_on_thread
        return decode(route.message, request.body)


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path; a field matches one segment."""
    parts = _FIELD.split(path)
    texts = [
        f"(?P<{part}>[^/]+)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
    ]
    return re.compile("".join(texts))


def _check_values(request: HttpRequest, most: int) -> int:
    """Return roughly how many values the body has; raise ``RequestError`` above ``most``."""
    if request.params:
        raise RequestError("this route accepts its fields in the body, not in the URL")
    count = count_values(request.body, most)
    if count > most:
        raise RequestError(f"the body has more than {most:,} values; this route accepts no more")
    return count
