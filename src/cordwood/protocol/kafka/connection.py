"""Cuts a Kafka byte stream into frames, however the network cut it. No I/O, no messages.

Small frames are copied out of one inbox that is used again and again. A frame that does not fit
in it gets a buffer of its own, and ``get_buffer`` hands out the rest of *that* buffer, so the bytes
of a large Produce land where the views of its records will point. The usual batch gets its room at
once; for more, room is given as bytes arrive, four times what is there: a peer that announces
100 MB and sends nothing costs little, and of what an honest one sends little is copied again.

Room is asked for (``reserve``) before it is made. When it is refused the connection ``is_waiting``:
nothing more should be read until ``resume`` is called; what still comes is kept beside.

``get_buffer`` and ``buffer_updated`` are what ``asyncio.BufferedProtocol`` asks for; ``receive``
does the same for bytes already in hand. A request's body belongs to that request alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from struct import Struct
from typing import Final

from cordwood.errors import BadFrame, BadMessage
from cordwood.protocol.kafka.frames import (
    CONTROL_BYTES_MAX,
    REQUEST_BYTES_MIN,
    Request,
    Unsupported,
    parse_request,
)
from cordwood.protocol.kafka.primitives import Buffer
from cordwood.protocol.kafka.schema import API_BY_KEY, PRODUCE

INBOX_BYTES: Final = 16 * 1024
LARGE_BYTES_FIRST: Final = 256 * 1024
WHOLE_BYTES_MAX: Final = 2 * LARGE_BYTES_FIRST  # growing would copy half of it
LARGE_GROWTH: Final = 4
_PREFIX: Final = Struct(">i")
_KEY: Final = Struct(">h")
PREFIX_BYTES: Final = _PREFIX.size
# A larger frame had its room ``reserve``d; one as small passed through the inbox.
UNRESERVED_BYTES_MAX: Final = INBOX_BYTES - PREFIX_BYTES


class NeedData(Enum):
    """The answer when no whole request has arrived yet."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA


class KafkaConnection:
    """One connection's receiving side: bytes in, requests out."""

    def __init__(
        self, frame_bytes_max: int, reserve: Callable[[int], bool] = lambda _: True
    ) -> None:
        """``reserve`` is asked for so many bytes more; False: not yet."""
        self._frame_bytes_max = frame_bytes_max
        self._reserve = reserve
        self.is_waiting = False  # for room that was refused
        self._stray = b""  # what came all the same
        self.frame_bytes = 0  # of the request that was taken last
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = 0  # unread bytes of the inbox
        self._end = 0
        self._large: memoryview | None = None  # room for a frame too big for the inbox
        self._large_bytes = 0  # what the frame will have in all
        self._filled = 0
        self._frames: deque[memoryview] = deque()
        self._fault: BadFrame | BadMessage | None = None

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Where the next bytes are to be written; never empty."""
        if self.is_waiting:
            return self._stray_room
        if self._large is not None:
            return self._large[self._filled :]
        assert self._end < INBOX_BYTES
        return self._inbox[self._end :]

    @property
    def is_within_large(self) -> bool:
        """Whether what comes next belongs to a frame with room of its own."""
        return self._large is not None

    def buffer_updated(self, count: int) -> None:
        """Take note that so many bytes were written where ``get_buffer`` said."""
        if self._fault is not None:
            return  # nothing after a broken length can be understood
        if self.is_waiting:
            self._stray += self._stray_room[:count]
        elif self._large is not None:
            self._filled += count
            assert self._filled <= len(self._large)
            self._grow_large(self._large)
        else:
            self._end += count
            self._split()

    @cached_property
    def _stray_room(self) -> memoryview:
        return memoryview(bytearray(INBOX_BYTES))

    def resume(self) -> None:
        """The room that was refused is there: go on."""
        assert self.is_waiting
        self.is_waiting = False
        if self._large is not None:
            self._enlarge(self._large)
        else:
            self._begin_large(*self._announced())
            self._make_room()
        stray, self._stray = self._stray, b""
        self.receive(stray)

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
            frame = self._frames.popleft()
            self.frame_bytes = len(frame)
            return parse_request(frame)
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
            elif length > UNRESERVED_BYTES_MAX:
                if length > CONTROL_BYTES_MAX and not self._is_produce(first):
                    break
                if not self._reserve(_first_room(length)):
                    self.is_waiting = True
                    break
                self._begin_large(first, length)
            else:
                break
        self._make_room()

    def _is_produce(self, first: int) -> bool:
        """Whether a frame may be so large; if its first bytes are there and say no, it is over."""
        if self._end - first < _KEY.size:
            return False
        (key,) = _KEY.unpack_from(self._inbox, first)
        if key != PRODUCE:
            name = API_BY_KEY[key].name if key in API_BY_KEY else f"API {key}"
            self._fault = BadMessage(f"{name} is limited to {CONTROL_BYTES_MAX} bytes")
            self._start = self._end = 0
        return bool(key == PRODUCE)

    def _announced(self) -> tuple[int, int]:
        """Where the frame at the head of the inbox begins, and its length."""
        (length,) = _PREFIX.unpack_from(self._inbox, self._start)
        return self._start + PREFIX_BYTES, length

    def _begin_large(self, first: int, length: int) -> None:
        self._large_bytes = length
        self._filled = self._end - first
        self._large = memoryview(bytearray(_first_room(length)))
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
        if self._reserve(self._next_room() - len(large)):
            self._enlarge(large)
        else:
            self.is_waiting = True

    def _next_room(self) -> int:
        return min(self._large_bytes, LARGE_GROWTH * self._filled)

    def _enlarge(self, large: memoryview) -> None:
        self._large = memoryview(bytearray(self._next_room()))
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


def _first_room(length: int) -> int:
    """What a frame too big for the inbox gets at once."""
    return length if length <= WHOLE_BYTES_MAX else LARGE_BYTES_FIRST
