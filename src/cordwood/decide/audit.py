"""AUDIT: finds gaps and duplicates in a log, and checks that routing lost no record.

A partition is sound if its batches cover every offset once and each numbered batch of a producer
occurs once. The router is sound if each ingress offset that it has processed occurs once, in a
route or among the dead letters.

Not every gap is a loss: compaction removes records, RECLAIM removes whole segments, and records
that the router has not processed yet are pending. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class RangeAudit(NamedTuple):
    """The result of reading the batches of one range of a partition in order."""

    start: int  # first offset covered; -1 without batches
    end: int  # one past the last covered
    records: int
    markers: int  # offsets that hold transaction markers
    thinned: int  # offsets without a record inside batches
    holes: int  # offsets between batches
    repeats: int  # batches that start before the previous one ends


class PartitionAudit(NamedTuple):
    """The audit result of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    markers: int
    cleaned: int  # offsets whose records compaction removed
    missing: int  # unexplained offsets
    duplicates: int  # batches stored twice

    @property
    def is_sound(self) -> bool:
        """Whether no offset is missing and no batch is stored twice."""
        return not self.missing and not self.duplicates


def audit_partition(
    topic: str,
    partition: int,
    bounds: tuple[int, int],
    pieces: Sequence[RangeAudit],
    *,
    compacted: bool,
    renumbered: int = 0,
) -> PartitionAudit:
    """Merge the results of a partition's ranges; on a compacted topic, gaps are expected.

    ``renumbered`` counts batches that repeat the producer sequence numbers of another batch of the
    partition.
    """
    start, end = bounds
    holes = thinned = repeats = 0
    reached = start
    for piece in pieces:
        thinned += piece.thinned
        repeats += piece.repeats
        if piece.start < 0:
            continue
        holes += max(0, piece.start - reached) + piece.holes
        reached = max(reached, piece.end)
    empty = holes + thinned + max(0, end - reached)
    return PartitionAudit(
        topic=topic,
        partition=partition,
        start=start,
        end=end,
        records=sum(piece.records for piece in pieces),
        markers=sum(piece.markers for piece in pieces),
        cleaned=empty if compacted else 0,
        missing=0 if compacted else empty,
        duplicates=repeats + renumbered,
    )


class AuditWindow(NamedTuple):
    """The router's totals for the records of one time window."""

    window: str
    ingested: int
    routed: int
    dead_lettered: int
    pending: int  # not processed by the router yet
    expired: int  # processed, but their copies may have been reclaimed since
    missing: int  # processed, but found nowhere
    duplicated: int  # found more than once
    strangers: int  # found, but absent from the ingress topic

    @property
    def is_balanced(self) -> bool:
        """Whether ingested = routed + dead-lettered, apart from pending and expired records."""
        return not (self.missing or self.duplicated or self.strangers)


def is_whole(partitions: Iterable[PartitionAudit], books: Iterable[AuditWindow]) -> bool:
    """Whether an audit found no problem."""
    return all(each.is_sound for each in partitions) and all(each.is_balanced for each in books)
