"""Lag of consumer groups and of all other cursors: one row per cursor.

Only partitions with a cursor are inspected. These functions change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.log.lifecycle.store import Store
from cordwood.metadata.keys import ReaderPartition
from cordwood.model import TopicPartition
from cordwood.protocol.api.readers import GroupRow


class TopicLag(NamedTuple):
    """The lag of a group over all partitions of a topic."""

    group: str
    topic: str
    records: int
    records_max: int  # lag of the partition furthest behind


def group_lags(store: Store, group: str | None = None) -> Iterator[GroupRow]:
    """Yield the lag of every cursor, or of one group's, without those of deleted topics."""
    for where, cursor in list(store.metadata.readers.cursors().items()):
        if (group is None or where.reader == group) and where.topic in store.topics:
            yield _lag(store, where, cursor.offset)


def _lag(store: Store, where: ReaderPartition, offset: int) -> GroupRow:
    try:
        partition = store.partition(TopicPartition(where.topic, where.partition))
    except CordwoodError:  # offline; the health registry has the reason
        return GroupRow(*where, offset, None, None)
    if not partition.is_open:  # its end is unknown until it is open
        return GroupRow(*where, offset, None, None)
    end = partition.high_watermark
    return GroupRow(*where, offset, end, max(0, end - max(offset, partition.log_start_offset)))


def by_topic(lags: Iterable[GroupRow]) -> list[TopicLag]:
    """Return one row per group and topic, over the partitions that are open."""
    lags_by_topic: dict[tuple[str, str], list[int]] = {}
    for lag in lags:
        if lag.lag is not None:
            lags_by_topic.setdefault((lag.group, lag.topic), []).append(lag.lag)
    return [TopicLag(*where, sum(each), max(each)) for where, each in sorted(lags_by_topic.items())]


def furthest_behind(lags: Sequence[TopicLag], most: int) -> tuple[Sequence[TopicLag], int]:
    """Return the ``most`` rows that are furthest behind, and how many were left out."""
    if len(lags) <= most:
        return lags, 0
    kept = sorted(lags, key=lambda lag: -lag.records)[:most]
    return sorted(kept), len(lags) - most
