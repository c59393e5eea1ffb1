"""Commits in flight: written, but not readable yet because they are not durable yet.

The log end offset moves when a commit is written, the high watermark when it is published. Between
the two a commit waits for its condition: the local sync, on a single node. Whatever the order in
which commits become durable, those of a partition are published in the order of their offsets, so
the high watermark never passes a record that may still be lost. Pure bookkeeping: no I/O, no lock.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from cordwood.log.read.read_state import LogEnd


class PublishTarget(Protocol):
    """A partition, as far as its commits need it."""

    def publish(self, end: LogEnd, /) -> None:
        """Make everything up to ``end`` readable."""
        ...


class InFlightCommit(Protocol):
    """What was written to one partition."""

    is_durable: bool

    @property
    def partition(self) -> PublishTarget:
        """The partition it was written to."""
        ...

    @property
    def end(self) -> LogEnd:
        """The log end after its last record."""
        ...


C = TypeVar("C", bound=InFlightCommit)


class InFlightCommits(Generic[C]):
    """The commits in flight of many partitions, each partition's in the order of their offsets."""

    def __init__(self) -> None:
        self._waiting: dict[PublishTarget, list[C]] = {}

    def add(self, commit: C) -> None:
        """Add a commit that was just written, the newest of its partition."""
        self._waiting.setdefault(commit.partition, []).append(commit)

    def complete(self, commit: C) -> list[C]:
        """Mark a commit durable and publish what can be published now; returns that, in order.

        Returns nothing while an older commit of the partition is not durable, and later commits
        too if they became durable before this one.
        """
        partition = commit.partition
        waiting = self._waiting[partition]
        commit.is_durable = True
        if len(waiting) == 1:  # the usual case
            published = self._waiting.pop(partition)
        else:
            published = list(takewhile(lambda each: each.is_durable, waiting))
            self._waiting[partition] = waiting[len(published) :]
        if published:
            partition.publish(published[-1].end)
        return published

    def fail(self, partition: PublishTarget) -> list[C]:
        """Remove and return every commit of a partition; none of them will be published."""
        return self._waiting.pop(partition, [])
