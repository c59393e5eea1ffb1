"""Calls on the writer thread whose caller was cancelled."""

from __future__ import annotations

import threading

from cordwood.log.write.writer import Writer
from support.event_loops import ImmediateLoop


def test_cancelled_call_does_not_end_the_writer():
    """A call can be cancelled while queued but not while it runs; the writer thread goes on."""
    writer = Writer(durability="os")
    writer.start(ImmediateLoop())
    entered, leave = threading.Event(), threading.Event()
    under_way = writer.call(lambda: (entered.set(), leave.wait(10)))
    assert entered.wait(10)
    waiting = writer.call(lambda: None)
    assert not under_way.cancel()
    assert waiting.cancel()
    leave.set()
    assert writer.call(lambda: "served").result(10) == "served"
    writer.close()
