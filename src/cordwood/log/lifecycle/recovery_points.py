"""Recovery points: how far each partition is known to be synced, stored outside its directory.

A directory that lost its ``.log`` looks like a new one, and a file truncated at the end of a batch
looks whole. So the metadata stores a *recovery point* per partition, like Kafka's
``recovery-point-offset-checkpoint``: every offset below it was synced once. It is written with the
first append after each start and after each roll, before that append is acknowledged, and at a
clean stop; never per append. A log that ends below its recovery point, begins above its log start,
or has no file where one must be has lost records: the partition stays offline until the files are
restored or the loss is accepted (``accept_loss``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from cordwood.errors import CorruptionError, UnavailableError
from cordwood.log.format.layout import FileKind
from cordwood.log.recovery.missing import remedy
from cordwood.log.write.partition import Partition
from cordwood.metadata.cluster_catalog import ClusterCatalog
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.log")


class RecoveryPoints:
    """Writes the recovery points and compares them with the files."""

    def __init__(self, cluster: ClusterCatalog) -> None:
        """Use the cluster facts that name this data directory's partitions."""
        self._cluster = cluster

    def is_new(self, tp: TopicPartition) -> bool:
        """Whether its directory may be missing: it is in its first leader epoch and unwritten."""
        return self._cluster.leader_epoch(tp) == 0 and self._cluster.recovery_point(tp) == 0

    def record(self, partitions: Iterable[Partition]) -> None:
        """Store the ends of these partitions, which are fully synced, in one transaction."""
        ends = {partition: partition.log_end_offset for partition in partitions}
        behind = {
            partition.tp: end
            for partition, end in ends.items()
            if end > self._cluster.recovery_point(partition.tp)
        }
        try:
            self._cluster.put_recovery_points(behind)
        except UnavailableError as error:  # retried with the next append
            logger.warning("recovery_point.not_written partitions=%d error=%s", len(behind), error)
            return
        for partition in ends:
            partition.is_end_recorded = True

    def check_directory(self, tp: TopicPartition, path: Path) -> None:
        """Raise ``CorruptionError`` if files are missing; opening would begin a new, empty log."""
        end = self._cluster.recovery_point(tp)
        if not path.is_dir():
            raise CorruptionError(
                f"its directory {path} is missing, with its records; {remedy(str(tp))}"
            )
        if end > 0 and not any(each.suffix == FileKind.LOG.value for each in path.iterdir()):
            raise CorruptionError(
                f"{path} has no {FileKind.LOG.value} file, but records up to offset {end - 1} "
                f"were written: they are missing; {remedy(str(tp))}"
            )

    def check(self, partition: Partition) -> None:
        """Raise ``CorruptionError`` if the log is shorter than it is known to have been."""
        tp, first = partition.tp, partition.segments()[0].base_offset
        end, log_start = self._cluster.recovery_point(tp), self._cluster.log_start(tp)
        if partition.log_end_offset < end:
            raise CorruptionError(
                f"{partition.directory} ends at offset {partition.log_end_offset}, but records up "
                f"to offset {end - 1} were written: the rest is missing; {remedy(str(tp))}"
            )
        if first > log_start:
            raise CorruptionError(
                f"{partition.directory} starts at offset {first}, but the log starts at "
                f"{log_start}: the records between are missing; {remedy(str(tp))}"
            )
        partition.is_end_recorded = False
