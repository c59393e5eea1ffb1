"""A partition whose files are not open yet; its first use opens them.

At start-up the broker knows its partitions from the metadata alone: names, settings and leader
epochs. Recovery of their files (truncating a torn tail, finishing a swap, finding damage) happens
at the first read, write or query, before that is answered. So start-up costs the same with ten
thousand partitions as with ten, and nothing is served or appended before recovery.

The first thread that needs the partition opens it; others wait. Recovery reads files, so partitions
needed by the event loop are opened on other threads beforehand (``broker.partition_opener``). Once
open it is a plain ``Partition`` in every respect: the object's class itself changes, so an open
partition pays nothing for this.
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
_OWN: Final = frozenset({"config"})  # may change while the files are being opened


class UnopenedPartition(Partition):
    """Answers what it can without files; anything else opens them."""

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
        """``recover`` opens the files, once; ``give_up`` gets its error."""
        self.tp = tp
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self._recover = recover
        self._give_up = give_up
        self._opening = threading.Lock()
        self._gone = ""  # why it can no longer be opened

    def load(self) -> None:
        """Open the files unless they are open; raises ``PartitionOffline``."""
        with self._opening:
            if self.is_open:
                return
            if self._gone:
                raise PartitionOffline(self._gone)
            opened = self._open()
            for name, value in vars(opened).items():
                if name not in _OWN:
                    setattr(self, name, value)
            self.__class__ = Partition  # type: ignore[assignment]  # open from here on

    def _open(self) -> Partition:
        try:
            return self._recover(self.config)
        except (CordwoodError, OSError) as error:
            if isinstance(error, OSError):
                error = as_cordwood(error, "open", self.directory)
            if isinstance(error, TooManyOpenFiles):  # the next use tries again
                raise error from None
            offline = self._give_up(str(error))
            self._gone = str(offline)
            raise offline from error

    def __getattr__(self, name: str) -> Any:
        """Open the partition for an attribute that only an open one has, then look it up again."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.load()
        return getattr(self, name)

    # --- without files ----------------------------------------------------------------------

    @property
    def offline_reason(self) -> str:
        """Empty while unopened: no problem is known yet."""
        return "" if not self.is_open else super().offline_reason

    def takes_at_once(self, _: Sequence[PendingBatches]) -> bool:
        """False: appending first opens the files, which the writer thread does."""
        return False

    def is_resident(self, _offset: int, _max_bytes: int) -> bool:
        """False: reading first opens the files."""
        return False

    def purge_deleted(self, _now_ms: int) -> int:
        """Do nothing: no file was deleted since the start, and opening removes older ones."""
        return 0

    def append_all(self, appends: Sequence[PendingBatches]) -> list[Outcome]:
        """Open the files and append; every append fails if they cannot be opened."""
        try:
            self.load()
        except CordwoodError as error:
            return [error for _ in appends]
        return Partition.append_all(self, appends)

    def close(self) -> None:
        """Refuse to open from now on; there is nothing to write."""
        if not self._stop("it was closed"):
            Partition.close(self)

    def abandon(self, reason: str) -> None:
        """Refuse to open from now on: the files are about to be deleted."""
        if not self._stop(reason):
            Partition.abandon(self, reason)

    def _stop(self, reason: str) -> bool:
        """Refuse to open from now on; False if the partition is open already."""
        with self._opening:
            if not self.is_open:
                self._gone = f"{self.tp} is no longer served: {reason}"
            return not self.is_open


def load_all(partitions: Iterable[Partition]) -> None:
    """Open these partitions; those that fail have been reported and do not stop the others."""
    for partition in partitions:
        try:
            partition.load()
        except CordwoodError as error:
            logger.debug("partition.open_failed partition=%s error=%s", partition.tp, error)
