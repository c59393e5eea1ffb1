"""Lanes keep order per key; timers never call early."""

from __future__ import annotations

import asyncio

from cordwood.broker.kafka.keyed_queue import KeyedQueue, Timers
from cordwood.clock import ManualClock


async def test_lists_of_a_key_wait_for_each_other_and_keys_do_not():
    """The second list of a key begins when the first has ended; another key goes on meanwhile."""
    done = []
    deliveries = asyncio.Event()

    async def carry_out(key, instructions):
        for each in instructions:
            if each == "wait":
                await deliveries.wait()
            done.append((key, each))

    keyed_queue = KeyedQueue(carry_out)
    keyed_queue.put("a", ["wait", 1])
    keyed_queue.put("a", [2])
    keyed_queue.put("b", [3])
    keyed_queue.put("c", [])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [("b", 3)]
    assert "a" in keyed_queue
    assert "c" not in keyed_queue
    deliveries.set()
    await keyed_queue.idle()
    assert done == [("b", 3), ("a", "wait"), ("a", 1), ("a", 2)]
    assert "a" not in keyed_queue


async def test_what_waits_can_be_dropped_from_within():
    """What is under way goes on; what was put behind it is forgotten, what comes after is not."""
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


async def test_a_timer_that_fires_early_waits_on():
    """The loop's clock may run ahead of ours; whoever set the timer relies on the time."""
    clock = ManualClock()
    due = []
    timers = Timers(clock.now_ms, due.append)
    timers.set("a", clock.now_ms() + 1)
    await asyncio.sleep(0.02)
    assert not due
    clock.advance(1)
    await asyncio.sleep(0.02)
    assert due == ["a"]


async def test_a_timer_is_replaced_and_cancelled():
    """One per key: the last set counts."""
    clock = ManualClock()
    due = []
    timers = Timers(clock.now_ms, due.append)
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
    await asyncio.sleep(0.01)
    assert due == ["moved"]
