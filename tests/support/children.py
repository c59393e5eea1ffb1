"""Descendants of this process on Linux, for tests that must leave none behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Both end when this process ends: Python's resource tracker, and Spark's JVM when its pipe closes.
SELF_ENDING = ("multiprocessing.resource_tracker", "org.apache.spark.deploy.SparkSubmit")


def left_behind(root: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield process id and command of every living descendant that does not end by itself."""
    for pid, parent, state in _processes():
        if parent != (root or os.getpid()) or state == "Z":
            continue
        command = _command(pid)
        if any(word in command for word in SELF_ENDING):
            continue
        yield from left_behind(pid)
        yield pid, command


def _processes() -> Iterator[tuple[int, int, str]]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended in the meantime
        yield int(entry.parent.name), int(fields[1]), fields[0]


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()
