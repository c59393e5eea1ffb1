"""AUDIT: whether a log has holes or repeats, and whether the router's books balance.

Two questions, both answered from facts alone. Of a partition: do its batches cover every offset
once, and did every numbered batch of a producer come once? Of the ingress topic: is each offset the
router has passed found once, in a route or among the dead letters?

Not every hole is a loss. Compaction makes them on purpose, RECLAIM takes whole ends away, and what
the router has not passed is pending. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class RangeAudit(NamedTuple):
    """A walk over the batches of one range of a partition, in order."""

    start: int  # first offset covered; -1 when there was no batch
    end: int  # one past the last covered
    records: int
    markers: int  # offsets that hold transaction markers
    thinned: int  # offsets inside batches without a record
    holes: int  # offsets between batches
    repeats: int  # batches that begin before the one before them ends


class PartitionAudit(NamedTuple):
    """What was found of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    markers: int
    cleaned: int  # offsets compaction has emptied
    missing: int  # offsets that nothing explains
    duplicates: int  # batches stored twice

    @property
    def is_sound(self) -> bool:
        """Nothing missing, nothing twice."""
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
    """Join the pieces of a partition; where it is compacted, holes are explained.

    ``renumbered`` counts batches whose producer's numbers another batch of the partition has.
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
    """The router's books for records of one stretch of time."""

    window: str
    ingested: int
    routed: int
    dead_lettered: int
    pending: int  # the router has not passed them yet
    expired: int  # passed, and their copies may have been reclaimed since
    missing: int  # passed, and found nowhere
    duplicated: int  # found more than once
    strangers: int  # found, but not in the ingress topic

    @property
    def is_balanced(self) -> bool:
        """Ingested = routed + dead-lettered, but for what is pending or expired."""
        return not (self.missing or self.duplicated or self.strangers)


def is_whole(partitions: Iterable[PartitionAudit], books: Iterable[AuditWindow]) -> bool:
    """Whether an audit found nothing wrong."""
    return all(each.is_sound for each in partitions) and all(each.is_balanced for each in books)
