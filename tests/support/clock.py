"""A clock that tests move."""

from __future__ import annotations


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
