"""Tracks what is written but not synced, for ``flush.messages`` and ``flush.ms``.

Only partitions whose appends are acknowledged without a sync and whose topic has one of the two
settings are tracked. Decides; never syncs.
"""

from __future__ import annotations

from cordwood.config import KEEP_ALL, TopicConfig
from cordwood.log.write.partition import Partition


class UnsyncedRecords:
    """The unsynced records of partitions: how many, and since when. Used by one writer at a time.

    Times are milliseconds of any steady clock.
    """

    def __init__(self) -> None:
        self._counts: dict[Partition, int] = {}
        self._since_ms: dict[Partition, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no partition is tracked. Safe on any thread."""
        return not self._counts

    def add(self, partition: Partition, records: int, now_ms: int) -> bool:
        """Count records that were written without a sync; returns whether a sync is due now."""
        config = partition.config
        self._counts[partition] = self._counts.get(partition, 0) + records
        since_ms = self._since_ms.setdefault(partition, now_ms)
        is_many = self._counts[partition] >= config.flush_messages
        return is_many or now_ms - since_ms >= config.flush_ms

    def forget(self, partition: Partition) -> None:
        """Everything written to the partition is synced, or the partition is offline."""
        self._counts.pop(partition, None)
        self._since_ms.pop(partition, None)

    def overdue(self, now_ms: int) -> list[Partition]:
        """The partitions with a record that has not been synced for ``flush.ms``."""
        for partition in [each for each in self._counts if each.offline_reason]:
            self.forget(partition)  # deleted or broken: nothing of it will be synced
        return [
            partition
            for partition, since_ms in self._since_ms.items()
            if now_ms - since_ms >= partition.config.flush_ms
        ]


def is_tracked(config: TopicConfig) -> bool:
    """Whether a topic has a setting that demands a sync now and then."""
    return config.flush_messages != KEEP_ALL or config.flush_ms != KEEP_ALL
