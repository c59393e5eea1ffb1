"""The single writer: the only code that changes the partitions of a data directory.

It gathers the waiting appends and commits them together (``commit``). Every other change to a
partition (a cut, a reclaim, a swap, creating or deleting a topic) runs here too, between two
commits, through ``call``. So partitions need no lock, and "count and seal" is one step.

The writer has a thread because it waits for disks. A small append needs no disk before its sync, so
it is written inline at the end of the submitter's event-loop turn; only the sync, if the topic asks
for one, runs on the thread. Thus a message wakes as few threads as possible and the GIL is not
handed back and forth. ``writer_state`` declares the states and who writes in each.

The way of an append: ``submit`` queues it; ``_end_turn`` (event loop) or ``_step`` (writer thread)
takes it from the queue; ``Committer.write`` and ``Committer.finish`` write, sync and publish it;
``_reply`` (event loop) calls its ``done`` with the outcome and, once per commit, ``on_commit``.

The submitters bound the queue: they check ``waiting_records`` and ``waiting_bytes`` before they
accept more work from a socket. Appends marked ``hold`` have no other copy (lines from a socket):
when the disk is full they wait here, in order, and are written once space returns. All other
appends fail with ``DiskFull``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from cordwood.config import KIB, MIB
from cordwood.errors import ShuttingDown
from cordwood.log.write.append_queue import AppendQueue, Call
from cordwood.log.write.commit import (
    Append,
    Commit,
    CommitStats,
    Committer,
    WrittenAppends,
    by_partition,
)
from cordwood.log.write.partition import Partition
from cordwood.log.write.writer_state import FOR_THREAD, WriterState, WriterStateMachine

T = TypeVar("T")

LINGER_S = 0.004  # under load a commit waits this long for more to share its sync
LOADED_BYTES = 256 * KIB  # a commit this large counts as load
ENOUGH_BYTES = 2 * MIB  # a commit this large does not wait for more
SMALL_BYTES = 64 * KIB  # copied into the page cache in the time it takes to wake a thread
INLINE_PARTITIONS = 64  # written inline at a time: each is a system call
REPLIES_PER_TURN = 256  # replies before the event loop serves others
HOLD_RETRY_S = 0.1  # how often held appends retry a full disk
SPACE_RETRY_S = 0.5  # how often a full disk is checked while no append waits

logger = logging.getLogger("cordwood.log")


class EventLoop(Protocol):
    """The submitters' event loop; asyncio's, or a test's."""

    def call_soon(self, callback: Callable[[], object], /) -> object:
        """Call back after the current turn; called on the loop."""
        ...

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object:
        """Call back on the loop; called on any thread."""
        ...


class Work(NamedTuple):
    """Work that the writer thread has taken over."""

    written: WrittenAppends | None  # written inline, still to be synced
    appends: dict[Partition, list[Append]]
    calls: list[Call]


