"""Clocks: the manual clock moves only when advanced, and the system clock never goes back."""

from __future__ import annotations

import time

import pytest

from cordwood.clock import Clock, SystemClock
from support.clock import ManualClock


def test_manual_clock_stands_still_until_advanced():
    """``advance`` moves the wall clock and the monotonic clock by the same time."""
    clock = ManualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.advance(1500)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_manual_clock_refuses_to_go_back():
    """Advancing a manual clock by a negative time fails an assertion."""
    with pytest.raises(AssertionError, match="time does not go back"):
        ManualClock().advance(-1)


def test_system_clock_tells_the_time_of_the_epoch():
    """The system clock returns milliseconds since the epoch."""
    before = time.time() * 1000
    assert before - 1 <= SystemClock().now_ms() <= time.time() * 1000


def test_system_clock_measures_durations_that_never_shrink():
    """The monotonic clock never goes back."""
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_both_clocks_stand_where_a_clock_is_asked_for():
    """Both clocks satisfy the ``Clock`` protocol."""
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(isinstance(clock.now_ms(), int) for clock in clocks)
