"""A client of the broker's HTTP API, on the standard library."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlencode

from cordwood.address import parse_address
from cordwood.errors import CordwoodError, RequestError, UnavailableError
from cordwood.protocol.api.call import Call, Failure
from cordwood.protocol.api.codec import decode_reply, encode_call
from cordwood.protocol.line.replies import parse_error

CONTENT_TYPES = {"POST": "application/json", "PUT": "application/octet-stream"}
ANSWER_S = 60.0  # limit for one reply; a delivery is appended and synced before its reply

R = TypeVar("R")


class HttpClient:
    """A client of one broker; each request uses a new connection."""

    def __init__(self, address: str, *, timeout_s: float = ANSWER_S) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def call(self, request: Call[R]) -> R:
        """Send a request and return the reply; raise the broker's error or ``UnavailableError``."""
        with closing(connect(self._address, self._timeout_s)) as connection:
            return send(connection, request)


def connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection that opens on first use."""
    return http.client.HTTPConnection(*parse_address(address), timeout=timeout_s)


def send(connection: http.client.HTTPConnection, request: Call[R], data: bytes | None = None) -> R:
    """Send one request, with ``data`` as its body if it is an upload, and return the reply."""
    method, path, params, body = encode_call(request)
    text = exchange(connection, method, path, params, body if data is None else data)
    return _decode(connection, request.reply_type(), text)


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    params: Mapping[str, str],
    body: bytes | None,
) -> bytes:
    """Send one request and return its JSON; raise the broker's error or ``UnavailableError``."""
    headers = {"content-type": CONTENT_TYPES[method]} if method in CONTENT_TYPES else {}
    try:
        target = f"{path}?{urlencode(params)}" if params else path
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"no broker replies to HTTP at {connection.host}:{connection.port} ({error!r}); is it "
            "running with its http listener enabled?"
        ) from None
    if response.status >= 400:
        raise _refusal(response.status, _decode(connection, Failure, text))
    return text


def _decode(connection: http.client.HTTPConnection, kind: type[R], text: bytes) -> R:
    try:
        return decode_reply(kind, text)
    except ValueError as error:
        raise RequestError(
            f"{connection.host}:{connection.port} did not answer with a {kind.__name__} ({error}); "
            "is it a broker of this version?"
        ) from None


def _refusal(status: int, failure: Failure) -> CordwoodError:
    """Return the broker's error as an instance of its own class."""
    error: Any = parse_error(f"ERR {failure.error} {failure.message}".encode())
    if type(error) is not CordwoodError:
        return error  # type: ignore[no-any-return]
    return UnavailableError(failure.message) if status >= 500 else RequestError(failure.message)
