"""Splits a byte stream into messages: text lines, or frames with a length prefix.

A frame is a 4-byte little-endian length and that many bytes, as Walrus clients send. Both framings
share the ports; ``plan_framing`` detects which one a connection uses, once, from its first bytes.

A message that is too long is skipped to its end and reported as a value, so the stream stays in
sync and memory stays bounded. Only a length that no frame can have is an error, because the start
of the next message is then unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from cordwood.errors import BadFrame, UnexpectedTls

PREFIX_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 2**31 - 1  # the largest valid length prefix
KEPT_BYTES: Final = 4096  # how much of a too long message the dead letter keeps

_TLS_HEAD_BYTES: Final = 6


class Framing(Enum):
    """How messages are delimited on one connection, in both directions."""

    TEXT = "text"
    FRAMES = "frames"

    def encode(self, body: bytes) -> bytes:
        """Encode one message for the wire."""
        if self is Framing.TEXT:
            return body + b"\n"
        return len(body).to_bytes(PREFIX_BYTES, "little") + body


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line or frame above the limit, skipped: its first bytes and its length."""

    kept: bytes
    total_bytes: int


def plan_framing(head: bytes, bytes_max: int, *, at_end: bool = False) -> Framing | None:
    """Detect the framing from a connection's first bytes; None if more bytes are needed.

    A frame below 16 MiB has NUL as its fourth byte. Text does not: a line with NUL there is not a
    record. If such a line comes first anyway, it still counts as text when its first three bytes
    are printable and, read as a length, above the limit: such bytes encode at least 2 MiB. The
    result depends on the bytes alone, never on how they were split into packets.
    """
    if len(head) < PREFIX_BYTES:
        return Framing.TEXT if at_end else None
    if _is_tls_like(head):
        if len(head) < _TLS_HEAD_BYTES and not at_end:
            return None
        if head[5:6] == b"\x01":  # a ClientHello
            raise UnexpectedTls(
                "this is a plain-text listener, but the client started a TLS handshake; connect "
                "without TLS, or to the TLS listener"
            )
    length = int.from_bytes(head[:PREFIX_BYTES], "little")
    if head[3] == 0 and (length <= bytes_max or min(head[:3]) < 0x20):
        return Framing.FRAMES
    return Framing.TEXT


def _is_tls_like(head: bytes) -> bool:
    """Whether this may start a TLS handshake record: type 22, then version 3.0 to 3.4."""
    return head[0] == 0x16 and head[1] == 3 and head[2] <= 4


class Splitter:
    """Splits one direction of a connection into messages, in linear time for any packet size."""

    def __init__(self, framing: Framing, bytes_max: int) -> None:
        """Accept messages of up to ``bytes_max`` bytes, delimiters not counted."""
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._searched = 0  # text: no newline before this position
        self._skipped = 0  # bytes of a too long message already discarded
        self._skip_left = 0  # frames: bytes of it not received yet
        self._kept = b""
        self._next = self._next_line if framing is Framing.TEXT else self._next_frame

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes; ``next_message`` then returns the completed messages."""
        self._buffer += data

    def next_message(self) -> bytes | TooLong | None:
        """Return the next complete message, or None until more arrives; raise ``BadFrame``."""
        return self._next()

    def take_half(self) -> bytes | TooLong:
        """Return the rest at the end of the stream; it is empty if no message was incomplete."""
        if self._skipped or self._skip_left:
            self._let_go(len(self._buffer))
            return self._end_skip()
        half = bytes(self._buffer)
        self._buffer.clear()
        return half

    def _next_line(self) -> bytes | TooLong | None:
        cut = self._buffer.find(b"\n", self._searched)
        if cut < 0:
            self._searched = len(self._buffer)
            if self._skipped or self._searched > self._bytes_max:
                self._let_go(self._searched)
                self._searched = 0
            return None
        self._searched = 0
        if self._skipped or cut > self._bytes_max:
            self._let_go(cut)
            del self._buffer[:1]
            return self._end_skip()
        line = bytes(self._buffer[:cut])
        del self._buffer[: cut + 1]
        return line

    def _next_frame(self) -> bytes | TooLong | None:
        if self._skip_left:
            return self._skip_frame()
        if len(self._buffer) < PREFIX_BYTES:
            return None
        length = int.from_bytes(self._buffer[:PREFIX_BYTES], "little")
        if length > FRAME_BYTES_MAX:
            raise BadFrame(
                f"a frame cannot have {length} bytes; send a 4-byte little-endian length, then "
                "the body, or newline-terminated text on a new connection"
            )
        if length > self._bytes_max:
            del self._buffer[:PREFIX_BYTES]
            self._skip_left = length
            return self._skip_frame()
        end = PREFIX_BYTES + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[PREFIX_BYTES:end])
        del self._buffer[:end]
        return body

    def _skip_frame(self) -> TooLong | None:
        taken = min(self._skip_left, len(self._buffer))
        self._let_go(taken)
        self._skip_left -= taken
        return None if self._skip_left else self._end_skip()

    def _let_go(self, count: int) -> None:
        """Discard the buffer's first bytes, which belong to a too long message."""
        wanted = KEPT_BYTES - len(self._kept)
        if wanted > 0:
            self._kept += bytes(self._buffer[: min(wanted, count)])
        self._skipped += count
        del self._buffer[:count]

    def _end_skip(self) -> TooLong:
        skipped = TooLong(self._kept, self._skipped)
        self._kept, self._skipped, self._skip_left = b"", 0, 0
        return skipped
