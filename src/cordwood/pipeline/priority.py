"""Whose cores they are: work that can wait runs under ``SCHED_IDLE``, on what nobody else wants.

A producer's acknowledgement takes a handful of wake-ups. Beside a Spark job of equal rank each of
them waits for a core while the job's slice runs out: measured, nearly all of the added latency is
that wait and none of it the disk. Under ``SCHED_IDLE`` whoever wakes up takes the core at once; on
a machine with cores to spare the job is as fast as ever. (``nice`` helps half as much, as a slice
that has begun is still finished; ``SCHED_BATCH`` not at all.)

What a thread may give up it cannot take back. So a job of ours, a process of its own, gives it up
for itself and all it starts; where it shares its Spark with the router, which must not starve on a
busy machine, each task's work is done on a thread that does.

Never touches a session that did not ask for it. Without ``SCHED_IDLE`` (not Linux) nothing happens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from cordwood.config import nearest
from cordwood.errors import ConfigError

SETTING: Final = "spark.cordwood.priority"
IDLE: Final = "idle"
NORMAL: Final = "normal"

Task = TypeVar("Task")
Result = TypeVar("Result")


def is_idle(said: str) -> bool:
    """What the setting's word means; refuses one it does not know."""
    if said not in {IDLE, NORMAL}:
        hint = nearest(said, (IDLE, NORMAL))
        raise ConfigError(f"{SETTING} is {IDLE} or {NORMAL}, not {said}{hint}")
    return said == IDLE


def yield_cores() -> None:
    """From now on this thread, and whatever it starts, runs when nobody else wants to."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def in_background(work: Callable[[Task], Result], task: Task) -> Result:
    """``work`` of the task, on a thread that yields; the caller's rank stays as it is."""
    with ThreadPoolExecutor(1, initializer=yield_cores) as pool:
        return pool.submit(work, task).result()
