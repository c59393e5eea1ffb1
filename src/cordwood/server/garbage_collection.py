"""Schedules Python's full garbage collections so that they do not delay requests.

A full collection walks every object allocated since the start while it holds the GIL. A request
with fifty thousand elements allocates so many objects that Python starts one or more full
collections while all of them are still alive: the broker serves nobody for 20 to 150 ms, and
nothing is freed. Automatic full collections are therefore off. This module runs one when the broker
has been idle for a while, or at the latest when resident memory has grown by ``GROWN_BYTES``. The
young generations, a few thousand objects each, are collected as usual.
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
IDLE_SHARE: Final = 0.05  # of one CPU, over the time between two checks
GROWN_BYTES: Final = 256 * MIB
_NEVER: Final = 1 << 30


class FullCollections:
    """Decides when the next full collection runs."""

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
        """Turn off automatic full collections and check every few seconds until cancelled."""
        young, middle, full = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self.look()
        finally:
            gc.set_threshold(young, middle, full)

    def look(self) -> None:
        """Collect if one is due and the broker is idle, or if memory has grown too much."""
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
