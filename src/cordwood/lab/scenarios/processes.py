"""Inspect a process and its descendants through ``/proc``; never starts or ends one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process runs; False for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def descendants(pid: int) -> Iterator[int]:
    """All descendants; Linux lists children under the thread that started them."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def command(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants_named(pid: int, word: bytes) -> list[int]:
    """Descendants whose command line contains a word."""
    return [child for child in descendants(pid) if word in command(child)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # the process has ended
        return found
    for thread in threads:
        try:
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
        except OSError:  # this thread has ended
            continue
    return found
