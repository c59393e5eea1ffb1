"""Who may keep how much of requests in memory: one budget for all connections. Decides, no I/O.

Bytes are counted when a buffer is made for them, not when a frame announces them. When the budget
is used up, a connection that needs more room for a frame stands in line and is not read from. So
that frames which all wait for room cannot wait for each other, the first in line may go past the
budget, one connection at a time: its frame becomes whole, is answered, and its bytes come back. So
what is counted stays near the budget and one frame.

While somebody stands in line, whoever holds room and brings its frame on too slowly is ``slow``,
and its connection is to be closed: who announces much and sends little holds nobody up for long.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

PATIENCE_S: Final = 5.0  # of those who hold room while others wait for it
RATE_BYTES_MIN: Final = 256 * 1024  # a second


@dataclass(slots=True)
class _Frame:
    """A frame that is arriving."""

    room_bytes: int
    since: float  # when it last got room
    arrived_bytes: int = 0  # since then


class RequestMemory:
    """The budget, the frames that are arriving, and the line of those that wait for room."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._frames: dict[Hashable, _Frame] = {}
        self.waiting: dict[Hashable, int] = {}  # who stands in line, for how much
        self._overdrawn: Hashable | None = None  # the one that may go past the budget

    @property
    def is_short(self) -> bool:
        """Whether everything is used up."""
        return self.used_bytes >= self.bytes_max or bool(self.waiting)

    def take(self, who: Hashable, size_bytes: int, now: float) -> bool:
        """Room for a frame, or more of it; False: wait for ``admitted`` to name you."""
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
        frame.room_bytes += size_bytes
        frame.since, frame.arrived_bytes = now, 0

    def arrived(self, who: Hashable, size_bytes: int) -> None:
        """Bytes came into the room a connection has, if it has any."""
        frame = self._frames.get(who)
        if frame is not None:
            frame.arrived_bytes += size_bytes

    def completed(self, who: Hashable, size_bytes: int) -> None:
        """A frame is whole; its bytes stay counted until they are given back."""
        frame = self._frames[who]
        frame.room_bytes -= size_bytes
        assert frame.room_bytes >= 0, "a frame has the room it was given"
        if not frame.room_bytes:
            del self._frames[who]

    def hold(self, size_bytes: int) -> None:
        """Count a whole request that needed no room of its own; never refused."""
        self.used_bytes += size_bytes

    def give_back(self, who: Hashable, size_bytes: int) -> None:
        """A request of this connection was answered."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "given back once"
        if self._overdrawn == who and who not in self._frames:
            self._overdrawn = None

    def leave(self, who: Hashable) -> None:
        """The connection is gone, with the frame that was arriving."""
        self.waiting.pop(who, None)
        frame = self._frames.pop(who, None)
        if frame is not None:
            self.used_bytes -= frame.room_bytes
        if self._overdrawn == who:
            self._overdrawn = None

    def admitted(self, now: float) -> list[Hashable]:
        """Those at the head of the line who have their room now."""
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
        """Those to be closed: they hold room others wait for, and bring too little."""
        if not self.waiting:
            return []
        return [
            who
            for who, frame in self._frames.items()
            if who not in self.waiting
            and now - frame.since > PATIENCE_S
            and frame.arrived_bytes < RATE_BYTES_MIN * (now - frame.since)
        ]
