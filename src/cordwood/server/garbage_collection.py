"""When Python looks through all objects for cycles: not while anybody waits for the broker.

A full collection walks every object made since the start, without giving the interpreter's lock
back. A request of fifty thousand elements makes so many that Python begins one, or several, just
while they are all alive: 20 to 150 ms in which nobody is served, and nothing is found. So Python's
own full collections are off. One is made when the broker has been idle for a while, and at the
latest when memory has grown by as much as a broker should not lose to garbage. The young
generations, a few thousand objects each, are collected as ever.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cordwood.config import MIB

LOOK_S: Final = 5.0
DUE: Final = 100  # collections of the middle generation since the last full one
IDLE_SHARE: Final = 0.05  # of a processor, over the time between two looks
GROWN_BYTES: Final = 256 * MIB
_NEVER: Final = 1 << 30


class FullCollections:
    """Decides when the next one is made."""

    def __init__(
        self,
        *,
        cpu_s: Callable[[], float] = time.process_time,
        pending: Callable[[], int] = lambda: gc.get_count()[2],
        resident_bytes: Callable[[], int] = lambda: _resident_bytes(),  # noqa: PLW0108 - below
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        """``pending``: collections of the middle generation since the last full one."""
        self._cpu_s = cpu_s
        self._pending = pending
        self._resident_bytes = resident_bytes
        self._collect = collect
        self._cpu_before_s = cpu_s()
        self._bytes_before = resident_bytes()

    async def run(self) -> None:
        """Take over from Python, then look every few seconds until cancelled."""
        young, middle, full = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self.look()
        finally:
            gc.set_threshold(young, middle, full)

    def look(self) -> None:
        """Collect if it is due and nobody is served just now, or if it cannot wait."""
        now_s = self._cpu_s()
        is_idle = now_s - self._cpu_before_s < LOOK_S * IDLE_SHARE
        self._cpu_before_s = now_s
        is_grown = self._resident_bytes() - self._bytes_before > GROWN_BYTES
        if is_grown or (is_idle and self._pending() > DUE):
            self._collect()
            self._bytes_before = self._resident_bytes()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
