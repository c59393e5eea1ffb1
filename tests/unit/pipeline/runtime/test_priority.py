"""Background tasks run at a lower priority, and the thread that starts them keeps its own."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from cordwood.errors import ConfigError
from cordwood.pipeline.runtime.priority import NICE, check_word, in_background, yield_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="SCHED_IDLE is Linux's")


def rank(_=None):
    """Return the scheduling policy and the nice value of this thread."""
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


HERE = rank()


def test_a_task_in_the_background_is_nice_and_its_caller_is_not():
    """A background task has a higher nice value, and its caller's priority is unchanged."""
    assert in_background(rank, None) == (os.SCHED_OTHER, max(NICE, HERE[1]))
    assert rank() == HERE


def test_only_a_session_that_says_idle_runs_on_the_cores_nobody_wants():
    """``SCHED_IDLE`` is used only if the session asks for ``idle``."""
    assert in_background(rank, None, word="idle")[0] == os.SCHED_IDLE
    assert in_background(rank, None, word="normal") == HERE
    assert rank() == HERE


def test_who_is_nicer_already_stays_so():
    """A thread that has a higher nice value keeps it, because the kernel forbids lowering it."""

    def twice(_):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        yield_cores()
        return rank()

    assert in_background(twice, None, word="normal") == (os.SCHED_OTHER, 19)


def test_an_error_in_the_background_reaches_who_asked():
    """An error in a background task is raised in the caller."""
    with pytest.raises(ZeroDivisionError):
        in_background(lambda _: 1 // 0, None)


def test_what_a_thread_starts_after_it_has_yielded_yields_too():
    """Processes that a low-priority thread starts inherit its priority."""
    ask = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    with ThreadPoolExecutor(1, initializer=yield_cores) as pool:
        output = pool.submit(subprocess.check_output, [sys.executable, "-c", ask]).result()
    assert int(output) == max(NICE, HERE[1])


def test_a_priority_nobody_knows_is_refused_by_name():
    """An unknown priority is refused with the nearest known one."""
    assert [check_word(word) for word in ("idle", "background", "normal")]
    with pytest.raises(ConfigError, match=r"spark\.cordwood\.priority.*did you mean idle"):
        check_word("idl")
