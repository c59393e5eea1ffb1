"""One connection to one Kafka listener: sends a request and reads its reply.

``client.kafka`` sends its requests with it. The caller chooses the broker and decides what to do if
it does not answer. A connection that gets no answer to its first request is diagnosed: the listener
may be of another protocol, or only one side may use TLS.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from cordwood.address import Address
from cordwood.client.diagnosis import SILENCE_S, ListenerKind, diagnose
from cordwood.protocol.kafka.frames import encode_request, parse_response
from cordwood.protocol.kafka.schema import api_of
from cordwood.tls import ClientTls, context_of

Reply = TypeVar("Reply")
Versions = Mapping[type, int]
Tls = ClientTls | ssl.SSLContext | None
_FIRST_REPLY_BYTES_MAX: Final = 1 << 28  # text of another protocol, read as a length, is more


class ClientConnection:
    """Connects on first use, and again after a failure; one request at a time.

    ``versions`` gives the version of requests that are not sent in the newest one.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        timeout_s: float,
        versions: Versions,
        tls: Tls = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._versions = versions
        self._correlations = itertools.count(1)
        self._socket: socket.socket | None = None
        self._has_replied = False

    def ask(self, request: tuple[Any, ...], reply_type: type[Reply]) -> Reply:
        """Send a request and read its reply; raise ``OSError`` if none arrives.

        Raises ``TlsError`` or ``WrongListener`` if the listener is found to be another.
        """
        correlation = self.send(request)
        try:
            frame = self._receive_frame(self._connect())
            api = api_of(type(request))
            answered, reply = parse_response(api.key, self._version(request), frame)
            if answered != correlation:
                raise ConnectionError(f"reply {answered} does not belong to request {correlation}")
        except OSError as error:
            self._fail(error)
            raise
        assert isinstance(reply, reply_type)
        return reply

    def send(self, request: tuple[Any, ...]) -> int:
        """Send a request without waiting for a reply; return its correlation id."""
        correlation = next(self._correlations)
        parts = encode_request(request, self._version(request), correlation, self._client_id)
        try:
            self._connect().sendall(b"".join(parts))
        except OSError as error:
            self._fail(error)
            raise
        return correlation

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._has_replied = False

    def _fail(self, error: OSError) -> None:
        """Close; raise what explains the error, if nothing has ever arrived on the connection."""
        had_replied = self._has_replied
        self.close()
        if not had_replied:
            self._diagnose(error)

    def _diagnose(self, error: OSError) -> None:
        if found := diagnose(error, self._address, ListenerKind.KAFKA, context_of(self._tls)):
            self.close()
            raise found from None

    def _version(self, request: tuple[Any, ...]) -> int:
        kind = type(request)
        return self._versions.get(kind, api_of(kind).last_version)

    def _connect(self) -> socket.socket:
        if self._socket is None:
            opened = socket.create_connection(self._address, timeout=self._timeout_s)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context := context_of(self._tls):
                    opened = context.wrap_socket(opened, server_hostname=self._address.host)
            except BaseException:
                opened.close()
                raise
            self._socket = opened
        return self._socket

    def _receive_frame(self, connection: socket.socket) -> memoryview:
        if self._has_replied:
            return _receive(connection, int.from_bytes(_receive(connection, 4), "big"))
        length = int.from_bytes(self._receive_first(connection), "big")
        if length > _FIRST_REPLY_BYTES_MAX:
            raise ConnectionError("the reply is not of Kafka's protocol")
        frame = _receive(connection, length)
        self._has_replied = True
        return frame

    def _receive_first(self, connection: socket.socket) -> bytes | memoryview:
        """Read the first length; if it is long in coming, make sure that a Kafka listener works."""
        connection.settimeout(min(SILENCE_S, self._timeout_s))
        try:
            first = connection.recv(1)
        except TimeoutError as error:
            self._diagnose(error)
            connection.settimeout(self._timeout_s)
            return _receive(connection, 4)
        if not first:
            raise ConnectionError("the connection ended")
        connection.settimeout(self._timeout_s)
        return first + _receive(connection, 3)


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
