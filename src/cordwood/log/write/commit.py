"""A group commit: many appends written, each touched file synced once, then published.

Two halves. ``write`` assigns offsets and puts the bytes into the files; ``finish`` waits for the
device, lets readers see the records and says what became of each append. Only ``finish`` waits, and
only when a topic asks for it. Who commits, where and when is the writer's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.batch.compression import INFLATED_BYTES_MAX
from cordwood.batch.header import BatchHeader
from cordwood.batch.validation import check_body
from cordwood.errors import CordwoodError, DiskFull, InvalidRecord
from cordwood.log.write.partition import Appended, Outcome, Partition

SYNC_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
SYNC_THREADS = 4  # files of one commit are synced side by side


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
    is_key_checked: bool = False  # a compacted topic need not look for keys again


class WrittenAppends(NamedTuple):
    """Appends whose bytes are in the files, as durable as the page cache."""

    outcomes: list[tuple[Append, Outcome]]
    touched: list[Partition]
    due: list[Partition]  # those of them that are to be synced
    full: list[tuple[Append, DiskFull]]  # what found no space: nothing of it is there


class Commit(NamedTuple):
    """A commit at its end: tell them all, then wake the readers."""

    outcomes: list[tuple[Append, Outcome]]
    published: list[Partition]

    def pieces(self, outcomes_max: int) -> Iterator[Commit]:
        """The same in parts of so many appends at most; the last one has the readers to wake."""
        last = max(0, len(self.outcomes) - 1) // outcomes_max
        for number in range(last):
            start = number * outcomes_max
            yield Commit(self.outcomes[start : start + outcomes_max], [])
        yield Commit(self.outcomes[last * outcomes_max :], self.published)

    def settle(self) -> None:
        """Answer every append of this commit."""
        for append, outcome in self.outcomes:
            append.done(outcome)


@dataclass(slots=True)
class CommitStats:
    """Counters the metrics read."""

    commits: int = 0
    records: int = 0
    bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_buckets: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BUCKETS) + 1))
    disk_full: bool = False


class Committer:
    """Commits for one data directory, one at a time."""

    def __init__(
        self, durability: str, note: Callable[[list[Partition]], None] = lambda _: None
    ) -> None:
        """``note`` hears of partitions whose end is to be remembered, once all of it is synced."""
        assert durability in {"fsync", "os"}
        self.durability = durability
        self._note = note
        self.stats = CommitStats()
        self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="cordwood-sync")

    def close(self) -> None:
        """Give the threads back."""
        self._pool.shutdown()

    def write(self, appends: Mapping[Partition, list[Append]]) -> WrittenAppends:
        """Write all; nobody sees it yet.

        Every append passes here, between two changes of its topic's settings: so here a compacted
        topic refuses what has no key, whoever sent it.
        """
        outcomes, touched, due, full = written = WrittenAppends([], [], [], [])
        for partition, waiting in appends.items():
            mine = waiting
            if "compact" in partition.config.cleanup_policy:
                mine = _take_keyed(waiting, outcomes)
            is_touched = False
            for append, outcome in zip(mine, partition.append_all(mine), strict=True):
                if isinstance(outcome, Appended):
                    is_touched = True
                elif isinstance(outcome, DiskFull):
                    full.append((append, outcome))
                    continue
                outcomes.append((append, outcome))
            if is_touched:
                touched.append(partition)
                if self._is_synced(partition) or not partition.is_end_noted:
                    due.append(partition)
        return written

    def finish(self, written: WrittenAppends) -> Commit:
        """Make each topic's part as durable as it asks, and let readers see it."""
        outcomes, published = written.outcomes, written.touched
        broken = self._sync(written.due) if written.due else None
        if broken:
            outcomes = [(append, broken.get(append.partition, was)) for append, was in outcomes]
            published = [partition for partition in published if partition not in broken]
        for partition in published:
            partition.publish()
        if written.due:
            self._note_ends(written.due, broken or {})  # before anybody is told
        self._count(outcomes)
        return Commit(outcomes, published)

    def _note_ends(self, synced: list[Partition], broken: Container[Partition]) -> None:
        """Remember the ends of partitions that were started or rolled; of others it is known."""
        fresh = [p for p in synced if not p.is_end_noted and p not in broken]
        if fresh:
            self._note(fresh)

    def _is_synced(self, partition: Partition) -> bool:
        """Whether an append to it is acknowledged only when it is on the device."""
        mode = partition.config.flush_mode
        return (self.durability if mode == "broker" else mode) == "fsync"

    def _sync(self, due: list[Partition]) -> dict[Partition, CordwoodError]:
        """What could not be synced, with its error."""
        # The usual case is one file: no hand-over to another thread.
        synced = self._pool.map(_sync, due) if len(due) > 1 else map(_sync, due)
        broken: dict[Partition, CordwoodError] = {}
        for partition, outcome in zip(due, synced, strict=True):
            if isinstance(outcome, CordwoodError):
                broken[partition] = outcome
            else:
                self._count_sync(outcome)
        return broken

    def _count_sync(self, seconds: float) -> None:
        self.stats.syncs += 1
        self.stats.sync_seconds += seconds
        self.stats.sync_buckets[sum(seconds > bound for bound in SYNC_BUCKETS)] += 1

    def _count(self, outcomes: list[tuple[Append, Outcome]]) -> None:
        records = size_bytes = 0
        for append, outcome in outcomes:
            if isinstance(outcome, Appended):
                records += append.records
                size_bytes += len(append.data)
        self.stats.commits += 1
        self.stats.records += records
        self.stats.bytes += size_bytes


def _take_keyed(appends: list[Append], outcomes: list[tuple[Append, Outcome]]) -> list[Append]:
    """What a compacted topic takes of these; the rest is among the outcomes."""
    taken = []
    for append in appends:
        error = _keyless(append)
        if error is None:
            taken.append(append)
        else:
            outcomes.append((append, error))
    return taken


def _keyless(append: Append) -> CordwoodError | None:
    """Why a compacted topic does not take an append: one of its records has no key."""
    if append.is_key_checked:
        return None
    position = 0
    for header in append.headers:
        if not header.is_control:
            try:
                walked = check_body(append.data, position, header, INFLATED_BYTES_MAX)
            except CordwoodError as error:
                return error
            if walked is None or walked.keyless >= 0:
                return InvalidRecord(
                    f"topic {append.partition.tp.topic} is compacted and takes no record without "
                    "a key; send it with one, as Kafka clients, `cordwood produce -K` and ingress "
                    "lines do"
                )
        position += header.size_bytes
    return None


def by_partition(appends: Iterable[Append]) -> dict[Partition, list[Append]]:
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
