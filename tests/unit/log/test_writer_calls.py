"""Calls on the writer's thread whose caller has gone away."""

from __future__ import annotations

import threading

from cordwood.log.write.writer import Writer


def test_cancelled_call_does_not_end_the_writer():
    """A task that stops cancels what it waits for, waiting or under way; the thread serves on."""
    writer = Writer(durability="os", post=lambda tell: tell())
    writer.start()
    entered, leave = threading.Event(), threading.Event()
    under_way = writer.call(lambda: (entered.set(), leave.wait(10)))
    assert entered.wait(10)
    waiting = writer.call(lambda: None)
    assert not under_way.cancel()
    assert waiting.cancel()
    leave.set()
    assert writer.call(lambda: "served").result(10) == "served"
    writer.close()