class Writer:
    """The queue of appends and calls, and the thread that processes it."""

    def __init__(
        self,
        durability: str,
        *,
        enough_records: int = 8192,
        on_commit: Callable[[list[Partition]], None] = lambda _: None,
        has_space: Callable[[], bool] = lambda: True,
        record_ends: Callable[[list[Partition]], None] = lambda _: None,
    ) -> None:
        """Prepare the writer; ``start`` starts its thread.

        ``enough_records``: a commit stops waiting for more once this many records are queued,
        because backpressure blocks further senders by then.
        ``on_commit`` is called on the event loop after the replies of a commit, with the partitions
        that have new readable records.
        ``has_space`` is polled after a full disk, while no append is waiting to retry by itself.
        ``record_ends`` stores how far partitions are synced (``recovery_points``).
        """
        self._committer = Committer(durability, record_ends)
        self.stats: CommitStats = self._committer.stats  # for the metrics
        self._enough_records = enough_records
        self._on_commit = on_commit
        self._has_space = has_space
        self._queue = AppendQueue()
        self._machine = WriterStateMachine()
        self._handover: WrittenAppends | BaseException | None = None  # if UNSYNCED or FAILED
        self._wake = threading.Condition()  # guards the queue and the state
        self._thread = threading.Thread(target=self._run, name="cordwood-writer", daemon=True)
        # Used on the event loop only:
        self._loop: EventLoop
        self._is_turn_scheduled = False  # ``_end_turn`` will run
        self._idle_callbacks: list[Callable[[], None]] = []
        self._finished: deque[Commit] = deque()  # commits without replies; the thread appends

    @property
    def queue(self) -> AppendQueue:
        """What waits to be written, for submitters that check its bounds often."""
        return self._queue

    @property
    def waiting_records(self) -> int:
        """How many records wait to be written."""
        return self._queue.records

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be written."""
        return self._queue.bytes

    def start(self, loop: EventLoop) -> None:
        """Start the writer thread; all appends are submitted on ``loop`` and get replies there."""
        self._loop = loop
        self._thread.start()

    def submit(self, append: Append) -> None:
        """Queue an append; its ``done`` is called with the outcome."""
        with self._wake:
            self._queue.put(append)
        self._schedule_turn()

    def on_writer_idle(self, callback: Callable[[], None]) -> None:
        """Call back once the writer is idle: at the end of this turn, or after the sync.

        For submitters that can gather a larger append while the writer is busy.
        """
        self._idle_callbacks.append(callback)
        self._schedule_turn()

    def evict(self, records: int) -> list[Append]:
        """Remove the oldest droppable appends from the queue until ``records`` records are gone.

        This implements ``ingress.overflow=drop_oldest``. Appends whose submitter waits for an
        acknowledgement are never removed.
        """
        with self._wake:
            return self._queue.evict(records)

    def call(self, change: Callable[[], T]) -> Future[T]:
        """Run ``change`` on the writer thread between two commits."""
        future: Future[T] = Future()
        with self._wake:
            self._queue.put_call((change, future))  # type: ignore[arg-type]
            self._wake.notify()
        return future

    @property
    def has_unsynced(self) -> bool:
        """Whether a topic with ``flush.messages`` or ``flush.ms`` has records not synced yet."""
        return self._committer.has_unsynced

    def sync_overdue(self) -> Future[None]:
        """Sync what ``flush.ms`` asks for, on the writer thread."""
        return self.call(self._committer.sync_overdue)

    def close(self) -> None:
        """Write the queued appends, then stop. Appends held for space fail with ``DiskFull``."""
        with self._wake:
            self._queue.close()
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._committer.close()

    def reply_all(self) -> None:
        """Send all remaining replies after ``close``; call it on the event loop."""
        while self._finished:
            self._reply_to(self._finished.popleft())

    # --- event loop: inline writes and replies --------------------------------------------

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Write small appends inline; leave fsync and large appends to the writer thread."""
        try:
            if not self._machine.is_busy:
                callbacks, self._idle_callbacks = self._idle_callbacks, []
                for callback in callbacks:
                    callback()
        finally:
            self._is_turn_scheduled = False
        with self._wake:
            appends = self._take_inline()
        if appends:
            self._commit_inline(appends)
            self._reply()

    def _take_inline(self) -> dict[Partition, list[Append]]:
        """Take every queued append if all are small and simple and no writer is active."""
        queue, machine = self._queue, self._machine
        if machine.is_busy or not queue.appends:
            return {}  # the active writer re-checks the queue when it finishes
        if machine.state is WriterState.IDLE:
            ready_bytes = queue.bytes - queue.held_bytes
            is_small = ready_bytes <= SMALL_BYTES and not (queue.calls or queue.is_closed)
            appends = by_partition(queue.appends) if is_small else {}
            if 0 < len(appends) <= INLINE_PARTITIONS and all(
                partition.takes_at_once(mine) for partition, mine in appends.items()
            ):
                machine.move(WriterState.INLINE)
                queue.clear_appends()
                return appends
            machine.move(WriterState.QUEUED)
        self._wake.notify()
        return {}

    def _commit_inline(self, appends: dict[Partition, list[Append]]) -> None:
        try:
            written = self._write(appends)
            state = WriterState.UNSYNCED if written.due else self._finish(written)
        except BaseException as error:
            self._leave_inline(WriterState.FAILED, error)  # the thread raises it and ends
            raise
        self._leave_inline(state, written if written.due else None)

    def _leave_inline(
        self, state: WriterState, handover: WrittenAppends | BaseException | None = None
    ) -> None:
        with self._wake:
            self._handover = handover
            self._machine.move(state)
            if self._has_work() or self.stats.disk_full:  # the thread polls for space
                self._wake.notify()

    def _reply(self) -> None:
        """Reply to the appends of finished commits, oldest first; then re-check the queue.

        Each turn of the event loop sends about ``REPLIES_PER_TURN`` replies at most.
        """
        left = REPLIES_PER_TURN
        while self._finished:
            if left <= 0:
                self._loop.call_soon(self._reply)
                return
            commit = self._finished.popleft()
            left -= len(commit.outcomes)
            self._reply_to(commit)
        if self._queue.appends or self._idle_callbacks:
            self._schedule_turn()

    def _reply_to(self, commit: Commit) -> None:
        for append, outcome in commit.outcomes:
            append.done(outcome)
        self._on_commit(commit.published)

    # --- writer thread --------------------------------------------------------------------

    def _run(self) -> None:
        while self._machine.state is not WriterState.CLOSED:
            self._step()

    def _step(self) -> None:
        """Wait for work and do it, then choose the next state from the outcome."""
        written, appends, calls = self._gather()
        if appends:
            written = self._write(appends)
        state = WriterState.IDLE if written is None else self._finish(written)
        for change, future in calls:
            _run_call(change, future)
        with self._wake:
            queue = self._queue
            if queue.is_closed and queue.is_empty:
                state = WriterState.CLOSED
            elif state is WriterState.IDLE and queue.bytes - queue.held_bytes > SMALL_BYTES:
                state = WriterState.QUEUED
            self._machine.move(state)
            is_reply_due = self._finished or queue.appends or self._idle_callbacks
        if is_reply_due:
            self._loop.call_soon_threadsafe(self._reply)

    def _gather(self) -> Work:
        """Wait for work; under load wait a little longer, so that one sync serves more appends."""
        with self._wake:
            while not self._has_work():
                if self.stats.disk_full and self._has_space():
                    self._set_full(False)
                self._wake.wait(SPACE_RETRY_S if self.stats.disk_full else None)
            handover, self._handover = self._handover, None
            if isinstance(handover, BaseException):
                raise handover
            if handover is not None:
                self._machine.move(WriterState.COMMITTING)
                return Work(handover, {}, [])
            self._linger()
            self._machine.move(WriterState.COMMITTING)
            return Work(None, self._queue.take_appends(), self._queue.take_calls())

    def _has_work(self) -> bool:
        """Whether the writer thread has something to do."""
        state, queue = self._machine.state, self._queue
        if state in FOR_THREAD:
            return True
        if state is WriterState.INLINE:
            return False
        is_next = state is WriterState.LOADED and bool(queue.appends)
        return is_next or bool(queue.calls) or queue.is_closed

    def _linger(self) -> None:
        """Wait for more appends under load, or for the next retry of a full disk.

        No inline write happens meanwhile: the states of both exclude it.
        """
        if self._machine.state is WriterState.HELD:
            self._wake.wait_for(self._is_urgent, HOLD_RETRY_S)
        elif self._machine.state is WriterState.LOADED:
            self._wake.wait_for(lambda: self._is_urgent() or self._has_enough(), LINGER_S)

    def _is_urgent(self) -> bool:
        return bool(self._queue.calls) or self._queue.is_closed

    def _has_enough(self) -> bool:
        return self._queue.records >= self._enough_records or self._queue.bytes >= ENOUGH_BYTES

    # --- commits: event loop or writer thread ---------------------------------------------

    def _write(self, appends: dict[Partition, list[Append]]) -> WrittenAppends:
        """Write the appends that fit on the disk; queue the others again if marked ``hold``."""
        written = self._committer.write(appends)
        if written.full or self.stats.disk_full:
            self._set_full(bool(written.full))
            self._put_back(written)
        if written.rolling:
            self._await_rolls(written)
        return written

    def _put_back(self, written: WrittenAppends) -> None:
        with self._wake:
            for append, error in written.full:
                if append.hold and not self._queue.is_closed:
                    written.held.append(append)
                else:
                    written.refused.append((append, error))
            self._queue.put_back(written.held)

    def _await_rolls(self, written: WrittenAppends) -> None:
        """Hold back the appends whose partition waits for a roll; others go on meanwhile."""
        for partition, appends in written.rolling.items():
            roll = partition.rolls.pending
            assert roll is not None, "only a roll makes an append wait"
            with self._wake:
                if self._queue.is_closed:
                    error = ShuttingDown(
                        "the broker is shutting down; send this again after it has restarted"
                    )
                    written.refused.extend((append, error) for append in appends)
                    continue
                self._queue.hold(partition, appends)
            roll.granted.add_done_callback(partial(self._resume, partition))

    def _resume(self, partition: Partition, _: Future[None]) -> None:
        """Let the thread write the appends that waited for a roll. Called on any thread."""
        with self._wake:
            self._queue.resume(partition)
            if self._machine.state is WriterState.IDLE:
                self._machine.move(WriterState.QUEUED)
            self._wake.notify()

    def _finish(self, written: WrittenAppends) -> WriterState:
        """Sync and publish, and leave the replies to the event loop; returns the next state."""
        commit = self._committer.finish(written)
        if len(commit.outcomes) <= REPLIES_PER_TURN:
            self._finished.append(commit)
        else:
            self._finished.extend(commit.pieces(REPLIES_PER_TURN))
        if written.held:
            return WriterState.HELD
        is_load = commit.size_bytes >= LOADED_BYTES and self._committer.durability == "fsync"
        return WriterState.LOADED if is_load else WriterState.IDLE

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.stats.disk_full:
            self.stats.disk_full = is_full
            logger.warning(
                "disk.full appends wait for free space"
                if is_full
                else "disk.recovered appends continue"
            )


def _run_call(change: Callable[[], object], future: Future[object]) -> None:
    if not future.set_running_or_notify_cancel():  # cancelled; later no caller can cancel
        return
    try:
        future.set_result(change())
    except Exception as error:  # noqa: BLE001 - passed on to the caller of ``call``
        future.set_exception(error)
