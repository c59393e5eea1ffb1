"""Whose cores they are: work that nobody waits for leaves them to others, and still advances.

A producer's acknowledgement takes a handful of wake-ups. Beside a Spark job of equal rank each of
them waits for a core while the job's slice runs out: measured, nearly all of the added latency is
that wait and none of it the disk. From ``nice`` 10 on whoever wakes up takes the core at once, as
under ``SCHED_IDLE`` (Linux 6.18, two cores, four busy threads: p99 of a wake-up and back 0.15 ms
and 0.13 ms; at equal rank and at ``nice`` 5 milliseconds).

- ``normal``: as any program. What a person waits for: every command that runs on Spark.
- ``background``: ``nice`` 10. On a core where four others are busy it still gets a fortieth. What
  the pipeline does by itself, and what a session that does not say otherwise hands to ``tasks``.
- ``idle``: ``SCHED_IDLE``, what nobody else wants. On a busy machine that is next to nothing, for
  as long as it is busy; so only for a session that asks for it by name.

What a thread may give up it cannot take back. So a session of its own process gives it up for
itself and all it starts; where a job shares its Spark with the router, which must not wait, each
task's work is done on a thread that does. Without Linux nothing happens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from cordwood.config import nearest
from cordwood.errors import ConfigError

SETTING: Final = "spark.cordwood.priority"
IDLE: Final = "idle"
BACKGROUND: Final = "background"
NORMAL: Final = "normal"
WORDS: Final = (NORMAL, BACKGROUND, IDLE)
NICE: Final = 10

Task = TypeVar("Task")
Result = TypeVar("Result")


def check_word(said: str) -> str:
    """The setting's word; refuses one it does not know."""
    if said not in WORDS:
        hint = nearest(said, WORDS)
        raise ConfigError(f"{SETTING} is {NORMAL}, {BACKGROUND} or {IDLE}, not {said}{hint}")
    return said


def yield_cores(word: str = BACKGROUND) -> None:
    """From now on this thread, and whatever it starts, has the rank of that word."""
    if not sys.platform.startswith("linux") or word == NORMAL:
        return
    if word == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif os.getpriority(os.PRIO_PROCESS, 0) < NICE:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)  # on Linux the calling thread's alone


def in_background(work: Callable[[Task], Result], task: Task, *, word: str = BACKGROUND) -> Result:
    """``work`` of the task, on a thread that yields; the caller's rank stays as it is."""
    with ThreadPoolExecutor(1, initializer=partial(yield_cores, word)) as pool:
        return pool.submit(work, task).result()
