"""Queues keep order per key; timers never fire early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from cordwood.broker.kafka.keyed_queue import KeyedQueue, Timers
from support.clock import ManualClock


async def test_lists_of_a_key_wait_for_each_other_and_keys_do_not():
    """A key's second list starts when its first has ended. Other keys do not wait."""
    done = []
    resumed, is_b_done = asyncio.Event(), asyncio.Event()

    async def carry_out(key, instructions):
        for each in instructions:
            if each == "wait":
                await resumed.wait()
            done.append((key, each))
        if key == "b":
            is_b_done.set()

    keyed_queue = KeyedQueue(carry_out)
    keyed_queue.put("a", ["wait", 1])
    keyed_queue.put("a", [2])
    keyed_queue.put("b", [3])
    keyed_queue.put("c", [])
    await is_b_done.wait()
    assert done == [("b", 3)]
    assert "a" in keyed_queue
    assert "c" not in keyed_queue
    resumed.set()
    await keyed_queue.idle()
    assert done == [("b", 3), ("a", "wait"), ("a", 1), ("a", 2)]
    assert "a" not in keyed_queue


async def test_what_waits_can_be_dropped_from_within():
    """Dropping removes the lists queued so far. The running list and later lists are kept."""
    done = []

    async def carry_out(key, instructions):
        done.extend(instructions)
        if instructions == ["drop"]:
            keyed_queue.drop_waiting(key)
            keyed_queue.put(key, ["after"])

    keyed_queue = KeyedQueue(carry_out)
    keyed_queue.put("a", ["drop"])
    keyed_queue.put("a", ["never"])
    await keyed_queue.idle()
    assert done == ["drop", "after"]


class Scheduler:
    """A fake ``call_later`` whose calls the test fires itself."""

    def __init__(self) -> None:
        self._waiting = []

    def call_later(self, _delay_s, call, *arguments):
        """Keep the call until ``fire``."""
        handle = Handle(partial(call, *arguments))
        self._waiting.append(handle)
        return handle

    def fire(self) -> None:
        """Run every call that was not cancelled."""
        waiting, self._waiting = self._waiting, []
        for handle in waiting:
            if not handle.is_cancelled:
                handle.call()


@dataclass
class Handle:
    """A scheduled call."""

    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Mark the call as cancelled."""
        self.is_cancelled = True


@pytest.fixture
def scheduler():
    return Scheduler()


def test_a_timer_that_fires_early_waits_on(scheduler):
    """The event loop's clock may be ahead, so a timer is checked against the broker's clock."""
    clock = ManualClock()
    due = []
    timers = Timers(clock.now_ms, due.append, scheduler.call_later)
    timers.set("a", clock.now_ms() + 1)
    scheduler.fire()
    assert not due
    clock.advance(1)
    scheduler.fire()
    assert due == ["a"]


def test_a_timer_is_replaced_and_cancelled(scheduler):
    """A key has one timer; setting it again replaces the first."""
    clock = ManualClock()
    due = []
    timers = Timers(clock.now_ms, due.append, scheduler.call_later)
    timers.set("moved", clock.now_ms() + 10)
    timers.set("moved", clock.now_ms() + 20)
    timers.set("gone", clock.now_ms() + 10)
    timers.cancel("gone")
    timers.cancel("never set")
    clock.advance(10)
    timers.look()
    assert not due
    clock.advance(10)
    timers.look()
    timers.look()
    assert due == ["moved"]
    timers.set("late", clock.now_ms())
    timers.cancel_all()
    scheduler.fire()
    assert due == ["moved"]


async def test_a_timer_is_called_by_the_running_loop():
    """By default, timers use the running event loop."""
    clock, due = ManualClock(), asyncio.Queue()
    timers = Timers(clock.now_ms, due.put_nowait)
    timers.set("a", clock.now_ms())
    assert await due.get() == "a"
