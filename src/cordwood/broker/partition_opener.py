"""Opens partitions off the event loop: those a request waits for at once, the rest bit by bit.

After a start most partitions are unopened (``log.lifecycle.unopened``). In the background they are
opened one after the other, slowly enough that clients do not notice, so that damage is found and
reported soon and not by the first reader. A request for one of them does not wait for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cordwood.log.lifecycle.store import Store
from cordwood.log.lifecycle.unopened import load_all
from cordwood.log.write.partition import Partition

OPEN_THREADS: Final = 2
BATCH: Final = 16  # partitions opened between two pauses of the background
PAUSE: Final = 1.0  # a pause is so many times what the batch before it took

logger = logging.getLogger("cordwood.broker")


class PartitionOpener:
    """The threads that open partitions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="cordwood-open")
        self._under_way: dict[Partition, asyncio.Future[None]] = {}
        self.on_batch: Callable[[], None] = lambda: None  # after each batch, on the loop

    async def open(self, partition: Partition) -> None:
        """Return once its files are open; raises ``PartitionOffline``."""
        if partition.is_open:
            return
        opening = self._under_way.get(partition)
        if opening is None:
            loop = asyncio.get_running_loop()
            opening = loop.run_in_executor(self._threads, partition.load)
            self._under_way[partition] = opening
            opening.add_done_callback(lambda done: self._end(partition, done))
        await asyncio.shield(opening)

    def _end(self, partition: Partition, done: asyncio.Future[None]) -> None:
        del self._under_way[partition]
        if not done.cancelled():
            done.exception()  # whoever waited may have gone

    async def open_all(self, partitions: Iterable[Partition]) -> None:
        """Return once these are open or known to be offline."""
        unopened = [partition for partition in partitions if not partition.is_open]
        if unopened:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _load_all, unopened)

    async def run(self) -> None:
        """Open all there are, with pauses, until none is left or this is cancelled."""
        unopened = self._store.unopened()
        if not unopened:
            return
        for start in range(0, len(unopened), BATCH):
            started = time.monotonic()
            await self.open_all(unopened[start : start + BATCH])
            self.on_batch()
            await asyncio.sleep((time.monotonic() - started) * PAUSE)
        offline = len(self._store.offline)
        logger.info("partitions.opened count=%d offline=%d", len(unopened), offline)

    def close(self) -> None:
        """Finish what is being opened and begin nothing more."""
        self._threads.shutdown(cancel_futures=True)


def _load_all(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        try:
            load_all([partition])
        except Exception:  # our own mistake with one of them is not the others'
            logger.exception("partition.unopened partition=%s", partition.tp)
