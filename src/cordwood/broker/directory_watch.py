"""Stops a broker whose data directory was taken away from under it.

Files that are open go on working after their directory was moved or removed, so appends would be
acknowledged into a place no start will ever look at. The watch looks once a second; names are
checked with every change besides (``Files.check_place``). Once the directory is not ours any more,
every partition is offline until a start: the broker never goes back online by itself.
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
    """Looks after one store's directory."""

    def __init__(self, store: Store, topics: TopicService) -> None:
        self.problem = ""  # why nothing is written any more
        self._store = store
        self._topics = topics

    async def run(self) -> None:
        """Look until cancelled, or until there is nothing left to look after."""
        while not self.problem:
            await asyncio.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """One look, beside the event loop: a network file system may take its time."""
        loop = asyncio.get_running_loop()
        problem = await loop.run_in_executor(None, self._store.lock.problem)
        if problem and not self.problem:
            self.problem = f"{problem}; stop the broker, put the directory back and start again"
            logger.critical("directory.lost %s", self.problem)
            await self._topics.on_writer(self._take_offline)

    def _take_offline(self) -> None:
        for topic in list(self._store.topics.values()):
            for partition in topic.held():
                error = PartitionOffline(f"partition {partition.tp} is offline: {self.problem}")
                self._store.take_offline(partition, error)
