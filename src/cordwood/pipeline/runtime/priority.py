"""Scheduling priority of Spark jobs, so that background work does not delay producers.

Acknowledging a producer takes a handful of thread wake-ups. Next to a Spark job of equal priority,
each wake-up waits until the job's time slice ends. In measurements nearly all of the added latency
is that wait and none of it is disk. If the job runs at ``nice`` 10 or higher, or under
``SCHED_IDLE``, a thread that wakes up preempts it at once (Linux 6.18, two cores, four busy
threads: p99 of a wake-up and back is 0.15 ms and 0.13 ms; at equal priority and at ``nice`` 5 it
is milliseconds).

- ``normal``: unchanged priority. For work that a person waits for: every command that runs on
  Spark.
- ``background``: ``nice`` 10. On a core with four busy threads it still gets a fortieth. For the
  pipeline's own work, and the default for work that a session passes to ``tasks``.
- ``idle``: ``SCHED_IDLE``, only otherwise unused CPU time. On a busy machine that is next to
  nothing, so a session must request it explicitly.

A thread cannot raise its priority again. So a session in its own process lowers the priority of the
process and everything it starts. A job that shares a Spark session with the router, which must not
be slowed down, runs the work of each task on a separate low-priority thread. On systems other than
Linux the priority does not change.
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


def check_word(word: str) -> str:
    """Validate the setting's value; raises ``ConfigError`` for an unknown one."""
    if word not in WORDS:
        hint = nearest(word, WORDS)
        raise ConfigError(f"{SETTING} is {NORMAL}, {BACKGROUND} or {IDLE}, not {word}{hint}")
    return word


def yield_cores(word: str = BACKGROUND) -> None:
    """Lower the priority of this thread, and of all it starts from now on."""
    if not sys.platform.startswith("linux") or word == NORMAL:
        return
    if word == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif os.getpriority(os.PRIO_PROCESS, 0) < NICE:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)  # on Linux this affects only the calling thread


def in_background(work: Callable[[Task], Result], task: Task, *, word: str = BACKGROUND) -> Result:
    """Run ``work(task)`` on a low-priority thread; the caller's own priority does not change."""
    with ThreadPoolExecutor(1, initializer=partial(yield_cores, word)) as pool:
        return pool.submit(work, task).result()
