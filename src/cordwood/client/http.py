"""The broker's JSON API, asked with the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from cordwood.errors import RequestError, UnavailableError
from cordwood.wire.line.replies import parse_error


class HttpClient:
    """Asks one broker; each request has a connection of its own."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """What a path answers."""
        return self._ask("GET", path, params, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the body says."""
        return self._ask("POST", path, {}, json.dumps(body).encode())

    def put(self, path: str, body: bytes, **params: str) -> dict[str, Any]:
        """Leave bytes there."""
        return self._ask("PUT", path, params, body)

    def delete(self, path: str, **params: str) -> dict[str, Any]:
        """Take away what the parameters name."""
        return self._ask("DELETE", path, params, None)

    def _ask(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None
    ) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
        target = f"{path}?{urlencode(params)}" if params else path
        try:
            connection.request(method, target, body=body)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"no broker answers HTTP at {self._address} ({error}); is it running, and is its "
                "http door on?"
            ) from None
        finally:
            connection.close()
        return self._answer(response.status, text)

    def _answer(self, status: int, text: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text)
        except ValueError:
            raise RequestError(f"{self._address} answered {status} and no JSON") from None
        if status >= 400:
            told = f"ERR {answer.get('error', status)} {answer.get('message', '')}"
            raise parse_error(told.encode())
        return dict(answer)
