"""A terminal for a child to draw on; what it draws can be read and awaited."""

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
    """One pseudo terminal; ``start`` runs Python on it."""

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
        """A Python child whose stderr is this terminal; its other streams are pipes unless said."""
        wanted = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **streams}
        return self._start([sys.executable, *words], env, **wanted)

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A command with this terminal for all its streams, as a person runs it."""
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
        """What was written so far, without colours and cursor movements."""
        while self._has_more(0):
            self.raw += os.read(self._ours, 65536)
        return _CONTROL.sub("", self.raw.decode(errors="replace"))

    def see_off(self, child: subprocess.Popen[bytes]) -> str:
        """Read all that a child writes until it has ended: one that is not read comes to a halt."""
        deadline = time.monotonic() + 4 * READY_S
        while child.poll() is None:
            assert time.monotonic() < deadline, self.text()
            self._has_more(100)
            self.text()
        return self.text()

    def wait_for(self, wanted: str) -> str:
        """Read until these words were written."""
        deadline = time.monotonic() + READY_S
        while wanted not in (seen := self.text()):
            assert time.monotonic() < deadline, f"{wanted!r} is not in {seen!r}"
            self._has_more(1000)
        return seen

    def press_until(self, key: str, wanted: str) -> str:
        """Press a key, again where it was not heard, as a person would.

        Python's readline misses a signal that comes between its prompt and its wait for a key.
        """
        deadline = time.monotonic() + READY_S
        self.type(key)
        while wanted not in (seen := self.text()):
            assert time.monotonic() < deadline, f"{wanted!r} is not in {seen!r}"
            if not self._has_more(1000):
                self.type(key)
        return seen

    def _has_more(self, wait_ms: int) -> bool:
        """By poll: a long run of tests has descriptors above what select can take."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        return bool(poll.poll(wait_ms))
