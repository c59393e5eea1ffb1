"""Group commit: write many appends, sync each touched file once, then publish.

A commit has two halves. ``write`` assigns offsets and writes the bytes to the files. ``finish``
waits for the device, publishes the records and gives the outcome of each append. Only ``finish``
waits, and only for topics that require a sync. ``writer`` decides when and on which thread to
commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.batch.compression import INFLATED_BYTES_MAX
from cordwood.batch.header import BatchHeader
from cordwood.batch.validation import check_body
from cordwood.errors import CordwoodError, DiskFull, InvalidRecord, RecordError
from cordwood.log.read.read_state import LogEnd
from cordwood.log.write.flush import UnsyncedRecords, is_tracked
from cordwood.log.write.in_flight import InFlightCommits
from cordwood.log.write.partition import Appended, Outcome, Partition

SYNC_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
SYNC_THREADS = 4  # the files of one commit are synced in parallel

logger = logging.getLogger("cordwood.log")


@dataclass(slots=True, eq=False)
class Append:
    """Whole batches for one partition, with the callback that receives the outcome."""

    partition: Partition
    data: bytearray | memoryview
    headers: list[BatchHeader]
    records: int
    done: Callable[[Outcome], None]
    hold: bool = False  # wait for space rather than fail
    droppable: bool = False  # nobody waits for the outcome: ``evict`` may remove it
    strict: bool = True  # Kafka's sequence rule; the line protocol allows gaps
    is_key_checked: bool = False  # its keys were checked before


@dataclass(slots=True, eq=False)
class PartitionCommit:
    """The appends of one commit to one partition: written, and in flight until published."""

    partition: Partition
    end: LogEnd
    outcomes: list[tuple[Append, Outcome]]
    records: int
    size_bytes: int
    is_durable: bool = False


class WrittenAppends(NamedTuple):
    """Appends whose bytes are written to the files but, until a sync, only to the page cache."""

    parts: list[PartitionCommit]
    due: list[Partition]  # those of them that must be synced
    refused: list[tuple[Append, Outcome]]  # of partitions to which nothing was written
    full: list[tuple[Append, DiskFull]]  # did not fit; no byte of these is in the files
    held: list[Append]  # those of them that are queued again until there is space
    rolling: dict[Partition, list[Append]]  # not written: they wait for a roll


class Commit(NamedTuple):
    """A finished commit: its outcomes, and the partitions whose readers have something to read."""

    outcomes: list[tuple[Append, Outcome]]
    published: list[Partition]
    size_bytes: int  # appended

    def pieces(self, outcomes_max: int) -> Iterator[Commit]:
        """Split into commits of at most ``outcomes_max`` appends; the last one wakes readers."""
        last = max(0, len(self.outcomes) - 1) // outcomes_max
        for number in range(last):
            start = number * outcomes_max
            yield Commit(self.outcomes[start : start + outcomes_max], [], 0)
        yield Commit(self.outcomes[last * outcomes_max :], self.published, self.size_bytes)


@dataclass(slots=True)
class CommitStats:
    """Counters that the metrics read."""

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
        self, durability: str, record_ends: Callable[[list[Partition]], None] = lambda _: None
    ) -> None:
        """Prepare commits; ``record_ends`` is called with partitions whose end is not recorded.

        It is called after their sync and before their appends are acknowledged.
        """
        assert durability in {"fsync", "os"}
        self.durability = durability
        self._record_ends = record_ends
        self.stats = CommitStats()
        self._in_flight: InFlightCommits[PartitionCommit] = InFlightCommits()
        self._unsynced = UnsyncedRecords()
        self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="cordwood-sync")

    def close(self) -> None:
        """Stop the sync threads."""
        self._pool.shutdown()

    def write(self, appends: Mapping[Partition, list[Append]]) -> WrittenAppends:
        """Write all appends; readers do not see them yet.

        Every append passes here, and its topic's settings cannot change meanwhile. So this is the
        place where a compacted topic refuses records without a key, whoever sent them.
        """
        written = WrittenAppends([], [], [], [], [], {})
        for partition, waiting in appends.items():
            outcomes: list[tuple[Append, Outcome]] = []
            mine = waiting
            if "compact" in partition.config.cleanup_policy:
                mine = _take_keyed(waiting, outcomes)
            results = partition.append_all(mine)
            if len(results) < len(mine):
                written.rolling[partition] = mine[len(results) :]
            records = size_bytes = 0
            for append, outcome in zip(mine, results, strict=False):
                if isinstance(outcome, Appended):
                    records += append.records
                    size_bytes += len(append.data)
                elif isinstance(outcome, DiskFull):
                    written.full.append((append, outcome))
                    continue
                outcomes.append((append, outcome))
            if not size_bytes:
                written.refused.extend(outcomes)
                continue
            end = partition.log_end()
            part = PartitionCommit(partition, end, outcomes, records, size_bytes)
            self._in_flight.add(part)
            written.parts.append(part)
            if self._is_synced(partition, records) or not partition.is_end_recorded:
                written.due.append(partition)
        return written

    def finish(self, written: WrittenAppends) -> Commit:
        """Sync the partitions whose topic requires it, then publish what was written."""
        broken = self._sync(written.due) if written.due else {}
        outcomes, published = written.refused, []
        stats, size_bytes = self.stats, 0
        for part in written.parts:
            error = broken.get(part.partition) if broken else None
            if error is None:
                for done in self._in_flight.complete(part):
                    outcomes += done.outcomes
                    size_bytes += done.size_bytes
                    stats.records += done.records
                published.append(part.partition)
            else:
                for failed in self._in_flight.fail(part.partition):
                    outcomes += [(append, error) for append, _ in failed.outcomes]
        if written.due:
            self._record_new_ends(written.due, broken)  # before any append is acknowledged
        stats.commits += 1
        stats.bytes += size_bytes
        return Commit(outcomes, published, size_bytes)

    def _record_new_ends(self, synced: list[Partition], broken: Container[Partition]) -> None:
        """Record the ends of newly opened or rolled partitions; the others are recorded already."""
        fresh = [p for p in synced if not p.is_end_recorded and p not in broken]
        if fresh:
            self._record_ends(fresh)

    def _is_synced(self, partition: Partition, records: int) -> bool:
        """Whether an append of so many records is acknowledged only after a sync."""
        config = partition.config
        mode = config.flush_mode
        if (self.durability if mode == "broker" else mode) == "fsync":
            return True
        return is_tracked(config) and self._unsynced.add(partition, records, _steady_ms())

    @property
    def has_unsynced(self) -> bool:
        """Whether ``sync_overdue`` may have something to do. Safe on any thread."""
        return not self._unsynced.is_empty

    def sync_overdue(self) -> None:
        """Sync the partitions whose records have waited for ``flush.ms``; on the writer thread."""
        overdue = self._unsynced.overdue(_steady_ms())
        for partition, error in self._sync(overdue).items():
            logger.error("flush.failed partition=%s error=%s", partition.tp, error)

    def _sync(self, due: list[Partition]) -> dict[Partition, CordwoodError]:
        """Sync these partitions; returns those that failed, with their errors."""
        # Usually there is one file, which needs no other thread.
        synced = self._pool.map(_sync, due) if len(due) > 1 else map(_sync, due)
        broken: dict[Partition, CordwoodError] = {}
        for partition, outcome in zip(due, synced, strict=True):
            self._unsynced.forget(partition)
            if isinstance(outcome, CordwoodError):
                broken[partition] = outcome
            else:
                self._count_sync(outcome)
        return broken

    def _count_sync(self, seconds: float) -> None:
        self.stats.syncs += 1
        self.stats.sync_seconds += seconds
        self.stats.sync_buckets[sum(seconds > bound for bound in SYNC_BUCKETS)] += 1


def _take_keyed(appends: list[Append], outcomes: list[tuple[Append, Outcome]]) -> list[Append]:
    """Return the appends a compacted topic accepts; add the refused ones to ``outcomes``."""
    taken = []
    for append in appends:
        error = _keyless(append)
        if error is None:
            taken.append(append)
        else:
            outcomes.append((append, error))
    return taken


def _keyless(append: Append) -> CordwoodError | None:
    """Why a compacted topic refuses this append: a record without a key, or an invalid body."""
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
                    f"topic {append.partition.tp.topic} is compacted and requires a key on every "
                    "record; send it with a key, as Kafka clients, `cordwood produce -K` and "
                    "ingress lines do",
                    [RecordError(walked.keyless, "it has no key")] if walked else (),
                )
        position += header.size_bytes
    return None


def by_partition(appends: Iterable[Append]) -> dict[Partition, list[Append]]:
    """Group appends by partition, keeping their order."""
    grouped: dict[Partition, list[Append]] = {}
    for append in appends:
        grouped.setdefault(append.partition, []).append(append)
    return grouped


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _sync(partition: Partition) -> float | CordwoodError:
    """Sync one partition; returns the seconds it took, or the error."""
    started = time.perf_counter()
    try:
        partition.sync()
    except CordwoodError as error:
        return error
    return time.perf_counter() - started
