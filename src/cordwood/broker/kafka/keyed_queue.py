"""Carries out a coordinator's instructions in order per key, keys concurrently; and timers.

The state machines of ``decide`` answer an event with a list of instructions and rely on two things:
the lists of one key are carried out one after the other, whatever they wait for, and a tick arrives
at the requested time. This module provides both; the coordinators know what an instruction means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

Instruction = TypeVar("Instruction")

LOOK_S_MAX: Final = 3600.0  # re-check distant timers this often: the wall clock may be changed


class KeyedQueue(Generic[Instruction]):
    """One queue and task per key with pending instructions. Used only on the event loop."""

    def __init__(self, carry_out: Callable[[str, Sequence[Instruction]], Awaitable[None]]) -> None:
        self._carry_out = carry_out
        self._waiting: dict[str, deque[Sequence[Instruction]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, key: str) -> bool:
        """Return whether instructions for the key are still being carried out."""
        return key in self._tasks

    def put(self, key: str, instructions: Sequence[Instruction]) -> None:
        """Carry these out after all earlier instructions of this key."""
        if not instructions:
            return
        self._waiting.setdefault(key, deque()).append(instructions)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key))

    def drop_waiting(self, key: str) -> None:
        """Drop the key's instructions that have not started yet."""
        self._waiting[key].clear()

    async def idle(self) -> None:
        """Wait until every queue is empty."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _run(self, key: str) -> None:
        waiting = self._waiting[key]
        try:
            while waiting:
                await self._carry_out(key, waiting.popleft())
        finally:
            del self._waiting[key], self._tasks[key]


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not make the call."""


CallLater = Callable[[float, Callable[[str, int], None], str, int], Handle]


class Timers:
    """One timer per key; ``due`` is called when its time has come, never before."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        due: Callable[[str], None],
        call_later: CallLater | None = None,
    ) -> None:
        """Timers by the running event loop, or by another ``call_later``."""
        self._now_ms = now_ms
        self._due = due
        self._call_later = call_later
        self._set: dict[str, tuple[int, Handle]] = {}

    def set(self, key: str, at_ms: int) -> None:
        """Set or replace the key's timer."""
        self.cancel(key)
        wait_s = min(max(0, at_ms - self._now_ms()) / 1000, LOOK_S_MAX)
        call_later = self._call_later or asyncio.get_running_loop().call_later
        self._set[key] = at_ms, call_later(wait_s, self._look, key, at_ms)

    def cancel(self, key: str) -> None:
        """Cancel the key's timer, if any."""
        _, handle = self._set.pop(key, (0, None))
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        """Cancel every timer."""
        for key in list(self._set):
            self.cancel(key)

    def look(self) -> None:
        """Call ``due`` for every key whose time has come, without waiting for the event loop."""
        for key, (at_ms, _) in list(self._set.items()):
            if at_ms <= self._now_ms():
                self._look(key, at_ms)

    def _look(self, key: str, at_ms: int) -> None:
        if self._now_ms() < at_ms:  # event loop timers are coarse and may fire a little early
            self.set(key, at_ms)
        else:
            self.cancel(key)
            self._due(key)
