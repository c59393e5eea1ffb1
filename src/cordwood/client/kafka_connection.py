"""One connection to one Kafka listener: sends a request and reads its reply.

``client.kafka`` sends its requests with it. The caller chooses the broker and decides what to do if
it does not answer.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from typing import Any, TypeVar

from cordwood.protocol.kafka.frames import encode_request, parse_response
from cordwood.protocol.kafka.schema import api_of

Reply = TypeVar("Reply")
Versions = Mapping[type, int]


class ClientConnection:
    """Connects on first use, and again after a failure; one request at a time.

    ``versions`` gives the version of requests that are not sent in the newest one.
    """

    def __init__(
        self, address: tuple[str, int], *, client_id: str, timeout_s: float, versions: Versions
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._versions = versions
        self._correlations = itertools.count(1)
        self._socket: socket.socket | None = None

    def ask(self, request: tuple[Any, ...], reply_type: type[Reply]) -> Reply:
        """Send a request and read its reply; raise ``OSError`` if none arrives."""
        correlation = self.send(request)
        try:
            frame = _receive_frame(self._connect())
            api = api_of(type(request))
            answered, reply = parse_response(api.key, self._version(request), frame)
            if answered != correlation:
                raise ConnectionError(f"reply {answered} does not belong to request {correlation}")
        except OSError:
            self.close()
            raise
        assert isinstance(reply, reply_type)
        return reply

    def send(self, request: tuple[Any, ...]) -> int:
        """Send a request without waiting for a reply; return its correlation id."""
        correlation = next(self._correlations)
        parts = encode_request(request, self._version(request), correlation, self._client_id)
        try:
            self._connect().sendall(b"".join(parts))
        except OSError:
            self.close()
            raise
        return correlation

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _version(self, request: tuple[Any, ...]) -> int:
        kind = type(request)
        return self._versions.get(kind, api_of(kind).last_version)

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket


def _receive_frame(connection: socket.socket) -> memoryview:
    return _receive(connection, int.from_bytes(_receive(connection, 4), "big"))


def _receive(connection: socket.socket, length: int) -> memoryview:
    """Read exactly ``length`` bytes."""
    frame = memoryview(bytearray(length))
    filled = 0
    while filled < length:
        count = connection.recv_into(frame[filled:])
        if count == 0:
            raise ConnectionError("the connection ended")
        filled += count
    return frame
