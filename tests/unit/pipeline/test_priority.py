"""Work that can wait leaves the cores to others; whoever asked for it does not."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from cordwood.errors import ConfigError
from cordwood.pipeline.priority import in_background, is_idle, yield_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="SCHED_IDLE is Linux's")


def policy(_=None):
    """How the kernel ranks the thread that asks."""
    return os.sched_getscheduler(0)


def test_a_task_runs_on_the_cores_nobody_wants_and_its_caller_does_not():
    """The worker's own thread serves the router next."""
    assert in_background(policy, None) == os.SCHED_IDLE
    assert policy() == os.SCHED_OTHER


def test_an_error_in_the_background_reaches_who_asked():
    """As if the work had been done in place."""
    with pytest.raises(ZeroDivisionError):
        in_background(lambda _: 1 // 0, None)


def test_what_a_thread_starts_after_it_has_yielded_yields_too():
    """Java is started once, and its workers by it."""
    ask = "import os; print(os.sched_getscheduler(0))"
    with ThreadPoolExecutor(1, initializer=yield_cores) as pool:
        said = pool.submit(subprocess.check_output, [sys.executable, "-c", ask]).result()
    assert int(said) == os.SCHED_IDLE


def test_a_priority_nobody_knows_is_refused_by_name():
    """With the nearest one that is known."""
    assert is_idle("idle")
    assert not is_idle("normal")
    with pytest.raises(ConfigError, match=r"spark\.cordwood\.priority.*did you mean idle"):
        is_idle("idl")
