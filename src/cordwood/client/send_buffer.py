"""A producer's records until the broker acknowledges them. Pure: no I/O, no clock.

Every record is numbered once, when it is added, and kept until an ``ACK`` covers its number. After
a lost connection the broker reports the last number it has. Records up to that number are dropped
here, the rest are sent again under the same numbers, and the broker ignores duplicates.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, NamedTuple

from cordwood.errors import InvalidRecord, ProtocolError, StaleProducer
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.replies import Welcome
from cordwood.protocol.line.serial import NOTHING_YET, is_after, next_n

_ROUTING_KEY: Final = re.compile(rb"[^|\x00-\x1f\x7f]{1,249}")  # the rule of batch.lines


class Message(NamedTuple):
    """A record for ``send_and_confirm``, which also accepts a plain tuple."""

    routing_key: str | bytes
    payload: str | bytes
    timestamp_ms: int | None = None  # the producer's timestamp; None is now


Sendable = Message | tuple[str | bytes, str | bytes] | tuple[str | bytes, str | bytes, int]


class SendBuffer:
    """Numbered records that are not yet confirmed, oldest first."""

    def __init__(self, framing: Framing, line_bytes_max: int) -> None:
        """Refuses records above ``line_bytes_max``, which the broker would skip."""
        self._framing = framing
        self._bytes_max = line_bytes_max
        self._pending: deque[tuple[int, bytes]] = deque()
        self._unsent: deque[bytes] = deque()
        self._is_open = False
        self.last_n = NOTHING_YET  # the n of the newest record added
        self.confirmed_n = NOTHING_YET
        self.pending_bytes = 0
        self.unsent_bytes = 0

    def __len__(self) -> int:
        """The number of unconfirmed records."""
        return len(self._pending)

    def add(self, message: Message, now_ms: int) -> int:
        """Number a record and queue it; on ``InvalidRecord`` nothing changes."""
        n = next_n(self.last_n)
        data = self._framing.encode(self._encode(message, n, now_ms))
        self._pending.append((n, data))
        self._unsent.append(data)
        self.pending_bytes += len(data)
        self.unsent_bytes += len(data)
        self.last_n = n
        return n

    def take_unsent(self, bytes_max: int) -> bytes:
        """Return the next records to write, about ``bytes_max`` bytes; they count as sent."""
        chunk: list[bytes] = []
        taken = 0
        while self._unsent and taken < bytes_max:
            chunk.append(self._unsent.popleft())
            taken += len(chunk[-1])
        self.unsent_bytes -= taken
        return b"".join(chunk)

    def confirm(self, n: int) -> bool:
        """The broker has everything up to ``n``; return whether that confirms more than before."""
        if is_after(n, self.last_n):
            raise ProtocolError(
                f"the broker confirmed n={n}, but the last one sent is {self.last_n}"
            )
        if not is_after(n, self.confirmed_n):
            return False
        self.confirmed_n = n
        while self._pending and not is_after(self._pending[0][0], n):
            self.pending_bytes -= len(self._pending.popleft()[1])
        return True

    def resume(self, welcome: Welcome) -> None:
        """Continue on a new connection: mark everything that the broker lacks as unsent."""
        if not self._is_open:
            self.last_n = self.confirmed_n = welcome.last_n
            self._is_open = True
        if is_after(welcome.last_n, self.last_n):
            raise StaleProducer(
                f"the broker has n={welcome.last_n} of producer {welcome.producer}, but this one "
                f"has sent only up to {self.last_n}: another producer uses the same name; give "
                "each its own"
            )
        self.confirm(welcome.last_n)
        self._unsent = deque(data for _, data in self._pending)
        self.unsent_bytes = self.pending_bytes

    def _encode(self, message: Message, n: int, now_ms: int) -> bytes:
        key = _bytes(message.routing_key)
        payload = _bytes(message.payload)
        timestamp_ms = now_ms if message.timestamp_ms is None else message.timestamp_ms
        if not _ROUTING_KEY.fullmatch(key):
            raise InvalidRecord(
                f"a routing key has 1 to 249 bytes, no '|' and no control character: {key[:300]!r}"
            )
        if not 0 <= timestamp_ms < 2**63:
            raise InvalidRecord(f"a timestamp is from 0 to 2**63 - 1: {timestamp_ms}")
        if self._framing is Framing.TEXT and (b"\n" in payload or payload[-1:] == b"\r"):
            raise InvalidRecord(
                "the payload has a newline or ends with a carriage return, which a line cannot "
                "carry; open the producer with binary=True"
            )
        body = b"%b|%d|%d|%b" % (key, timestamp_ms, n, payload)
        if len(body) > self._bytes_max:
            raise InvalidRecord(
                f"the record takes {len(body)} bytes and the limit is {self._bytes_max}; "
                "raise line_bytes_max here and line.bytes.max at the broker"
            )
        return body


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
