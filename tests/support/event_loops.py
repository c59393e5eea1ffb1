"""Event loops for the writer without asyncio: callbacks run at once, or when a test runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue

Callback = Callable[[], object]


class ImmediateLoop:
    """Runs every callback at once, one at a time, on the thread that schedules it."""

    def __init__(self) -> None:
        self._turn = threading.RLock()  # one event loop: callbacks of two threads never overlap

    def call_soon(self, callback: Callback) -> None:
        with self._turn:
            callback()

    call_soon_threadsafe = call_soon


class QueuedLoop:
    """Keeps every callback until the test takes it from ``turns``."""

    def __init__(self) -> None:
        self.turns: Queue[Callback] = Queue()

    def call_soon(self, callback: Callback) -> None:
        self.turns.put(callback)

    call_soon_threadsafe = call_soon


class SteppedLoop(ImmediateLoop):
    """Keeps ``call_soon`` callbacks in ``turn_ends``; replies of the writer thread run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_ends: list[Callback] = []

    def call_soon(self, callback: Callback) -> None:
        self.turn_ends.append(callback)
