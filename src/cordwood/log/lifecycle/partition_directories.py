"""Opens the directory of a partition: recovers its files and checks them against the metadata."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from cordwood.clock import Clock
from cordwood.config import TopicConfig
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from cordwood.log.health.registry import HealthRegistry
from cordwood.log.lifecycle.recovery_points import RecoveryPoints
from cordwood.log.lifecycle.segment_index_writer import SegmentIndexWriter
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import Topic
from cordwood.model import TopicPartition


class PartitionDirectories:
    """The partition directories of one data directory."""

    def __init__(
        self,
        data: Path,
        index: SegmentIndexWriter,
        *,
        health: HealthRegistry,
        clock: Clock,
        files: Files,
        file_cache: FileCache,
    ) -> None:
        """All partitions share ``file_cache`` and report to ``health``."""
        self._data = data
        self._cluster = index.cluster
        self._index = index
        self._health = health
        self._clock = clock
        self._files = files
        self._file_cache = file_cache
        self.recovery_points = RecoveryPoints(index.cluster)

    def make(self, topics: Iterable[Topic]) -> None:
        """Make all missing directories and sync them, or raise."""
        for path in self.missing(topics):
            self._files.mkdir(path)
        self._files.sync_dir(self._data)

    def missing(self, topics: Iterable[Topic]) -> Iterator[Path]:
        """Missing directories of partitions that were never written; others are lost, not new."""
        for topic in topics:
            for tp in topic.partition_list():
                path = self._data / str(tp)
                if self.recovery_points.is_new(tp) and not path.is_dir():
                    yield path

    def recover(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        """Open the files, finish what a crash interrupted, and compare them with the metadata."""
        self.recovery_points.check_directory(tp, self._data / str(tp))
        partition = self.open(tp, topic_id, config)
        try:
            self._index.settle_swap(partition)
            self._index.reconcile(partition)
            self.recovery_points.check(partition)
        except BaseException:
            partition.close()
            raise
        partition.recovery.report(tp)
        return partition

    def open(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        """Open the files without comparing them with the metadata."""
        return Partition.open(
            self._data / str(tp), tp, config, files=self._files, clock=self._clock,
            leader_epoch=self._cluster.leader_epoch(tp),
            log_start_offset=self._cluster.log_start(tp),
            topic_id=uuid.UUID(topic_id),
            descriptors=self._file_cache,
            registry=self._health,
        )  # fmt: skip
