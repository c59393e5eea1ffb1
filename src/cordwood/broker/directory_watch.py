"""Takes the broker offline when its data directory is moved, replaced or removed.

Open files keep working after their directory is moved or removed, so the broker would acknowledge
appends that no later start can find. The watch checks the directory once a second; every operation
that changes a file name checks it too (``Files.check_place``). When the directory is lost, every
partition goes offline until the next start: the broker never goes back online by itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cordwood.broker.topics import TopicService
from cordwood.errors import PartitionOffline
from cordwood.log.lifecycle.store import Store

INTERVAL_S: Final = 1.0

logger = logging.getLogger("cordwood.broker")


class DirectoryWatch:
    """Watches the data directory of one store."""

    def __init__(self, store: Store, topics: TopicService) -> None:
        self.problem = ""  # why the broker no longer writes; empty while all is well
        self._store = store
        self._topics = topics

    async def run(self) -> None:
        """Check every ``INTERVAL_S`` until cancelled, or until the directory is lost."""
        while not self.problem:
            await asyncio.sleep(INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        """Check once, on a thread: a network file system may be slow."""
        loop = asyncio.get_running_loop()
        problem = await loop.run_in_executor(None, self._store.directory.lock.problem)
        if problem and not self.problem:
            self.problem = f"{problem}; stop the broker, put the directory back and start again"
            logger.critical("directory.lost %s", self.problem)
            await self._topics.on_writer(self._take_offline)

    def _take_offline(self) -> None:
        for topic in list(self._store.topics.values()):
            for partition in topic.held():
                error = PartitionOffline(f"partition {partition.tp} is offline: {self.problem}")
                self._store.take_offline(partition, error)
