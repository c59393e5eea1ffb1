"""The control protocol without I/O: bytes in, requests out, in order.

Several commands may arrive in one packet, or one command in several. An invalid command becomes a
``Refused`` value, answered in order like any other, and the connection continues. Only a stream
that cannot be parsed any further raises an error and is closed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cordwood.errors import CordwoodError, LineTooLong, ProtocolError, RequestError
from cordwood.protocol.line.commands import LineRequest, Put, Set, parse_command
from cordwood.protocol.line.framing import Framing, Splitter, TooLong, plan_framing
from cordwood.protocol.line.http_detection import http_error, is_http


@dataclass(frozen=True, slots=True)
class Refused:
    """An invalid command: reply ``encode_error(error)`` and continue."""

    error: CordwoodError


class ControlConnection:
    """One control connection: pass it bytes, then take requests until None."""

    def __init__(self, line_bytes_max: int) -> None:
        """Commands above ``line_bytes_max`` are skipped and refused."""
        self._bytes_max = line_bytes_max
        self._head = b""  # bytes received before the framing was known
        self._splitter: Splitter | None = None
        self._is_ended = False
        self._strips_quotes = False  # ``SET quotes``
        self.framing: Framing | None = None  # None until the first bytes decide it

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes; raise ``ProtocolError`` if they are not this protocol at all."""
        if self._splitter is None:
            self._head += data
            self._open(at_end=False)
        else:
            self._splitter.receive(data)

    def receive_eof(self) -> None:
        """The peer closed its side; an incomplete command is refused, never run."""
        self._is_ended = True
        if self._splitter is None:
            self._open(at_end=True)

    def next_request(self) -> LineRequest | Refused | None:
        """Return the next request in order, or None until more bytes arrive.

        Raises ``BadFrame``, or ``UnexpectedHttp`` before any part of an HTTP request is run.
        """
        while self._splitter is not None:
            message = self._splitter.next_message()
            if message is None:
                return self._refuse_half()
            if isinstance(message, TooLong):
                self._check_http(message.kept)
                return self._refuse_long(message)
            if message.strip() or self.framing is Framing.FRAMES:  # an empty line is no command
                return self._request(message)
        return None

    def encode(self, reply: bytes) -> bytes:
        """Encode a reply in the framing that the peer uses."""
        return (self.framing or Framing.TEXT).encode(reply)

    def _open(self, *, at_end: bool) -> None:
        self.framing = plan_framing(self._head, self._bytes_max, at_end=at_end)
        if self.framing is not None:
            self._splitter = Splitter(self.framing, self._bytes_max)
            self._splitter.receive(self._head)
            self._head = b""

    def _request(self, body: bytes) -> LineRequest | Refused:
        try:
            request = parse_command(body)
        except RequestError as error:
            self._check_http(body)  # valid commands are never HTTP
            return Refused(error)
        if isinstance(request, Set):
            self._strips_quotes = request.strips_quotes
        if isinstance(request, Put) and self._strips_quotes:
            return replace(request, payload=_strip_quotes(request.payload))
        return request

    def _check_http(self, line: bytes) -> None:
        if self.framing is Framing.TEXT and is_http(line):
            raise http_error()

    def _refuse_half(self) -> Refused | None:
        half = self._splitter.take_half() if self._splitter and self._is_ended else b""
        if isinstance(half, TooLong):
            return self._refuse_long(half)
        if not half:
            return None
        return Refused(
            ProtocolError(
                "the connection ended inside a command, which was not executed; end every "
                "command with a newline"
            )
        )

    def _refuse_long(self, message: TooLong) -> Refused:
        return Refused(
            LineTooLong(
                f"the command has {message.total_bytes} bytes and was ignored; send at most "
                f"{self._bytes_max} or raise line.bytes.max"
            )
        )


def _strip_quotes(payload: bytes) -> bytes:
    """Return what is between a pair of double quotes; a payload without them is unchanged."""
    text = payload.strip()
    is_quoted = len(text) >= 2 and text[:1] == text[-1:] == b'"'
    return text[1:-1] if is_quoted else payload
