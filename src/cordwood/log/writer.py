"""The single writer: one per data directory that changes partitions, and nobody else does.

It gathers the appends that wait, writes them, syncs each touched file once, and only then tells
everybody (group commit). Whatever else changes a partition (a cut, a reclaim, a swap, a topic's
birth or death) runs here too, between two commits, through ``call``; so no lock is ever taken
around a partition and "count and seal" is one step.

The work is a thread's, because it waits for disks. A small commit that needs no sync waits for
none: when the thread rests, whoever submitted does it on the spot, and nobody has to be woken
twice for one message. At any time one of the two is the writer, never both.

The queue is bounded by its callers: they look at ``waiting_records`` and ``waiting_bytes`` before
they take more work from a socket. Appends marked ``hold`` have no other copy (lines off a socket):
when the disk is full they wait here, in order, and are written once space returns. All others are
answered with ``DiskFull``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from cordwood.batch.header import BatchHeader
from cordwood.config import KIB, MIB
from cordwood.errors import CordwoodError, DiskFull, ShuttingDown
from cordwood.log.partition import Appended, Outcome, Partition

T = TypeVar("T")

LINGER_S = 0.004  # under load a commit waits this long for more to share its sync
LOADED_BYTES = 256 * KIB  # a commit this large counts as load
ENOUGH_BYTES = 2 * MIB  # no commit waits once this much is there
HOLD_RETRY_S = 0.1  # how often held appends try a full disk again
SPACE_RETRY_S = 0.5  # how often a full disk is looked at when no append is there to try it
SYNC_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
SYNC_THREADS = 4  # files of one commit are synced side by side
AT_ONCE_BYTES_MAX = 64 * KIB  # a commit that is copied in less time than a thread is woken

logger = logging.getLogger("cordwood.log")


@dataclass(slots=True, eq=False)
class Append:
    """Whole batches for one partition, and whom to tell."""

    partition: Partition
    data: bytearray | memoryview
    headers: list[BatchHeader]
    records: int
    done: Callable[[Outcome], None]
    hold: bool = False  # wait for space rather than fail
    droppable: bool = False  # nobody waits for the answer: ``evict`` may take it
    strict: bool = True  # Kafka's sequence rule; the line protocol allows gaps


class Commit(NamedTuple):
    """One group commit, as it is handed to ``deliver``: tell them all, then wake the readers."""

    outcomes: list[tuple[Append, Outcome]]
    published: list[Partition]

    def settle(self) -> None:
        """Answer every append of this commit."""
        for append, outcome in self.outcomes:
            append.done(outcome)


@dataclass(slots=True)
class WriterStats:
    """Counters the metrics read; only the writer thread changes them."""

    commits: int = 0
    records: int = 0
    bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_buckets: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BUCKETS) + 1))
    disk_full: bool = False


class Writer:
    """The queue, the thread, and the counters."""

    def __init__(
        self,
        durability: str,
        *,
        enough_records: int = 8192,
        deliver: Callable[[Commit], None] = Commit.settle,
        post: Callable[[Callable[[], None]], object] = lambda tell: tell(),
        has_space: Callable[[], bool] = lambda: True,
        soon: Callable[[Callable[[], None]], None] = lambda wake: wake(),
    ) -> None:
        """``enough_records``: when so many wait, whoever sends more is blocked by then.

        ``deliver`` hears of every commit, in order, where submitters are: ``post`` brings what it
        is given there from the thread.
        ``has_space`` is asked after a full disk, when nothing waits that would find out by itself.
        ``soon`` calls what it is given once the submitter is done with what it has at hand: so one
        turn of an event loop over many sockets wakes the thread once, and is one commit.
        """
        assert durability in {"fsync", "os"}
        self.stats = WriterStats()
        self.waiting_records = 0
        self.waiting_bytes = 0
        self._durability = durability
        self._enough_records = enough_records
        self._deliver = deliver
        self._post = post
        self._has_space = has_space
        self._soon = soon
        self._is_wake_due = False
        self._is_working = False  # somebody is the writer just now
        self._failure: BaseException | None = None  # of a commit outside the thread
        self._untold: deque[Commit] = deque()
        self._appends: deque[Append] = deque()
        self._calls: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._loaded = False
        self._retry_held_at = 0.0
        self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="cordwood-sync")
        self._thread = threading.Thread(target=self._run, name="cordwood-writer", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, append: Append) -> None:
        """Queue an append; its ``done`` hears the outcome through ``deliver``."""
        with self._wake:
            if self._closing:
                raise ShuttingDown("the broker is stopping; send this again to the next one")
            self._appends.append(append)
            self.waiting_records += append.records
            self.waiting_bytes += len(append.data)
            is_first, self._is_wake_due = not self._is_wake_due, True
        if is_first:
            self._soon(self._wake_up)

    def _wake_up(self) -> None:
        """Commit on the spot what can be, or let the thread do it."""
        with self._wake:
            self._is_wake_due = False
            appends = self._take_at_once()
            if not appends:
                self._wake.notify()
                return
            self._is_working = True
        try:
            self._commit(appends)
        except BaseException as error:
            self._failure = error  # the thread dies of it, as of its own
            raise
        finally:
            with self._wake:
                self._is_working = False
                if self._appends or self._calls or self._closing or self._failure:
                    self._wake.notify()
        self._tell()

    def _take_at_once(self) -> dict[Partition, list[Append]]:
        """Everything that waits, if it can be written here and now; otherwise nothing."""
        is_busy = self._is_working or self._calls or self._closing or self._retry_held_at
        if is_busy or self.waiting_bytes > AT_ONCE_BYTES_MAX:
            return {}
        found = _by_partition(self._appends)
        for partition, mine in found.items():
            if self._is_synced(partition) or not partition.takes_at_once(mine):
                return {}
        self._forget_waiting()
        return found

    def _tell(self) -> None:
        """Tell everybody what was committed, the oldest first."""
        while self._untold:
            self._deliver(self._untold.popleft())

    def evict(self, records: int) -> list[Append]:
        """Take the oldest droppable appends out of the queue until ``records`` are gone.

        This is ``ingress.overflow=drop_oldest``. What somebody waits to hear of is never taken.
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
        """Write what waits, then stop. Appends held for space are reported as not written."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown()

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            appends, calls = self._gather()
            if appends:
                self._commit(appends)
                self._post(self._tell)
            for change, future in calls:
                _settle_call(change, future)
            if self._closing and not self._appends and not self._calls:
                return

    def _gather(
        self,
    ) -> tuple[dict[Partition, list[Append]], list[tuple[Callable[[], object], Future[object]]]]:
        """Wait for work; under load wait a little longer, so that one sync serves more appends."""
        with self._wake:
            self._is_working = False
            while not self._has_work():
                if self.stats.disk_full and self._has_space():
                    self._set_full(False)
                self._wake.wait(SPACE_RETRY_S if self.stats.disk_full else None)
            if self._retry_held_at and not self._calls and not self._closing:
                self._wake.wait(max(0.0, self._retry_held_at - time.monotonic()))
            if self._loaded and not self._calls:
                deadline = time.monotonic() + LINGER_S
                while not (self._has_enough() or self._calls or self._closing):
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._wake.wait(left):
                        break
            while self._is_working:  # it was taken meanwhile, on the spot
                self._wake.wait()
            self._is_working = True
            appends = _by_partition(self._appends)
            self._forget_waiting()
            calls = list(self._calls)
            self._calls.clear()
        return appends, calls

    def _has_work(self) -> bool:
        if self._failure is not None:
            raise self._failure
        is_due = self._appends or self._calls or self._closing
        return bool(is_due) and not self._is_working

    def _forget_waiting(self) -> None:
        self._appends.clear()
        self.waiting_records = self.waiting_bytes = 0

    def _has_enough(self) -> bool:
        return self.waiting_records >= self._enough_records or self.waiting_bytes >= ENOUGH_BYTES

    def _commit(self, appends: dict[Partition, list[Append]]) -> None:
        """Write all, sync each file once, publish."""
        outcomes: list[tuple[Append, Outcome]] = []
        written: dict[Partition, None] = {}
        held: list[Append] = []
        is_full = False
        for partition, mine in appends.items():
            for append, outcome in zip(mine, partition.append_all(mine), strict=True):
                if isinstance(outcome, DiskFull):
                    is_full = True
                    if append.hold and not self._closing:
                        held.append(append)
                        continue
                elif isinstance(outcome, Appended):
                    written[partition] = None
                outcomes.append((append, outcome))
        self._set_full(is_full)
        self._put_back(held)
        broken = self._sync(written)
        if broken:
            outcomes = [(append, broken.get(append.partition, was)) for append, was in outcomes]
        published = [partition for partition in written if partition not in broken]
        for partition in published:
            partition.publish()
        self._count(outcomes)
        self._untold.append(Commit(outcomes, published))

    def _put_back(self, held: list[Append]) -> None:
        self._retry_held_at = time.monotonic() + HOLD_RETRY_S if held else 0.0
        if not held:
            return
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

    def _sync(self, written: Iterable[Partition]) -> dict[Partition, CordwoodError]:
        """Make this commit as durable as each topic asks; what could not be, with its error."""
        due = [partition for partition in written if self._is_synced(partition)]
        # The usual case is one file: no hand-over to another thread.
        synced = map(_sync, due) if len(due) == 1 else self._pool.map(_sync, due)
        broken: dict[Partition, CordwoodError] = {}
        for partition, outcome in zip(due, synced, strict=True):
            if isinstance(outcome, CordwoodError):
                broken[partition] = outcome
            else:
                self._count_sync(outcome)
        return broken

    def _is_synced(self, partition: Partition) -> bool:
        mode = partition.config.flush_mode
        return (self._durability if mode == "broker" else mode) == "fsync"

    def _count_sync(self, seconds: float) -> None:
        self.stats.syncs += 1
        self.stats.sync_seconds += seconds
        self.stats.sync_buckets[sum(seconds > bound for bound in SYNC_BUCKETS)] += 1

    def _count(self, outcomes: list[tuple[Append, Outcome]]) -> None:
        stored = [append for append, outcome in outcomes if isinstance(outcome, Appended)]
        committed_bytes = sum(len(append.data) for append in stored)
        self._loaded = committed_bytes >= LOADED_BYTES and self._durability == "fsync"
        self.stats.commits += 1
        self.stats.records += sum(append.records for append in stored)
        self.stats.bytes += committed_bytes


def _by_partition(appends: Iterable[Append]) -> dict[Partition, list[Append]]:
    """The appends of each partition, in order."""
    found: dict[Partition, list[Append]] = {}
    for append in appends:
        found.setdefault(append.partition, []).append(append)
    return found


def _sync(partition: Partition) -> float | CordwoodError:
    """Sync one partition; the seconds it took, or why it could not."""
    started = time.perf_counter()
    try:
        partition.sync()
    except CordwoodError as error:
        return error
    return time.perf_counter() - started


def _settle_call(change: Callable[[], object], future: Future[object]) -> None:
    if not future.set_running_or_notify_cancel():  # a stopping task; from here on none can cancel
        return
    try:
        future.set_result(change())
    except Exception as error:  # noqa: BLE001 - the caller of ``call`` gets it, whatever it is
        future.set_exception(error)
