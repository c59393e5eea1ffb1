"""A client of the broker's HTTP API, on the standard library.

An address is ``HOST:PORT`` or, for a listener with TLS, ``https://HOST:PORT``.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlencode

from cordwood.address import Address, parse_address
from cordwood.client.broker_listeners import ListenerAddress, parse_http
from cordwood.client.diagnosis import ListenerKind, diagnose
from cordwood.errors import CordwoodError, RequestError, UnavailableError
from cordwood.protocol.api.call import Call, Failure
from cordwood.protocol.api.codec import decode_reply, encode_call
from cordwood.protocol.line.replies import parse_error
from cordwood.tls import ClientTls, context_of

CONTENT_TYPES = {"POST": "application/json", "PUT": "application/octet-stream"}
ANSWER_S = 60.0  # limit for one reply; a delivery is appended and synced before its reply

R = TypeVar("R")


class HttpClient:
    """A client of one broker; each request uses a new connection."""

    def __init__(
        self,
        address: str | ListenerAddress,
        *,
        timeout_s: float = ANSWER_S,
        tls: ClientTls | ssl.SSLContext | None = None,
    ) -> None:
        """``tls`` is used for an address with TLS; without it, the system's CAs are trusted."""
        self._address = address
        self._timeout_s = timeout_s
        self._tls = tls

    def call(self, request: Call[R]) -> R:
        """Send a request and return the reply; raise the broker's error or ``UnavailableError``."""
        with closing(connect(self._address, self._timeout_s, self._tls)) as connection:
            return send(connection, request)


def connect(
    address: str | ListenerAddress, timeout_s: float, tls: ClientTls | ssl.SSLContext | None = None
) -> http.client.HTTPConnection:
    """Return a connection that opens on first use."""
    where, is_tls = parse_http(address) if isinstance(address, str) else address
    host, port = parse_address(where)
    if not is_tls:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    context = context_of(ClientTls() if tls is None else tls)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


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
        _diagnose(connection, error)
        raise UnavailableError(
            f"no broker replies to HTTP at {connection.host}:{connection.port} ({error!r}); is it "
            "running with its http listener enabled?"
        ) from None
    if response.status >= 400:
        raise _refusal(response.status, _decode(connection, Failure, text))
    return text


def _diagnose(connection: http.client.HTTPConnection, error: Exception) -> None:
    """Raise what explains a failed exchange, if something other than HTTP is at the address."""
    address = Address(connection.host, connection.port)
    context = getattr(connection, "_context", None)  # of an HTTPSConnection
    reason = error if isinstance(error, OSError) else ConnectionError(str(error))
    if found := diagnose(reason, address, ListenerKind.HTTP, context):
        raise found from None


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
