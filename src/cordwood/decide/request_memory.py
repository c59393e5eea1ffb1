"""The memory budget for incoming requests, shared by all connections. Decides only; no I/O.

Bytes count from the moment a buffer is allocated, not when a frame header announces them. When the
budget is used up, a connection that needs more memory for a frame waits in a queue, and the broker
stops reading from it. One connection at a time may exceed the budget, so that waiting frames cannot
deadlock: its frame completes, is answered, and its bytes are released. Usage therefore stays within
about the budget plus one frame.

While connections wait, a connection that holds memory but receives its frame too slowly is reported
by ``slow`` and must be closed. A client that announces a large frame and sends little of it cannot
block others for long.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

PATIENCE_S: Final = 5.0  # how long a frame may hold memory while others wait
RATE_BYTES_MIN: Final = 256 * 1024  # per second


@dataclass(slots=True)
class _Frame:
    """A frame that is still arriving."""

    reserved_bytes: int
    since: float  # when it last got memory
    arrived_bytes: int = 0  # since then


class RequestMemory:
    """The budget, the arriving frames, and the queue of connections that wait for memory."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._frames: dict[Hashable, _Frame] = {}
        self.waiting: dict[Hashable, int] = {}  # connection → bytes it waits for
        self._overdrawn: Hashable | None = None  # the connection that may exceed the budget

    @property
    def is_short(self) -> bool:
        """Whether the budget is used up or connections are waiting."""
        return self.used_bytes >= self.bytes_max or bool(self.waiting)

    def take(self, who: Hashable, size_bytes: int, now: float) -> bool:
        """Reserve memory for a frame; on False, wait until ``admitted`` returns ``who``."""
        fits = not self.waiting and self.used_bytes + size_bytes <= self.bytes_max
        if not fits and self._overdrawn not in (None, who):
            self.waiting[who] = size_bytes
            return False
        if not fits:
            self._overdrawn = who
        self._grant(who, size_bytes, now)
        return True

    def _grant(self, who: Hashable, size_bytes: int, now: float) -> None:
        self.used_bytes += size_bytes
        frame = self._frames.setdefault(who, _Frame(0, now))
        frame.reserved_bytes += size_bytes
        frame.since, frame.arrived_bytes = now, 0

    def arrived(self, who: Hashable, size_bytes: int) -> None:
        """Count bytes received for the frame of a connection, if it has one."""
        frame = self._frames.get(who)
        if frame is not None:
            frame.arrived_bytes += size_bytes

    def completed(self, who: Hashable, size_bytes: int) -> None:
        """A frame is complete; its bytes stay counted until ``give_back``."""
        frame = self._frames[who]
        frame.reserved_bytes -= size_bytes
        assert frame.reserved_bytes >= 0, "a frame frees no more than it reserved"
        if not frame.reserved_bytes:
            del self._frames[who]

    def hold(self, size_bytes: int) -> None:
        """Count a complete request that needed no buffer of its own; never refused."""
        self.used_bytes += size_bytes

    def give_back(self, who: Hashable, size_bytes: int) -> None:
        """Release the bytes of an answered request."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "given back once"
        if self._overdrawn == who and who not in self._frames:
            self._overdrawn = None

    def leave(self, who: Hashable) -> None:
        """The connection is closed; release the memory of its arriving frame."""
        self.waiting.pop(who, None)
        frame = self._frames.pop(who, None)
        if frame is not None:
            self.used_bytes -= frame.reserved_bytes
        if self._overdrawn == who:
            self._overdrawn = None

    def admitted(self, now: float) -> list[Hashable]:
        """Grant memory to connections at the head of the queue, and return them."""
        found: list[Hashable] = []
        while self.waiting:
            who, size_bytes = next(iter(self.waiting.items()))
            fits = self.used_bytes + size_bytes <= self.bytes_max
            if not fits and self._overdrawn not in (None, who):
                break
            if not fits:
                self._overdrawn = who
            del self.waiting[who]
            self._grant(who, size_bytes, now)
            found.append(who)
        return found

    def slow(self, now: float) -> list[Hashable]:
        """The connections to close: they hold memory others wait for, and receive too slowly."""
        if not self.waiting:
            return []
        return [
            who
            for who, frame in self._frames.items()
            if who not in self.waiting
            and now - frame.since > PATIENCE_S
            and frame.arrived_bytes < RATE_BYTES_MIN * (now - frame.since)
        ]
