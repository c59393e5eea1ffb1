"""Lower the priority of a background thread, so that other threads run first."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

NICE: Final = 10  # of the thread; see pipeline.runtime.priority for what it is worth


def yield_processor() -> None:
    """Lower this thread's priority, so that other threads run and read first."""
    with suppress(OSError):  # refused in some sandboxes, and unsupported outside Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
