"""Ingress flow control: which sockets are read, and which bounds decide it. Does no I/O itself.

``IngressBuffer`` bounds what was read from all sockets and is not yet written. ``FlowControl`` is
the state of one connection: the reasons why its socket is not read. The service and the listener
add and remove reasons; the socket is paused with the first and resumed when the last is gone. TCP
flow control then blocks the peer, and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cordwood.broker.ingest.ordered_executor import OrderedExecutor
from cordwood.config import MIB
from cordwood.errors import Overloaded
from cordwood.log.write.writer import Writer

BUFFER_BYTES_MAX = 16 * MIB  # bytes that may wait for the writer, however few records that is
ENCODING_BYTES_MAX = 4 * MIB  # blocks being encoded on the thread; no socket is read beyond this


class PauseReason(Enum):
    """Why a socket is not read."""

    OPENING = "its topic is being opened"
    HELLO = "it waits for a producer name"
    BAD_LINES = "its bad lines are being written to the dead letters"
    BUFFER_FULL = "too many lines wait for the writer, which may wait for disk space"
    UNREAD_REPLIES = "the peer does not read its acknowledgements"
    STOPPING = "the broker is stopping"


_KEEPS_EVENTS = {PauseReason.OPENING, PauseReason.HELLO, PauseReason.BAD_LINES}
_BROKER_WORKS = {PauseReason.HELLO, PauseReason.BAD_LINES, PauseReason.BUFFER_FULL}


class IngressSocket(Protocol):
    """A connection as the ingress service sees it; the listener implements it."""

    def send(self, reply: bytes) -> None:
        """Send a reply; no effect if the connection is closed."""

    def close(self) -> None:
        """Close the connection after what was sent."""

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``."""

    def resume_reading(self) -> None:
        """Read again."""

    def process_events(self) -> None:
        """Pass on what was received and kept, then call ``FlowControl.check``."""


@dataclass(slots=True)
class IngressStats:
    """Counters for the metrics."""

    records: int = 0
    duplicates: int = 0
    rejected: int = 0
    dropped: int = 0
    blocked: int = 0  # how often a socket was left unread for lack of capacity


class IngressBuffer:
    """The bounds of what waits before the writer, and the connections that wait for capacity."""

    def __init__(
        self,
        writer: Writer,
        encoder: OrderedExecutor,
        stats: IngressStats,
        *,
        lines_max: int,
        drops_oldest: bool,
        bytes_max: int = BUFFER_BYTES_MAX,
        encoding_bytes_max: int = ENCODING_BYTES_MAX,
    ) -> None:
        self._writer = writer
        self._queue = writer.queue
        self._encoder = encoder
        self._stats = stats
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        self.encoding_bytes_max = encoding_bytes_max
        self.drops_oldest = drops_oldest
        self.gathered_lines = 0  # read, and not yet passed to the encoder or the writer
        self.waiting: list[FlowControl] = []  # connections paused because it is full

    def has_capacity(self) -> bool:
        """Return whether another block of lines may be read from a socket."""
        queue, encoder = self._queue, self._encoder
        return (
            queue.records + self.gathered_lines + encoder.lines < self._lines_max
            and queue.bytes + encoder.bytes < self._bytes_max
        )

    def is_closed_to(self, flow: FlowControl) -> bool:
        """Return whether this connection must wait; one whose lines may be dropped seldom must."""
        if self._encoder.bytes >= self.encoding_bytes_max:
            return True
        return not flow.may_drop and not self.has_capacity()

    def make_capacity(self, count: int) -> None:
        """If the buffer is full and may drop, drop about ``count`` of the oldest nameless lines."""
        if not self.drops_oldest or self.has_capacity():
            return  # or these lines were read before the buffer was full
        for append in self._writer.evict(count):
            self._stats.dropped += append.records
            append.done(Overloaded("dropped: the ingest buffer is full"))

    def wait(self, flow: FlowControl) -> None:
        """Resume this connection as soon as ``release`` is called."""
        self._stats.blocked += 1
        self.waiting.append(flow)

    def forget(self, flow: FlowControl) -> None:
        """The connection is closed."""
        if flow in self.waiting:
            self.waiting.remove(flow)

    def release(self) -> None:
        """Resume all waiting connections; each pauses again if it finds the buffer full."""
        waiting, self.waiting = self.waiting, []
        for flow in waiting:
            flow.resume(PauseReason.BUFFER_FULL)


class FlowControl:
    """Whether the socket of one connection is read."""

    def __init__(self, buffer: IngressBuffer, socket: IngressSocket) -> None:
        self._buffer = buffer
        self._socket = socket
        self._is_closed = False
        self.may_drop = buffer.drops_oldest  # a named producer waits instead
        self.reasons: set[PauseReason] = set()

    @property
    def takes_events(self) -> bool:
        """Whether what was received may be passed on; at BUFFER_FULL it is, as it was read."""
        return self.reasons.isdisjoint(_KEEPS_EVENTS)

    @property
    def is_kept_waiting(self) -> bool:
        """Whether the peer waits for the broker and must not be closed as idle."""
        return not self.reasons.isdisjoint(_BROKER_WORKS)

    def pause(self, reason: PauseReason) -> None:
        """Stop reading, for one more reason."""
        if not self.reasons:
            self._socket.pause_reading()
        self.reasons.add(reason)

    def resume(self, reason: PauseReason) -> None:
        """A reason is gone: read again if it was the last, and process what was kept."""
        self.reasons.discard(reason)
        if not self.reasons:
            self._socket.resume_reading()
        self._socket.process_events()

    def check(self) -> None:
        """Pause if the buffer is full."""
        is_waiting = self._is_closed or PauseReason.BUFFER_FULL in self.reasons
        if not is_waiting and self._buffer.is_closed_to(self):
            self.pause(PauseReason.BUFFER_FULL)
            self._buffer.wait(self)

    def close(self) -> None:
        """The connection is closed; nothing will resume it."""
        self._is_closed = True
        self._buffer.forget(self)
