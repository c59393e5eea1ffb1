"""A plain JSON client for the HTTP API, next to the typed client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from cordwood.client.http import HttpClient, connect, exchange


class JsonClient(HttpClient):
    """Sends any JSON to any path."""

    def get(self, path: str, **params: str) -> dict[str, Any]:
        return self._exchange("GET", path, params, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._exchange("POST", path, {}, json.dumps(body).encode())

    def put(self, path: str, body: bytes, **params: str) -> dict[str, Any]:
        return self._exchange("PUT", path, params, body)

    def delete(self, path: str, **params: str) -> dict[str, Any]:
        return self._exchange("DELETE", path, params, None)

    def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None
    ) -> dict[str, Any]:
        with closing(connect(self._address, self._timeout_s)) as connection:
            return json.loads(exchange(connection, method, path, params, body))
