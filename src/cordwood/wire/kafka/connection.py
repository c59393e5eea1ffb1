"""Cuts a Kafka byte stream into frames, however the network cut it. No I/O, no messages.

Small frames are copied out of one inbox that is used again and again. A frame that does not fit
in it gets a buffer of its own, and ``get_buffer`` hands out the rest of *that* buffer, so the bytes
of a large Produce land where the views of its records will point. The usual batch gets its room at
once; for more, room is given as bytes arrive, eight times what is there: a peer that announces
100 MB and sends nothing costs little, and of what an honest one sends little is copied again.

``get_buffer`` and ``buffer_updated`` are what ``asyncio.BufferedProtocol`` asks for; ``receive``
does the same for bytes already in hand. A request's body belongs to that request alone.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from struct import Struct
from typing import Final

from cordwood.errors import BadFrame
from cordwood.wire.kafka.frames import REQUEST_BYTES_MIN, Request, Unsupported, parse_request
from cordwood.wire.kafka.primitives import Buffer

INBOX_BYTES: Final = 16 * 1024
LARGE_BYTES_FIRST: Final = 256 * 1024
WHOLE_BYTES_MAX: Final = 2 * LARGE_BYTES_FIRST  # growing would copy half of it
LARGE_GROWTH: Final = 8
_PREFIX: Final = Struct(">i")
PREFIX_BYTES: Final = _PREFIX.size


class NeedData(Enum):
    """The answer when no whole request has arrived yet."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA


class KafkaConnection:
    """One connection's receiving side: bytes in, requests out."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = 0  # unread bytes of the inbox
        self._end = 0
        self._large: memoryview | None = None  # room for a frame too big for the inbox
        self._large_bytes = 0  # what the frame will have in all
        self._filled = 0
        self._frames: deque[memoryview] = deque()
        self._fault: BadFrame | None = None

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Where the next bytes are to be written; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        assert self._end < INBOX_BYTES
        return self._inbox[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Take note that so many bytes were written where ``get_buffer`` said."""
        if self._fault is not None:
            return  # nothing after a broken length can be understood
        if self._large is not None:
            self._filled += count
            assert self._filled <= len(self._large)
            self._grow_large(self._large)
        else:
            self._end += count
            self._split()

    def receive(self, data: Buffer) -> None:
        """Take bytes that were read elsewhere."""
        rest = memoryview(data)
        while rest:
            room = self.get_buffer(len(rest))
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.buffer_updated(count)
            rest = rest[count:]

    def next_request(self) -> Request | Unsupported | NeedData:
        """The next whole request; raises ``ProtocolError`` when the stream cannot be read on."""
        if self._frames:
            return parse_request(self._frames.popleft())
        if self._fault is not None:
            raise self._fault
        return NEED_DATA

    def _split(self) -> None:
        """Take every whole frame out of the inbox, and start a large one when it begins here."""
        while self._end - self._start >= PREFIX_BYTES and self._large is None:
            first = self._start + PREFIX_BYTES
            (length,) = _PREFIX.unpack_from(self._inbox, self._start)
            if not REQUEST_BYTES_MIN <= length <= self._frame_bytes_max:
                self._refuse(length)
                return
            if first + length <= self._end:
                self._frames.append(memoryview(bytearray(self._inbox[first : first + length])))
                self._start = first + length
            elif PREFIX_BYTES + length > INBOX_BYTES:
                self._begin_large(first, length)
            else:
                break
        self._make_room()

    def _begin_large(self, first: int, length: int) -> None:
        self._large_bytes = length
        self._filled = self._end - first
        room = length if length <= WHOLE_BYTES_MAX else LARGE_BYTES_FIRST
        self._large = memoryview(bytearray(room))
        self._large[: self._filled] = self._inbox[first : self._end]
        self._start = self._end

    def _grow_large(self, large: memoryview) -> None:
        """Once its room is full the frame is whole, or gets more room."""
        if self._filled < len(large):
            return
        if self._filled == self._large_bytes:
            self._frames.append(large)
            self._large = None
            return
        self._large = memoryview(bytearray(min(self._large_bytes, LARGE_GROWTH * self._filled)))
        self._large[: self._filled] = large

    def _make_room(self) -> None:
        """Move what is left to the front once it is cheap or needed, so that there is room."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and self._end == INBOX_BYTES:
            rest = bytes(self._inbox[self._start :])
            self._inbox[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _refuse(self, length: int) -> None:
        self._fault = BadFrame(
            f"a request of {length} bytes; between {REQUEST_BYTES_MIN} and"
            f" {self._frame_bytes_max} are accepted (socket.request.max.bytes)"
        )
        self._start = self._end = 0
