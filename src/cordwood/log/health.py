"""Whether a partition takes writes: online until something leaves its files in doubt.

Offline is for good: opening the partition again looks at what is really there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cordwood.errors import CordwoodError, PartitionOffline
from cordwood.log.tail import Broken
from cordwood.model import TopicPartition


class Health:
    """One partition's; the writer thread's."""

    def __init__(self, tp: TopicPartition) -> None:
        self.reason = ""  # why it is offline, once it is
        self._tp = tp

    def go_offline(self, reason: str) -> None:
        """Take no more writes; the first reason stays."""
        self.reason = self.reason or reason

    def check(self) -> None:
        """Raises ``PartitionOffline`` once it is."""
        if self.reason:
            raise PartitionOffline(
                f"{self._tp} takes no writes: {self.reason}; restart the broker to open it again"
            )

    @contextmanager
    def offline_after_errors(self, what: str) -> Iterator[None]:
        """Names and memory agree at both ends of the block, and nowhere in it."""
        try:
            yield
        except CordwoodError as error:
            self.go_offline(f"{what} was interrupted ({error})")
            raise

    def unless_broken(self, act: Callable[[], None]) -> None:
        """Act on the tail; broken, it takes the partition offline."""
        try:
            act()
        except Broken as error:
            self.go_offline(str(error))
            self.check()
