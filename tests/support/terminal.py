"""A pseudo terminal for child processes; tests read its output and wait for text."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from typing import Self

READY_S = 60
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A pseudo terminal; ``start`` runs Python on it."""

    def __init__(self, columns: int = 100) -> None:
        self._ours, self.theirs = pty.openpty()
        size = struct.pack("HHHH", 30, columns, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        self.raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ours)
        os.close(self.theirs)

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, **streams: int
    ) -> subprocess.Popen[bytes]:
        """Start Python with this terminal as stderr; its other streams are pipes by default."""
        wanted = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **streams}
        return self._start([sys.executable, *words], env, **wanted)

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command with this terminal for all its streams, as a user does."""
        return self._start([*words], env, stdin=self.theirs, stdout=self.theirs)

    def _start(
        self, words: list[str], env: Mapping[str, str] | None, **streams: int
    ) -> subprocess.Popen[bytes]:
        bare = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", "LINES"}}
        full = {**bare, "TERM": "xterm-256color", **(env or {})}
        return subprocess.Popen(words, stderr=self.theirs, env=full, **streams)

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._ours, keys.encode())

    def text(self) -> str:
        """Return the output so far, without colours and cursor movements."""
        while self._has_more(0):
            self.raw += os.read(self._ours, 65536)
        return _CONTROL.sub("", self.raw.decode(errors="replace"))

    def see_off(self, child: subprocess.Popen[bytes]) -> str:
        """Read all output until the child exits; a child whose output is not read blocks."""
        deadline = time.monotonic() + 4 * READY_S
        while child.poll() is None:
            assert time.monotonic() < deadline, self.text()
            self._has_more(100)
            self.text()
        return self.text()

    def wait_for(self, wanted: str) -> str:
        """Read until this text appears."""
        deadline = time.monotonic() + READY_S
        while wanted not in (seen := self.text()):
            assert time.monotonic() < deadline, f"{wanted!r} is not in {seen!r}"
            self._has_more(1000)
        return seen

    def press_until(self, key: str, wanted: str) -> str:
        """Press a key until the text appears.

        Python's readline misses a signal that arrives between its prompt and its wait for a key.
        """
        deadline = time.monotonic() + READY_S
        self.type(key)
        while wanted not in (seen := self.text()):
            assert time.monotonic() < deadline, f"{wanted!r} is not in {seen!r}"
            if not self._has_more(1000):
                self.type(key)
        return seen

    def _has_more(self, wait_ms: int) -> bool:
        """Use poll, because a long test run has descriptors above the limit of select."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        return bool(poll.poll(wait_ms))
