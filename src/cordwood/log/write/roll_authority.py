"""Who permits a roll. A partition asks before it seals its active segment.

In a cluster a roll is a compare-and-swap in the shared metadata: it can take time, and it can be
refused because another node leads the partition now. A single node owns its segments and grants
every roll at once. Either way, from the request on nothing is assigned an offset in the segment.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple, Protocol

from cordwood.decide.roll import Active, RollReason
from cordwood.model import TopicPartition


class RollRequest(NamedTuple):
    """The segment to seal: its offsets are final."""

    tp: TopicPartition
    base_offset: int
    end_offset: int
    reason: RollReason


class PendingRoll(NamedTuple):
    """A requested roll that is not carried out yet."""

    request: RollRequest
    granted: Future[None]


class RollAwaited(Exception):  # no error: caught within the log, where the append waits
    """An append needs a roll that is not granted yet."""


class RollAuthority(Protocol):
    """Grants rolls, in the order in which they are requested for a partition."""

    def request_roll(self, request: RollRequest) -> Future[None]:
        """Ask once per segment; the future completes when it is granted, or with the refusal.

        A refusal is a ``CordwoodError``; the partition may ask again.
        """
        ...


class LocalRollAuthority:
    """Grants every roll at once."""

    def request_roll(self, _: RollRequest) -> Future[None]:
        """Return a completed future."""
        granted: Future[None] = Future()
        granted.set_result(None)
        return granted


class PartitionRolls:
    """The rolls of one partition: at most one is requested at a time."""

    def __init__(self, tp: TopicPartition, authority: RollAuthority) -> None:
        self.pending: PendingRoll | None = None  # requested, and not carried out yet
        self._tp = tp
        self._authority = authority

    def ask(self, active: Active, reason: RollReason) -> RollReason | None:
        """Ask to seal the active segment, once; returns the first reason when it is granted.

        Returns None while the roll is pending, and raises its refusal, after which it is over.
        """
        if self.pending is None:
            request = RollRequest(self._tp, active.base_offset, active.end_offset, reason)
            self.pending = PendingRoll(request, self._authority.request_roll(request))
        request, granted = self.pending
        if not granted.done():
            return None
        if granted.exception() is not None:
            self.pending = None
        granted.result()
        return request.reason

    def finish(self) -> None:
        """Note that the roll was carried out."""
        self.pending = None
