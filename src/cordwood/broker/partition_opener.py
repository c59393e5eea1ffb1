"""Opens partitions off the event loop: on request at once, the rest gradually in the background.

After a start most partitions are unopened (``log.lifecycle.unopened``). A background task opens
them one after the other, slowly enough that clients do not notice, so that damage is found and
reported soon and not by the first reader. A request for an unopened partition does not wait for
this task.
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
BATCH: Final = 16  # partitions opened between two pauses of the background task
PAUSE: Final = 1.0  # length of a pause, as a multiple of the time the batch before it took

logger = logging.getLogger("cordwood.broker")


class PartitionOpener:
    """Opens partitions on its own threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="cordwood-open")
        self._under_way: dict[Partition, asyncio.Future[None]] = {}
        self.on_batch: Callable[[], None] = lambda: None  # after each batch, on the event loop

    async def open(self, partition: Partition) -> None:
        """Return once the partition's files are open; raises ``PartitionOffline``."""
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
            done.exception()  # retrieve it, as the waiting request may be gone

    async def open_all(self, partitions: Iterable[Partition]) -> None:
        """Return once these partitions are open or known to be offline."""
        unopened = [partition for partition in partitions if not partition.is_open]
        if unopened:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _load_all, unopened)

    async def run(self) -> None:
        """Open every unopened partition, with pauses, until none is left or cancelled."""
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
        """Finish the partitions being opened and start no others."""
        self._threads.shutdown(cancel_futures=True)


def _load_all(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        try:
            load_all([partition])
        except Exception:  # a bug met in one partition must not stop the others
            logger.exception("partition.open_failed partition=%s", partition.tp)
