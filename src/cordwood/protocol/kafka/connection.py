"""Splits a Kafka byte stream into frames, however it was split into packets. It does no I/O.

Small frames are copied out of one inbox, which is reused. A frame that does not fit in it gets its
own buffer, and ``get_buffer`` returns the rest of *that* buffer, so a large Produce is received
where the views of its records will point. A batch of usual size gets its whole buffer at once. A
larger buffer grows as bytes arrive, to four times what has arrived: a peer that announces 100 MB
and sends nothing costs little memory, and an honest one causes little copying.

Memory is requested (``reserve``) before it is allocated. If it is refused, the connection
``is_waiting``: the caller should read nothing more until it calls ``resume``. Bytes that arrive
anyway are kept aside.

``get_buffer`` and ``buffer_updated`` are the interface of ``asyncio.BufferedProtocol``; ``receive``
does the same for bytes that were read elsewhere. The body of a request is not shared with others.
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
WHOLE_BYTES_MAX: Final = 2 * LARGE_BYTES_FIRST  # growing one of this size would copy half of it
LARGE_GROWTH: Final = 4
_PREFIX: Final = Struct(">i")
_KEY: Final = Struct(">h")
PREFIX_BYTES: Final = _PREFIX.size
# A larger frame had its memory reserved with ``reserve``; a smaller one fits in the inbox.
UNRESERVED_BYTES_MAX: Final = INBOX_BYTES - PREFIX_BYTES


class NeedData(Enum):
    """The result when no complete request has arrived yet."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA


class KafkaConnection:
    """The receiving side of one connection: bytes in, requests out."""

    def __init__(
        self, frame_bytes_max: int, reserve: Callable[[int], bool] = lambda _: True
    ) -> None:
        """``reserve(n)`` asks for n more bytes of memory; False means not yet."""
        self._frame_bytes_max = frame_bytes_max
        self._reserve = reserve
        self.is_waiting = False  # for memory that was refused
        self._stray = b""  # bytes that arrived while waiting
        self.frame_bytes = 0  # size of the request returned last
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = 0  # unread bytes of the inbox
        self._end = 0
        self._large: memoryview | None = None  # buffer of a frame too large for the inbox
        self._large_bytes = 0  # the size of that frame
        self._filled = 0
        self._frames: deque[memoryview] = deque()
        self._fault: BadFrame | BadMessage | None = None

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Return the buffer for the next bytes; it is never empty."""
        if self.is_waiting:
            return self._stray_buffer
        if self._large is not None:
            return self._large[self._filled :]
        assert self._end < INBOX_BYTES
        return self._inbox[self._end :]

    @property
    def is_within_large(self) -> bool:
        """Whether the next bytes belong to a frame with its own buffer."""
        return self._large is not None

    def buffer_updated(self, count: int) -> None:
        """Process ``count`` bytes that were written to the buffer of ``get_buffer``."""
        if self._fault is not None:
            return  # nothing after an invalid length can be parsed
        if self.is_waiting:
            self._stray += self._stray_buffer[:count]
        elif self._large is not None:
            self._filled += count
            assert self._filled <= len(self._large)
            self._grow_large(self._large)
        else:
            self._end += count
            self._split()

    @cached_property
    def _stray_buffer(self) -> memoryview:
        return memoryview(bytearray(INBOX_BYTES))

    def resume(self) -> None:
        """Continue: the memory that was refused is now reserved."""
        assert self.is_waiting
        self.is_waiting = False
        if self._large is not None:
            self._enlarge(self._large)
        else:
            self._begin_large(*self._announced())
            self._move_to_front()
        stray, self._stray = self._stray, b""
        self.receive(stray)

    def receive(self, data: Buffer) -> None:
        """Accept bytes that were read elsewhere."""
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer(len(rest))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.buffer_updated(count)
            rest = rest[count:]

    def next_request(self) -> Request | Unsupported | NeedData:
        """Return the next complete request; raise ``ProtocolError`` if the stream is invalid."""
        if self._frames:
            frame = self._frames.popleft()
            self.frame_bytes = len(frame)
            return parse_request(frame)
        if self._fault is not None:
            raise self._fault
        return NEED_DATA

    def _split(self) -> None:
        """Take every complete frame out of the inbox; start a large frame if one begins here."""
        while self._end - self._start >= PREFIX_BYTES and self._large is None:
            first = self._start + PREFIX_BYTES
            (length,) = _PREFIX.unpack_from(self._inbox, self._start)
            if not REQUEST_BYTES_MIN <= length <= self._frame_bytes_max:
                self._refuse(length)
                return
            last = first + length
            if last <= self._end:
                self._frames.append(memoryview(bytearray(self._inbox[first:last])))
                self._start = last
                if last == self._end:
                    break
            elif length > UNRESERVED_BYTES_MAX:
                if length > CONTROL_BYTES_MAX and not self._is_produce(first):
                    break
                if not self._reserve(_first_buffer_bytes(length)):
                    self.is_waiting = True
                    break
                self._begin_large(first, length)
            else:
                break
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == INBOX_BYTES:
            self._move_to_front()

    def _is_produce(self, first: int) -> bool:
        """Whether the frame is a Produce, which may be large; any other API is a fault."""
        if self._end - first < _KEY.size:
            return False
        (key,) = _KEY.unpack_from(self._inbox, first)
        if key != PRODUCE:
            name = API_BY_KEY[key].name if key in API_BY_KEY else f"API {key}"
            self._fault = BadMessage(f"{name} is limited to {CONTROL_BYTES_MAX} bytes")
            self._start = self._end = 0
        return bool(key == PRODUCE)

    def _announced(self) -> tuple[int, int]:
        """Return where the frame at the head of the inbox begins, and its length."""
        (length,) = _PREFIX.unpack_from(self._inbox, self._start)
        return self._start + PREFIX_BYTES, length

    def _begin_large(self, first: int, length: int) -> None:
        self._large_bytes = length
        self._filled = self._end - first
        self._large = memoryview(bytearray(_first_buffer_bytes(length)))
        self._large[: self._filled] = self._inbox[first : self._end]
        self._start = self._end

    def _grow_large(self, large: memoryview) -> None:
        """When the buffer is full, the frame is complete or gets a larger buffer."""
        if self._filled < len(large):
            return
        if self._filled == self._large_bytes:
            self._frames.append(large)
            self._large = None
            return
        if self._reserve(self._next_buffer_bytes() - len(large)):
            self._enlarge(large)
        else:
            self.is_waiting = True

    def _next_buffer_bytes(self) -> int:
        return min(self._large_bytes, LARGE_GROWTH * self._filled)

    def _enlarge(self, large: memoryview) -> None:
        self._large = memoryview(bytearray(self._next_buffer_bytes()))
        self._large[: self._filled] = large

    def _move_to_front(self) -> None:
        """Move the unread bytes to the front of the inbox."""
        rest = bytes(self._inbox[self._start : self._end])
        self._inbox[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def _refuse(self, length: int) -> None:
        self._fault = BadFrame(
            f"the request has {length} bytes; {REQUEST_BYTES_MIN} to {self._frame_bytes_max} are "
            "accepted (socket.request.max.bytes)"
        )
        self._start = self._end = 0


def _first_buffer_bytes(length: int) -> int:
    """Return the first buffer size of a frame that is too large for the inbox."""
    return length if length <= WHOLE_BYTES_MAX else LARGE_BYTES_FIRST
