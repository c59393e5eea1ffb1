"""Time, behind a seam: code asks a ``Clock``, tests pass a ``ManualClock``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as records carry them."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for deadlines and durations."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to advance."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        """Start at ``now_ms``."""
        self._now_ms = now_ms
        self._started_ms = now_ms

    def now_ms(self) -> int:
        """The time it was last set to."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds advanced since the start."""
        return (self._now_ms - self._started_ms) / 1000

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass."""
        assert ms >= 0, "time does not go back"
        self._now_ms += ms
