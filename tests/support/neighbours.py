"""A healthy client next to misbehaving ones: it must stay fast, and its p99 is printed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from support.lines import until

PATIENCE_S = 60.0
STALLED_S = 10.0  # no request takes this long, even on a busy machine
FEW, MANY = 200, 1_000
LEAK_BYTES = 12 * 2**20  # for MANY requests: at most 12 KiB may remain of each


class Neighbour:
    """Repeats one request on its own thread and measures each.

    ``step`` raises if the answer is wrong. Leaving the block waits for a few more steps, raises
    what a step raised, prints how long the steps took, and fails if one took so long that the
    broker must have stalled.
    """

    def __init__(self, name: str, step: Callable[[], object]) -> None:
        """The requests start when the ``with`` block is entered."""
        self.name = name
        self.waits_s: list[float] = []
        self._step = step
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"neighbour-{name}", daemon=True)

    def _run(self) -> None:
        try:
            while not self._ending.wait(0.002):
                started = time.perf_counter()
                self._step()
                self.waits_s.append(time.perf_counter() - started)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        goal = len(self.waits_s) + 3
        if kind is None:
            until(
                lambda: self._failure is not None or len(self.waits_s) >= goal,
                f"the neighbour {self.name} is served",
                PATIENCE_S,
            )
        self._ending.set()
        self._thread.join(PATIENCE_S)
        if self._failure is not None and kind is None:
            raise self._failure
        print(self.summary())
        if kind is None:
            assert_not_stalled(self.waits_s)

    def summary(self) -> str:
        """Return the measured times for the test's output."""
        ordered = sorted(self.waits_s) or [0.0]
        p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        return (
            f"neighbour {self.name}: {len(ordered)} requests, p50 {p50 * 1000:.1f} ms, "
            f"p99 {p99 * 1000:.1f} ms, longest {ordered[-1] * 1000:.1f} ms"
        )


def assert_not_stalled(waits_s: Sequence[float]) -> None:
    """No request may block the event loop for seconds, whatever the p99 is."""
    assert max(waits_s, default=0.0) < STALLED_S, f"stalled for {max(waits_s):.1f} s"


def assert_leaves_nothing(pid: int, step: Callable[[], object]) -> None:
    """After a warm-up, a thousand repetitions do not grow the resident memory of a process."""
    for _ in range(FEW):
        step()
    before = resident_bytes(pid)
    for _ in range(MANY):
        step()
    grown = resident_bytes(pid) - before
    print(f"{MANY} times the same: memory grew by {grown / 2**20:.1f} MiB")
    assert grown < LEAK_BYTES


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
