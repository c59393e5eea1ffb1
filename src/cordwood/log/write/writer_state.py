"""The states of the writer and the legal moves between them. Pure: no lock, no thread, no clock.

One thing writes at a time: the event loop, for small appends (``INLINE``), or the writer thread
(``COMMITTING``). In between the state says who goes on::

    IDLE ──────► INLINE ──► IDLE, HELD           small appends, no sync needed
                 INLINE ──► UNSYNCED ──► COMMITTING       the thread syncs them
                 INLINE ──► FAILED               a bug: the thread raises the error too
    IDLE ──────► QUEUED ──► COMMITTING           the queue needs the thread
    IDLE, LOADED, HELD ───► COMMITTING           appends, calls, or the end
    COMMITTING ► IDLE, QUEUED, LOADED, HELD, CLOSED
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class WriterState(StrEnum):
    """Who writes, or who writes next."""

    IDLE = "idle"  # nobody; the event loop may write the next appends inline
    QUEUED = "queued"  # the queue cannot be written inline: the thread takes it
    LOADED = "loaded"  # the last commit was large: the thread waits for more to share a sync
    HELD = "held"  # the disk is full: the thread retries the appends that wait for space
    INLINE = "inline"  # the event loop writes
    UNSYNCED = "unsynced"  # written inline; the thread takes over to sync
    COMMITTING = "committing"  # the thread writes, syncs or runs calls
    FAILED = "failed"  # an inline write raised an unexpected error
    CLOSED = "closed"  # everything is written, and the thread ends


_S = WriterState
MOVES: Final[Mapping[WriterState, frozenset[WriterState]]] = {
    _S.IDLE: frozenset({_S.INLINE, _S.QUEUED, _S.COMMITTING}),
    _S.QUEUED: frozenset({_S.COMMITTING}),
    _S.LOADED: frozenset({_S.COMMITTING}),
    _S.HELD: frozenset({_S.COMMITTING}),
    _S.INLINE: frozenset({_S.IDLE, _S.HELD, _S.UNSYNCED, _S.FAILED}),
    _S.UNSYNCED: frozenset({_S.COMMITTING}),
    _S.COMMITTING: frozenset({_S.IDLE, _S.QUEUED, _S.LOADED, _S.HELD, _S.CLOSED}),
    _S.FAILED: frozenset(),
    _S.CLOSED: frozenset(),
}
BUSY: Final = frozenset({_S.INLINE, _S.UNSYNCED, _S.COMMITTING})
FOR_THREAD: Final = frozenset({_S.QUEUED, _S.HELD, _S.UNSYNCED, _S.FAILED})  # work waits for it


class WriterStateMachine:
    """The current state; ``move`` asserts that the table has the move."""

    def __init__(self) -> None:
        self.state = WriterState.IDLE
        self.is_busy = False  # somebody writes; the others wait until it has finished

    def move(self, state: WriterState) -> None:
        """Go to ``state``."""
        assert state in MOVES[self.state], f"the writer cannot go from {self.state} to {state}"
        self.state = state
        self.is_busy = state in BUSY
