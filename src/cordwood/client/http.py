"""A client of the broker's JSON API, on the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

from cordwood.client.effects import parse_address
from cordwood.errors import CordwoodError, RequestError, UnavailableError
from cordwood.protocol.line.replies import parse_error

CONTENT_TYPES = {"POST": "application/json", "PUT": "application/octet-stream"}
ANSWER_S = 60.0  # limit for one reply; a delivery is appended and synced before its reply


class HttpClient:
    """A client of one broker; each request uses a new connection."""

    def __init__(self, address: str, *, timeout_s: float = ANSWER_S) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Send a GET and return the JSON answer."""
        return self._ask("GET", path, params, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST with a JSON body."""
        return self._ask("POST", path, {}, json.dumps(body).encode())

    def put(self, path: str, body: bytes, **params: str) -> dict[str, Any]:
        """Upload bytes with a PUT."""
        return self._ask("PUT", path, params, body)

    def delete(self, path: str, **params: str) -> dict[str, Any]:
        """Send a DELETE for what the parameters name."""
        return self._ask("DELETE", path, params, None)

    def _ask(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None
    ) -> dict[str, Any]:
        with closing(connect(self._address, self._timeout_s)) as connection:
            return exchange(connection, method, path, params, body)


def connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection that opens on first use."""
    return http.client.HTTPConnection(*parse_address(address), timeout=timeout_s)


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    params: Mapping[str, str],
    body: bytes | None,
) -> dict[str, Any]:
    """Send one request and return its answer; raise the broker's error or ``UnavailableError``."""
    where = f"{connection.host}:{connection.port}"
    headers = {"content-type": CONTENT_TYPES[method]} if method in CONTENT_TYPES else {}
    try:
        target = f"{path}?{urlencode(params)}" if params else path
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"no broker answers HTTP at {where} ({error!r}); is it running, with its http "
            "listener on?"
        ) from None
    try:
        answer = json.loads(text) if text else {}
    except ValueError:
        raise RequestError(f"{where} answered {response.status} and no JSON") from None
    if response.status >= 400:
        raise _refusal(response.status, answer)
    return dict(answer)


def _refusal(status: int, answer: Mapping[str, Any]) -> CordwoodError:
    """Return the broker's error as an instance of its own class."""
    message = answer.get("message", f"the broker answered with status {status}")
    error = parse_error(f"ERR {answer.get('error', '-')} {message}".encode())
    if type(error) is not CordwoodError:
        return error
    return UnavailableError(message) if status >= 500 else RequestError(message)
