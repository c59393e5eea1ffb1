"""The source of time: code asks a ``Clock``, so tests can pass one that they move."""

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
