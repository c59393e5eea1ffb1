"""Wakes those who wait for records: a publish on a partition ends every wait on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cordwood.log.partition import Partition
from cordwood.model import TopicPartition


class Feed:
    """Who waits for which partition. Lives on the event loop."""

    def __init__(self) -> None:
        self._waits: dict[TopicPartition, set[asyncio.Future[None]]] = {}

    def wake(self, partitions: Iterable[Partition]) -> None:
        """These partitions have new records."""
        for partition in partitions:
            for wait in self._waits.pop(partition.tp, ()):
                if not wait.done():
                    wait.set_result(None)

    def expect(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[None]:
        """A future that ends at the next publish on any of these.

        Take it before looking at the log, so that nothing published in between is missed, and
        give it back to ``forget`` when done.
        """
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for tp in partitions:
            self._waits.setdefault(tp, set()).add(wait)
        return wait

    def forget(self, wait: asyncio.Future[None], partitions: Iterable[TopicPartition]) -> None:
        """Nobody waits on this future any more."""
        for tp in partitions:
            waits = self._waits.get(tp)
            if waits is not None:
                waits.discard(wait)
                if not waits:
                    del self._waits[tp]

    async def wait(self, wait: asyncio.Future[None], seconds: float) -> bool:
        """Until the future ends or the time is over; whether it ended."""
        done, _ = await asyncio.wait([wait], timeout=max(0.0, seconds))
        return bool(done)
