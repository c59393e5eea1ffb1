"""A partition whose files nobody has needed yet; the first who does opens them.

At a start the broker knows its partitions from the catalog alone: their names, settings and terms.
Recovery of their files (a torn tail cut off, a swap finished, damage found) waits until somebody
reads, writes or asks, and happens before that is answered. So a start costs the same with ten
thousand partitions as with ten, and nothing is served or appended that was not recovered.

It opens on whichever thread comes first; others wait for it. What the event loop needs is opened
elsewhere beforehand (``broker.partition_opener``), because recovery reads files. Once open it is a
plain ``Partition`` in every respect: the class itself changes, so an open one pays nothing for
this.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, PartitionOffline, TooManyOpenFiles
from cordwood.log.files.disk import as_cordwood
from cordwood.log.write.partition import Outcome, Partition
from cordwood.log.write.tail import PendingBatches
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.log")

Recover = Callable[[TopicConfig], Partition]
GiveUp = Callable[[str], PartitionOffline]
_OWN: Final = frozenset({"config"})  # may be altered while the files are being opened


class UnopenedPartition(Partition):
    """Answers without files what can be answered so; for all else it opens them."""

    is_open: ClassVar[bool] = False

    def __init__(
        self,
        directory: Path,
        tp: TopicPartition,
        config: TopicConfig,
        leader_epoch: int,
        *,
        recover: Recover,
        give_up: GiveUp,
    ) -> None:
        """``recover`` opens the files, once; ``give_up`` hears why that cannot be."""
        self.tp = tp
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self._recover = recover
        self._give_up = give_up
        self._opening = threading.Lock()
        self._gone = ""  # why it will not open any more

    def load(self) -> None:
        """Open the files unless somebody has; raises ``PartitionOffline``."""
        with self._opening:
            if self.is_open:
                return
            if self._gone:
                raise PartitionOffline(self._gone)
            opened = self._open()
            for name, value in vars(opened).items():
                if name not in _OWN:
                    setattr(self, name, value)
            self.__class__ = Partition  # type: ignore[assignment]  # from here on it is one

    def _open(self) -> Partition:
        try:
            return self._recover(self.config)
        except (CordwoodError, OSError) as error:
            if isinstance(error, OSError):
                error = as_cordwood(error, "open", self.directory)
            if isinstance(error, TooManyOpenFiles):  # the next who needs it may have more luck
                raise error from None
            offline = self._give_up(str(error))
            self._gone = str(offline)
            raise offline from error

    def __getattr__(self, name: str) -> Any:
        """What an open partition has and this one has not: open, then look again."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.load()
        return getattr(self, name)

    # --- without files ----------------------------------------------------------------------

    @property
    def offline_reason(self) -> str:
        """Nothing is known against it."""
        return "" if not self.is_open else super().offline_reason

    def takes_at_once(self, _: Sequence[PendingBatches]) -> bool:
        """To append is to open the files first: the writer thread does that."""
        return False

    def is_resident(self, _offset: int, _max_bytes: int) -> bool:
        """To read is to open the files first."""
        return False

    def purge_deleted(self, _now_ms: int) -> int:
        """Nothing was deleted since the start; opening removes what was before."""
        return 0

    def append_all(self, appends: Sequence[PendingBatches]) -> list[Outcome]:
        """As an open partition; all fail if the files cannot be opened."""
        try:
            self.load()
        except CordwoodError as error:
            return [error for _ in appends]
        return Partition.append_all(self, appends)

    def close(self) -> None:
        """There is nothing to write."""
        if not self._stop("it was closed"):
            Partition.close(self)

    def abandon(self, reason: str) -> None:
        """Never open: the files are on their way out."""
        if not self._stop(reason):
            Partition.abandon(self, reason)

    def _stop(self, reason: str) -> bool:
        """Whether that was all there is to do: nobody has opened it, and nobody will."""
        with self._opening:
            if not self.is_open:
                self._gone = f"{self.tp} is not served any more: {reason}"
            return not self.is_open


def load_all(partitions: Iterable[Partition]) -> None:
    """Open these; one that cannot be opened holds up no other, as it has been reported."""
    for partition in partitions:
        try:
            partition.load()
        except CordwoodError as error:
            logger.debug("partition.unopened partition=%s error=%s", partition.tp, error)
