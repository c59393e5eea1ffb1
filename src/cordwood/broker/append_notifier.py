"""Wakes those who wait for records: a publish on a partition ends every wait on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cordwood.log.write.partition import Partition
from cordwood.model import TopicPartition


class AppendNotifier:
    """Who waits for which partition. Lives on the event loop."""

    def __init__(self) -> None:
        self._waits: dict[TopicPartition, set[asyncio.Future[bool]]] = {}
        self.is_draining = False  # the broker stops: answer with what there is

    def wake(self, partitions: Iterable[Partition]) -> None:
        """These partitions have new records."""
        for partition in partitions:
            for wait in self._waits.pop(partition.tp, ()):
                if not wait.done():
                    wait.set_result(True)

    def expect(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[bool]:
        """A future that ends at the next publish on any of these.

        Take it before looking at the log, so that nothing published in between is missed, and
        give it back to ``forget`` when done.
        """
        wait: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for tp in partitions:
            self._waits.setdefault(tp, set()).add(wait)
        return wait

    def forget(self, wait: asyncio.Future[bool], partitions: Iterable[TopicPartition]) -> None:
        """Nobody waits on this future any more."""
        for tp in partitions:
            waits = self._waits.get(tp)
            if waits is not None:
                waits.discard(wait)
                if not waits:
                    del self._waits[tp]

    async def wait(self, wait: asyncio.Future[bool], seconds: float) -> bool:
        """Until the future ends or the time is over; whether there is something new."""
        timer = asyncio.get_running_loop().call_later(max(0.0, seconds), _end, wait)
        try:
            return await wait
        finally:
            timer.cancel()

    def drain(self) -> None:
        """Let everyone go who waits now, and tell those who would wait again not to."""
        self.is_draining = True
        for waits in self._waits.values():
            for wait in waits:
                _end(wait)
        self._waits.clear()


def _end(wait: asyncio.Future[bool]) -> None:
    if not wait.done():
        wait.set_result(False)
