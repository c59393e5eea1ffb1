"""The single writer: the only code that changes the partitions of a data directory.

It gathers the waiting appends and commits them together (``commit``). Every other change to a
partition (a cut, a reclaim, a swap, creating or deleting a topic) runs here too, between two
commits, through ``call``. So partitions need no lock, and "count and seal" is one step.

The writer has a thread because it waits for disks. A small append needs no disk before its sync, so
it is written inline at the end of the submitter's event-loop turn; only the sync, if the topic asks
for one, runs on the thread. Thus a message wakes as few threads as possible and the GIL is not
handed back and forth. ``_is_working`` ensures that only one of the two writes at a time.

The submitters bound the queue: they check ``waiting_records`` and ``waiting_bytes`` before they
accept more work from a socket. Appends marked ``hold`` have no other copy (lines from a socket):
when the disk is full they wait here, in order, and are written once space returns. All other
appends fail with ``DiskFull``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from cordwood.config import KIB, MIB
from cordwood.errors import ShuttingDown
from cordwood.log.write.commit import (
    Append,
    Commit,
    CommitStats,
    Committer,
    WrittenAppends,
    by_partition,
)
from cordwood.log.write.partition import Partition

T = TypeVar("T")

LINGER_S = 0.004  # under load a commit waits this long for more to share its sync
LOADED_BYTES = 256 * KIB  # a commit this large counts as load
ENOUGH_BYTES = 2 * MIB  # a commit this large does not wait for more
SMALL_BYTES = 64 * KIB  # copied into the page cache in the time it takes to wake a thread
INLINE_PARTITIONS = 64  # written inline at a time: each is a system call
TOLD_AT_ONCE = 256  # outcomes delivered before the event loop serves others
HOLD_RETRY_S = 0.1  # how often held appends retry a full disk
SPACE_RETRY_S = 0.5  # how often a full disk is checked while no append waits

logger = logging.getLogger("cordwood.log")

Call = tuple[Callable[[], object], Future[object]]


class Work(NamedTuple):
    """Work that the writer thread has taken from the queue."""

    unsynced: WrittenAppends | None  # written inline, still to be synced
    appends: dict[Partition, list[Append]]
    calls: list[Call]


class Writer:
    """The queue of appends and calls, and the thread that processes it."""

    def __init__(
        self,
        durability: str,
        *,
        enough_records: int = 8192,
        deliver: Callable[[Commit], None] = Commit.settle,
        post: Callable[[Callable[[], None]], object],
        has_space: Callable[[], bool] = lambda: True,
        soon: Callable[[Callable[[], None]], None] = lambda wake: wake(),
        note: Callable[[list[Partition]], None] = lambda _: None,
    ) -> None:
        """Prepare the writer; ``start`` starts its thread.

        ``enough_records``: a commit stops waiting for more once this many records are queued,
        because backpressure blocks further senders by then.
        ``deliver`` receives every commit, in order, on the submitters' event loop. ``post`` runs a
        callback there from the writer thread.
        ``has_space`` is polled after a full disk, while no append is waiting to retry by itself.
        ``soon`` runs a callback after the submitter's current work, so that one turn of the event
        loop over many sockets becomes one commit.
        ``note`` records how far partitions are synced (``recovery_points``).
        """
        self.waiting_records = 0
        self.waiting_bytes = 0
        self._committer = Committer(durability, note)
        self._enough_records = enough_records
        self._deliver = deliver
        self._post = post
        self._has_space = has_space
        self._soon = soon
        self._is_turn_ending = False  # ``_end_turn`` is scheduled
        self._offers: list[Callable[[], None]] = []
        self._appends: deque[Append] = deque()
        self._calls: deque[Call] = deque()
        self._untold: deque[Commit] = deque()
        self._wake = threading.Condition()
        self._is_working = False  # the thread or an inline write is active
        self._is_left_to_thread = False  # the queue cannot be written inline
        self._unsynced: WrittenAppends | None = None  # written inline; the thread finishes it
        self._failure: BaseException | None = None  # unexpected error in an inline write
        self._closing = False
        self._loaded = False
        self._retry_held_at = 0.0
        self._thread = threading.Thread(target=self._run, name="cordwood-writer", daemon=True)

    @property
    def stats(self) -> CommitStats:
        """Counters for the metrics."""
        return self._committer.stats

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def submit(self, append: Append) -> None:
        """Queue an append; ``deliver`` passes the outcome to its ``done`` callback."""
        with self._wake:
            if self._closing:
                raise ShuttingDown("the broker is stopping; send this again to the next one")
            self._appends.append(append)
            self.waiting_records += append.records
            self.waiting_bytes += len(append.data)
        self._look_soon()

    def offer(self, submit: Callable[[], None]) -> None:
        """Call ``submit`` once the writer is idle: at the end of this turn, or after the sync.

        For submitters that can gather a larger append while the writer is busy.
        """
        self._offers.append(submit)
        self._look_soon()

    def evict(self, records: int) -> list[Append]:
        """Remove the oldest droppable appends from the queue until ``records`` records are gone.

        This implements ``ingress.overflow=drop_oldest``. Appends whose submitter waits for an
        acknowledgement are never removed.
        """
        evicted: list[Append] = []
        with self._wake:
            kept: list[Append] = []
            while self._appends and records > 0:
                append = self._appends.popleft()
                if not append.droppable:
                    kept.append(append)
                    continue
                evicted.append(append)
                records -= append.records
                self.waiting_records -= append.records
                self.waiting_bytes -= len(append.data)
            self._appends.extendleft(reversed(kept))
        return evicted

    def call(self, change: Callable[[], T]) -> Future[T]:
        """Run ``change`` on the writer thread between two commits."""
        future: Future[T] = Future()
        with self._wake:
            if self._closing:
                raise ShuttingDown("the broker is stopping")
            self._calls.append((change, future))  # type: ignore[arg-type]
            self._wake.notify()
        return future

    def close(self) -> None:
        """Write the queued appends, then stop. Appends held for space fail with ``DiskFull``."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._committer.close()

    def tell_rest(self) -> None:
        """Deliver all remaining commits after ``close``; call it on the submitters' event loop."""
        while self._untold:
            self._deliver(self._untold.popleft())

    # --- inline writes: the submitters' event loop ----------------------------------------

    def _end_turn(self) -> None:
        """Write small appends inline; leave fsync and large appends to the writer thread."""
        try:
            if not self._is_working:
                offers, self._offers = self._offers, []
                for submit in offers:
                    submit()
        finally:
            self._is_turn_ending = False
        with self._wake:
            appends = self._take_small()
        if not appends:
            return
        unsynced: WrittenAppends | None = None
        try:
            written = self._write(appends)
            if written.due:
                unsynced = written
            else:
                self._finish(written)
        except BaseException as error:
            self._failure = error  # the thread raises it and ends
            raise
        finally:
            with self._wake:
                self._unsynced = unsynced
                self._is_working = unsynced is not None  # until the thread has synced
                if self._has_work() or self.stats.disk_full:  # the thread polls for space
                    self._wake.notify()
        self._tell()

    def _take_small(self) -> dict[Partition, list[Append]]:
        """Take every queued append if all are small and simple and no writer is active."""
        if self._is_working or not self._appends:
            return {}  # the active writer re-checks the queue when it finishes
        is_calm = not (self._calls or self._closing or self._loaded or self._retry_held_at)
        if is_calm and self.waiting_bytes <= SMALL_BYTES:
            found = by_partition(self._appends)
            if len(found) <= INLINE_PARTITIONS and all(
                partition.takes_at_once(mine) for partition, mine in found.items()
            ):
                self._is_working = True
                self._forget_waiting()
                return found
        self._is_left_to_thread = True
        self._wake.notify()
        return {}

    def _tell(self) -> None:
        """Deliver finished commits, oldest first; then re-check the queue.

        Each turn of the event loop delivers about ``TOLD_AT_ONCE`` appends at most.
        """
        left = TOLD_AT_ONCE
        while self._untold:
            if left <= 0:
                self._post(self._tell)
                return
            commit = self._untold.popleft()
            left -= len(commit.outcomes)
            self._deliver(commit)
        if self._appends or self._offers:
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_turn_ending:
            self._is_turn_ending = True
            self._soon(self._end_turn)

    # --- the writer thread ----------------------------------------------------------------

    def _run(self) -> None:
        is_over = False
        while not is_over:
            self._do(self._gather())
            with self._wake:
                self._is_working = False
                is_over = self._closing and not (self._appends or self._calls)
                is_due = self._untold or self._appends or self._offers
            if is_due:
                self._post(self._tell)

    def _do(self, work: Work) -> None:
        if work.unsynced is not None:
            self._finish(work.unsynced)
        if work.appends:
            self._finish(self._write(work.appends))
        for change, future in work.calls:
            _settle_call(change, future)

    def _gather(self) -> Work:
        """Wait for work; under load wait a little longer, so that one sync serves more appends."""
        with self._wake:
            while not self._has_work():
                if self.stats.disk_full and self._has_space():
                    self._set_full(False)
                self._wake.wait(SPACE_RETRY_S if self.stats.disk_full else None)
            if self._failure is not None:
                raise self._failure
            if self._unsynced is not None:
                unsynced, self._unsynced = self._unsynced, None
                return Work(unsynced, {}, [])
            self._linger()
            self._is_working = True
            work = Work(None, by_partition(self._appends), list(self._calls))
            self._forget_waiting()
            self._calls.clear()
        return work

    def _has_work(self) -> bool:
        """Whether the writer thread has something to do."""
        if self._failure is not None:
            return True
        if self._is_working:
            return self._unsynced is not None
        is_large = self.waiting_bytes > SMALL_BYTES
        is_mine = is_large or self._is_left_to_thread or self._retry_held_at or self._loaded
        return bool((self._appends and is_mine) or self._calls or self._closing)

    def _linger(self) -> None:
        """Wait for more appends under load, or for the next retry of a full disk.

        No inline write happens meanwhile: inline writes need an unloaded writer.
        """
        if self._retry_held_at and not self._calls and not self._closing:
            self._wake.wait(max(0.0, self._retry_held_at - time.monotonic()))
        if self._loaded and not self._calls:
            deadline = time.monotonic() + LINGER_S
            while not (self._has_enough() or self._calls or self._closing):
                left = deadline - time.monotonic()
                if left <= 0 or not self._wake.wait(left):
                    break

    def _has_enough(self) -> bool:
        return self.waiting_records >= self._enough_records or self.waiting_bytes >= ENOUGH_BYTES

    # --- commits: from either of the two --------------------------------------------------

    def _forget_waiting(self) -> None:
        self._appends.clear()
        self.waiting_records = self.waiting_bytes = 0
        self._is_left_to_thread = False

    def _write(self, appends: dict[Partition, list[Append]]) -> WrittenAppends:
        """Write the appends that fit on the disk; queue the others again if marked ``hold``."""
        written = self._committer.write(appends)
        if written.full or self.stats.disk_full:
            self._set_full(bool(written.full))
            self._put_back(written)
        return written

    def _finish(self, written: WrittenAppends) -> None:
        before = self.stats.bytes
        commit = self._committer.finish(written)
        if len(commit.outcomes) <= TOLD_AT_ONCE:
            self._untold.append(commit)
        else:
            self._untold.extend(commit.pieces(TOLD_AT_ONCE))
        is_large = self.stats.bytes - before >= LOADED_BYTES
        self._loaded = is_large and self._committer.durability == "fsync"

    def _put_back(self, written: WrittenAppends) -> None:
        held: list[Append] = []
        for append, error in written.full:
            if append.hold and not self._closing:
                held.append(append)
            else:
                written.outcomes.append((append, error))
        self._retry_held_at = time.monotonic() + HOLD_RETRY_S if held else 0.0
        with self._wake:
            self._appends.extendleft(reversed(held))
            self.waiting_records += sum(append.records for append in held)
            self.waiting_bytes += sum(len(append.data) for append in held)

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.stats.disk_full:
            self.stats.disk_full = is_full
            logger.warning(
                "disk.full appends wait for space" if is_full else "disk.recovered appends go on"
            )


def _settle_call(change: Callable[[], object], future: Future[object]) -> None:
    if not future.set_running_or_notify_cancel():  # cancelled; later no caller can cancel
        return
    try:
        future.set_result(change())
    except Exception as error:  # noqa: BLE001 - passed on to the caller of ``call``
        future.set_exception(error)
