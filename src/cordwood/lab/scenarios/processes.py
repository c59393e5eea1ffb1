"""What runs below a process, as Linux tells it; nothing here starts or ends one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs; one that waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def descendants(pid: int) -> Iterator[int]:
    """Children, theirs, and so on; a process belongs to the thread that started it."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def command(pid: int) -> bytes:
    """How it was started; nothing, when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants_named(pid: int, word: bytes) -> list[int]:
    """Those below it that were started with a word."""
    return [child for child in descendants(pid) if word in command(child)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it is gone
        return found
    for thread in threads:
        try:
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
        except OSError:  # this thread is
            continue
    return found
