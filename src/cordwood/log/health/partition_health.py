"""Whether a partition takes writes: online until something leaves its files in doubt.

Offline is for good: opening the partition again looks at what is really there. What goes wrong is
reported to the registry, where everybody else asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cordwood.errors import CordwoodError, PartitionOffline
from cordwood.log.health.registry import Condition, DamagedRange, HealthRegistry
from cordwood.model import TopicPartition


class UnknownFileState(Exception):  # caught within the log: the partition goes offline
    """What the file holds past its published part is not known any more."""


class PartitionHealth:
    """One partition's; the writer thread's."""

    def __init__(self, tp: TopicPartition, registry: HealthRegistry) -> None:
        self.reason = ""  # why it is offline, once it is
        self._tp = tp
        self._registry = registry

    def go_offline(self, reason: str) -> None:
        """Take no more writes, and report it; the first reason stays."""
        if not self.reason:
            self.reason = reason
            self._registry.report(self._tp, Condition.READ_ONLY, reason)

    def end(self, reason: str) -> None:
        """Take no more writes because the partition was closed: nothing is wrong with it."""
        self.reason = self.reason or reason

    def damaged(self, found: DamagedRange) -> None:
        """A read met damage; any thread."""
        self._registry.report_damage(self._tp, found)

    def read_failed(self, reason: str) -> None:
        """The device refused a read; any thread."""
        self._registry.report(self._tp, Condition.READ_FAILED, reason)

    def end_damage(self, below: int) -> None:
        """Nobody can ask for offsets below this any more."""
        self._registry.end_damage(self._tp, below)

    def replaced(self, segments: Iterable[int]) -> None:
        """Other files took the place of these segments, given by their base offsets."""
        for base_offset in segments:
            self._registry.set_damage(self._tp, base_offset, ())

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
        except UnknownFileState as error:
            self.go_offline(str(error))
            self.check()
