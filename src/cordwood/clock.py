"""The source of time: code asks a ``Clock``, so tests can pass a ``ManualClock``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, the unit of record timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for deadlines and durations."""
        ...


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()


class ManualClock:
    """A clock for tests that moves only when ``advance`` is called."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        """Start at ``now_ms``."""
        self._now_ms = now_ms
        self._started_ms = now_ms

    def now_ms(self) -> int:
        """The start time plus all advances."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds advanced since the clock was created."""
        return (self._now_ms - self._started_ms) / 1000

    def advance(self, ms: int) -> None:
        """Move the clock forward by ``ms`` milliseconds."""
        assert ms >= 0, "time does not go back"
        self._now_ms += ms
