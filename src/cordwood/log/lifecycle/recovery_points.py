"""How far each partition is known to be on the device, remembered outside its directory.

A directory that lost its ``.log`` looks like a new one, and a file that was cut at the end of a
batch looks whole. So the catalog remembers a *recovery point* per partition, as Kafka's
``recovery-point-offset-checkpoint`` does: every offset below it was synced once. It is written with
the first append after each start and after each roll, before that append is acknowledged, and at a
clean stop; never per append. A log that ends below its recovery point, begins above its log start,
or has no file left where one must be, lost records: the partition stays offline until the files are
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
from cordwood.metadata.catalog import Catalog
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.log")


class RecoveryPoints:
    """The catalog's recovery points: written down, and compared with what is there."""

    def __init__(self, catalog: Catalog) -> None:
        """Over the catalog of one data directory."""
        self._catalog = catalog

    def is_new(self, tp: TopicPartition) -> bool:
        """Whether its directory may be missing: it is in its first term and was never written."""
        return self._catalog.leader_epoch(tp) == 0 and self._catalog.recovery_point(tp) == 0

    def note(self, partitions: Iterable[Partition]) -> None:
        """Remember how far these are; all they hold is synced. One transaction for all."""
        ends = {partition: partition.next_offset for partition in partitions}
        behind = {
            partition.tp: end
            for partition, end in ends.items()
            if end > self._catalog.recovery_point(partition.tp)
        }
        try:
            self._catalog.put_recovery_points(behind)
        except UnavailableError as error:  # tried again with the next append
            logger.warning("recovery_point.not_written partitions=%d error=%s", len(behind), error)
            return
        for partition in ends:
            partition.is_end_noted = True

    def check_directory(self, tp: TopicPartition, path: Path) -> None:
        """Before it is opened, as that would begin a new log: raises ``CorruptionError``."""
        end = self._catalog.recovery_point(tp)
        if not path.is_dir():
            raise CorruptionError(
                f"its directory {path} is gone, with its records; {remedy(str(tp))}"
            )
        if end > 0 and not any(each.suffix == FileKind.LOG.value for each in path.iterdir()):
            raise CorruptionError(
                f"{path} has no {FileKind.LOG.value} file, and records up to offset {end - 1} were "
                f"written: they are gone; {remedy(str(tp))}"
            )

    def check(self, partition: Partition) -> None:
        """Raise ``CorruptionError`` where the log is shorter than it is known to have been."""
        tp, first = partition.tp, partition.segments()[0].base_offset
        end, log_start = self._catalog.recovery_point(tp), self._catalog.log_start(tp)
        if partition.next_offset < end:
            raise CorruptionError(
                f"{partition.directory} ends at offset {partition.next_offset}, and records up to "
                f"offset {end - 1} were written: they are gone; {remedy(str(tp))}"
            )
        if first > log_start:
            raise CorruptionError(
                f"{partition.directory} begins at offset {first}, and the log starts at "
                f"{log_start}: the records between are gone; {remedy(str(tp))}"
            )
        partition.is_end_noted = False
