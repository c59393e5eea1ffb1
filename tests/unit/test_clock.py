"""Time behind a seam: the tests' clock moves only when told, the machine's never back."""

from __future__ import annotations

import time

import pytest

from cordwood.clock import Clock, ManualClock, SystemClock


def test_manual_clock_stands_still_until_advanced():
    """Both of its times move together, by exactly what was asked."""
    clock = ManualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.advance(1500)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_manual_clock_refuses_to_go_back():
    """Going back would be the test's mistake."""
    with pytest.raises(AssertionError, match="time does not go back"):
        ManualClock().advance(-1)


def test_system_clock_tells_the_time_of_the_epoch():
    """Milliseconds, as records carry them."""
    before = time.time() * 1000
    assert before - 1 <= SystemClock().now_ms() <= time.time() * 1000


def test_system_clock_measures_durations_that_never_shrink():
    """Deadlines lean on this one, whatever is done to the wall clock."""
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_both_clocks_stand_where_a_clock_is_asked_for():
    """The seam is the protocol, not a base class."""
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(isinstance(clock.now_ms(), int) for clock in clocks)
