"""The ``exactly-once`` scenario: which processes it kills, and how it finds them."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

from cordwood.lab.scenarios.pipeline import plan_victims
from cordwood.lab.scenarios.processes import descendants_named, is_alive

CHILD = "import os; print(os.getpid(), flush=True); input()"
PARENT = f"""
import subprocess, sys, threading
def start():
    child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, "a-word"], stdin=subprocess.PIPE)
    sys.stdin.read()
    child.kill()
    child.wait()
threading.Thread(target=start).start()
"""


def test_every_kind_of_process_dies_in_every_story():
    """The plan kills each kind of process.

    It has the requested number of driver kills, and the rest is shared equally by the other kinds.
    """
    chance = random.Random(1)
    assert Counter(plan_victims(chance, 4, 1)) == Counter(
        ["driver", "broker", "executor", "workers"]
    )
    counts = Counter(plan_victims(chance, 20, 3))
    assert counts["driver"] == 3
    assert sum(counts.values()) == 20
    assert min(counts["broker"], counts["executor"], counts["workers"]) >= 5


def test_a_process_is_found_below_the_thread_that_started_it():
    """A descendant is found by a word of its command line, even if a thread started it."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert descendants_named(parent.pid, b"a-word") == [pid]
        assert descendants_named(parent.pid, b"another-word") == []
        assert is_alive(pid)
        parent.stdin.close()
    assert not is_alive(pid)
