"""Whether a partition accepts writes: online until the state of its files is in doubt.

Offline is final: only opening the partition again, which reads the real state of its files, ends
it. Problems are reported to the registry, where all others look them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cordwood.errors import CordwoodError, PartitionOffline
from cordwood.log.health.registry import Condition, DamagedRange, HealthRegistry
from cordwood.model import TopicPartition


class UnknownFileState(Exception):  # caught within the log: the partition goes offline
    """The content of the file past its published part is unknown."""


class PartitionHealth:
    """The health of one partition. Used by the writer thread, except where noted."""

    def __init__(self, tp: TopicPartition, registry: HealthRegistry) -> None:
        self.reason = ""  # why it is offline, once it is
        self._tp = tp
        self._registry = registry

    def go_offline(self, reason: str) -> None:
        """Refuse further writes and report the reason; the first reason stays."""
        if not self.reason:
            self.reason = reason
            self._registry.report(self._tp, Condition.READ_ONLY, reason)

    def end(self, reason: str) -> None:
        """Refuse further writes because the partition was closed; nothing is reported."""
        self.reason = self.reason or reason

    def damaged(self, found: DamagedRange) -> None:
        """Report damage that a read met. Safe on any thread."""
        self._registry.report_damage(self._tp, found)

    def read_failed(self, reason: str) -> None:
        """Report that a read failed. Safe on any thread."""
        self._registry.report(self._tp, Condition.READ_FAILED, reason)

    def end_damage(self, below: int) -> None:
        """Forget damage below this offset, which can no longer be read."""
        self._registry.end_damage(self._tp, below)

    def replaced(self, segments: Iterable[int]) -> None:
        """Forget the damage of segments, given by base offset, whose files were replaced."""
        for base_offset in segments:
            self._registry.set_damage(self._tp, base_offset, ())

    def check(self) -> None:
        """Raise ``PartitionOffline`` if the partition is offline."""
        if self.reason:
            raise self._offline()

    def failure(self, error: CordwoodError | UnknownFileState) -> CordwoodError:
        """The error for the caller; go offline if a file was left in an unknown state."""
        if isinstance(error, CordwoodError):
            return error
        self.go_offline(str(error))
        return self._offline()

    def _offline(self) -> PartitionOffline:
        return PartitionOffline(
            f"{self._tp} accepts no writes: {self.reason}; restart the broker to open it again"
        )

    @contextmanager
    def offline_after_errors(self, what: str) -> Iterator[None]:
        """Go offline on an error, since files and memory may disagree inside the block."""
        try:
            yield
        except CordwoodError as error:
            self.go_offline(f"{what} was interrupted ({error})")
            raise
