"""Wakes readers that wait for records: a publish on a partition ends every wait on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cordwood.log.write.partition import Partition
from cordwood.model import TopicPartition


class AppendNotifier:
    """Tracks which futures wait for which partitions. Used only on the event loop."""

    def __init__(self) -> None:
        self._waits: dict[TopicPartition, set[asyncio.Future[bool]]] = {}
        self.is_draining = False  # the broker is stopping: answer with what there is

    def wake(self, partitions: Iterable[Partition]) -> None:
        """Wake every wait on these partitions; they have new records."""
        for partition in partitions:
            for wait in self._waits.pop(partition.tp, ()):
                if not wait.done():
                    wait.set_result(True)

    def expect(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[bool]:
        """Return a future that completes at the next publish on any of these partitions.

        Take it before reading the log, so that nothing published in between is missed, and pass it
        to ``forget`` when done.
        """
        wait: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for tp in partitions:
            self._waits.setdefault(tp, set()).add(wait)
        return wait

    def forget(self, wait: asyncio.Future[bool], partitions: Iterable[TopicPartition]) -> None:
        """Stop tracking this future."""
        for tp in partitions:
            waits = self._waits.get(tp)
            if waits is not None:
                waits.discard(wait)
                if not waits:
                    del self._waits[tp]

    async def wait(self, wait: asyncio.Future[bool], seconds: float) -> bool:
        """Wait for the future or the timeout; returns whether there are new records."""
        timer = asyncio.get_running_loop().call_later(max(0.0, seconds), _end, wait)
        try:
            return await wait
        finally:
            timer.cancel()

    def drain(self) -> None:
        """Wake everyone who waits now; ``is_draining`` tells callers not to wait again."""
        self.is_draining = True
        for waits in self._waits.values():
            for wait in waits:
                _end(wait)
        self._waits.clear()


def _end(wait: asyncio.Future[bool]) -> None:
    if not wait.done():
        wait.set_result(False)
