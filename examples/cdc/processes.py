"""Child processes of the example: started apart, logged to a file, ended by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

END_S = 20


class ExampleError(Exception):
    """The example cannot go on; the message says why and what to do."""


@contextlib.contextmanager
def running(
    *command: str | Path,
    log: Path,
    stop: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for the length of a ``with`` block.

    Its session is its own: Ctrl-C reaches this program only, which then ends the server.
    """
    account = {"user": user, "group": group_of(user), "extra_groups": []} if user else {}
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=log.parent,
            env={**os.environ, **(env or {})},
            **account,
        )
    try:
        yield process
    finally:
        end(process, stop)


def end(process: subprocess.Popen[bytes], stop: signal.Signals = signal.SIGTERM) -> None:
    """Ask a process to stop, wait, and kill it if it does not."""
    if process.poll() is None:
        process.send_signal(stop)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def group_of(user: str) -> int:
    """Return the main group of a user."""
    import pwd

    return pwd.getpwnam(user).pw_gid


def last_lines(log: Path, count: int = 15) -> str:
    """Return the end of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
