"""The registry of everything that is wrong with the partitions of a data directory.

The store, the writer, readers, retention, compaction and the scrub report to it; ``/readyz``, the
metrics, the HTTP API and the command line read from it. Every change is logged once, however often
it is reported. Only problems are stored, so a query does not cost more with more partitions.

Decides nothing and changes no file. Safe on any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

from cordwood.errors import CordwoodError, ShuttingDown
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.log")

RANGES_MAX: Final = 1000  # damaged ranges kept per partition; a dying disk yields ever more


class Condition(StrEnum):
    """A problem of a whole partition; the value is its name in logs and JSON."""

    OFFLINE = "offline"  # the files cannot be opened: no reads, no writes
    READ_ONLY = "read_only"  # refuses writes; published records can be read
    READ_FAILED = "read_failed"  # the device refused a read
    RETENTION_FAILED = "retention_failed"  # the last round could not cut or reclaim it
    PURGE_FAILED = "purge_failed"  # dropped files could not be removed
    INDEXING_FAILED = "indexing_failed"  # its segment index could not be updated
    SCRUB_FAILED = "scrub_failed"  # the last scrub could not read all of it
    COMPRESSION_FAILED = "compression_failed"  # a sealed segment could not be compressed
    ARCHIVE_UNVERIFIED = "archive_unverified"  # RECLAIM waits: a bundle is unproven or lost
    COMPACTION_FAILED = "compaction_failed"  # quarantined: the last pass failed


UNSERVED: Final = (Condition.OFFLINE, Condition.READ_ONLY, Condition.READ_FAILED)


class DamagedRange(NamedTuple):
    """Offsets of one segment that cannot be read, and the reason."""

    segment: int  # its base offset
    start_offset: int
    end_offset: int  # one past the last; reading can continue here
    problem: str
    accepted: bool = False  # by an operator: still unreadable, but no longer a problem

    def is_same(self, other: DamagedRange) -> bool:
        """Whether this damage was reported before as ``other``, or is a part of it."""
        offsets = self.start_offset, self.end_offset
        if offsets == (other.start_offset, other.end_offset):
            return True
        return self.problem == other.problem and _is_within(self, other)

    def __str__(self) -> str:
        """A text for people."""
        return f"offsets {self.start_offset} to {self.end_offset - 1}: {self.problem}"


OnDamage = Callable[[TopicPartition, int], None]
_Ranges = dict[TopicPartition, dict[int, tuple[DamagedRange, ...]]]  # by segment


class HealthRegistry:
    """The problems by partition; empty when all is well."""

    def __init__(self) -> None:
        self.damage_found = 0  # ranges found since the start, for the metrics
        self._lock = threading.Lock()
        self._reasons: dict[Condition, dict[TopicPartition, str]] = {c: {} for c in Condition}
        self._damage: _Ranges = {}
        self._accepted: _Ranges = {}
        self._on_damage: list[OnDamage] = []

    def on_damage(self, callback: OnDamage) -> None:
        """Call back with the partition and the segment's base offset for damage that reads find."""
        self._on_damage.append(callback)

    # --- conditions -------------------------------------------------------------------------

    def report(self, tp: TopicPartition, condition: Condition, reason: str) -> None:
        """Report a problem; logged if it is new or has a new reason."""
        with self._lock:
            known = self._reasons[condition].get(tp)
            self._reasons[condition][tp] = reason
        if known != reason:
            logger.error("partition.%s partition=%s error=%s", condition.value, tp, reason)

    def resolve(self, tp: TopicPartition, condition: Condition) -> None:
        """Clear a problem, if there is one."""
        if tp not in self._reasons[condition]:  # the usual case, without the lock
            return
        with self._lock:
            was = self._reasons[condition].pop(tp, None)
        if was is not None:
            logger.info("partition.recovered partition=%s from=%s", tp, condition.value)

    def reasons(self, *conditions: Condition) -> dict[TopicPartition, str]:
        """Every partition in one of these conditions, with the reason of the first that applies."""
        found: dict[TopicPartition, str] = {}
        with self._lock:
            for condition in reversed(conditions):
                found |= self._reasons[condition]
        return dict(sorted(found.items()))

    def conditions(self, tp: TopicPartition) -> dict[Condition, str]:
        """All conditions of one partition."""
        with self._lock:
            return {c: reasons[tp] for c, reasons in self._reasons.items() if tp in reasons}

    def troubled(self) -> list[TopicPartition]:
        """Every partition that has a problem."""
        with self._lock:
            return sorted(
                {tp for reasons in self._reasons.values() for tp in reasons} | set(self._damage)
            )

    @contextmanager
    def guard(
        self, tp: TopicPartition, condition: Condition, is_expected: Callable[[], bool]
    ) -> Iterator[None]:
        """Isolate one partition in a round over many: an error ends the block, not the round.

        The error is reported unless it is expected: the partition is known to be offline, or is
        being deleted.
        """
        try:
            yield
        except ShuttingDown:
            return
        except (CordwoodError, OSError) as error:
            if not is_expected():
                self.report(tp, condition, str(error))
        else:
            self.resolve(tp, condition)

    # --- damaged ranges ---------------------------------------------------------------------

    def report_damage(self, tp: TopicPartition, found: DamagedRange) -> None:
        """Report damage that a reader met; counted and logged once per range."""
        with self._lock:
            segments = self._damage.setdefault(tp, {})
            ranges = segments.get(found.segment, ())
            is_known = any(_is_within(found, known) for known in ranges)
            if is_known or sum(map(len, segments.values())) >= RANGES_MAX:
                return
            kept = [known for known in ranges if not _is_within(known, found)]
            segments[found.segment] = tuple(sorted([*kept, found]))
            self.damage_found += 1
        self._log(tp, [found])
        for callback in self._on_damage:
            callback(tp, found.segment)

    def set_damage(self, tp: TopicPartition, segment: int, ranges: Sequence[DamagedRange]) -> None:
        """Set all damage of a segment, after the whole segment was read."""
        if not ranges and tp not in self._damage:
            return
        with self._lock:
            if not ranges:  # restored: later damage is new
                self._accepted.get(tp, {}).pop(segment, None)
            segments = self._damage.setdefault(tp, {})
            before = segments.pop(segment, ())
            if ranges:
                segments[segment] = tuple(ranges)
            if not segments:
                del self._damage[tp]
            news = [found for found in ranges if not any(_is_within(found, b) for b in before)]
            self.damage_found += len(news)
        if before and not ranges:
            logger.info("partition.recovered partition=%s from=damaged segment=%d", tp, segment)
        self._log(tp, news)

    def end_damage(self, tp: TopicPartition, below: int) -> None:
        """Forget damage below this offset, which can no longer be read."""
        if tp not in self._damage:
            return
        with self._lock:
            left = {
                segment: kept
                for segment, ranges in self._damage.pop(tp, {}).items()
                if (kept := tuple(r for r in ranges if r.end_offset > below))
            }
            if left:
                self._damage[tp] = left

    def accept_damage(
        self, tp: TopicPartition, segment: int, ranges: Sequence[DamagedRange]
    ) -> None:
        """Mark these ranges accepted by an operator; other damage of the segment stays open."""
        with self._lock:
            self._accepted.setdefault(tp, {})[segment] = tuple(ranges)

    def damage(self, tp: TopicPartition) -> list[DamagedRange]:
        """The partition's damaged ranges in order, including accepted ones; empty if none."""
        if tp not in self._damage:
            return []
        with self._lock:
            return self._marked(tp)

    def damaged(self) -> dict[TopicPartition, list[DamagedRange]]:
        """Every partition with damaged ranges that no operator has accepted."""
        return self._damaged(accepted=False)

    def accepted(self) -> dict[TopicPartition, list[DamagedRange]]:
        """Every partition with accepted damaged ranges."""
        return self._damaged(accepted=True)

    def _damaged(self, *, accepted: bool) -> dict[TopicPartition, list[DamagedRange]]:
        with self._lock:
            found = {tp: [r for r in self._marked(tp) if r.accepted == accepted]
                     for tp in sorted(self._damage)}  # fmt: skip
        return {tp: ranges for tp, ranges in found.items() if ranges}

    def _marked(self, tp: TopicPartition) -> list[DamagedRange]:
        """All ranges of a partition in order, each marked accepted or not."""
        accepted = self._accepted.get(tp, {})
        return sorted(
            found._replace(accepted=any(map(found.is_same, accepted.get(segment, ()))))
            for segment, ranges in self._damage.get(tp, {}).items()
            for found in ranges
        )

    @staticmethod
    def _log(tp: TopicPartition, news: Iterable[DamagedRange]) -> None:
        for damaged in news:
            logger.error(
                "partition.damaged partition=%s start_offset=%d end_offset=%d error=%s",
                tp, damaged.start_offset, damaged.end_offset, damaged.problem,
            )  # fmt: skip

    # --- deleted topics ---------------------------------------------------------------------

    def forget(self, topic: str) -> None:
        """Forget all problems of a deleted topic."""
        with self._lock:
            for condition, reasons in self._reasons.items():
                kept = {tp: reason for tp, reason in reasons.items() if tp.topic != topic}
                self._reasons[condition] = kept
            for ranges in (self._damage, self._accepted):
                for tp in [tp for tp in ranges if tp.topic == topic]:
                    del ranges[tp]


def _is_within(inner: DamagedRange, outer: DamagedRange) -> bool:
    return outer.start_offset <= inner.start_offset and inner.end_offset <= outer.end_offset
