"""Apply verified swaps: replace sealed segments by the rewritten ones of a compaction pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from cordwood.broker.topics import TopicService
from cordwood.log.lifecycle.store import Store
from cordwood.log.swap.ladder import Verified

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")


class SwapService:
    """Verifies on a background thread, where it delays no delivery, and swaps on the writer's."""

    def __init__(self, store: Store, topics: TopicService, verifying: Executor) -> None:
        self._store = store
        self._topics = topics
        self._verifying = verifying

    async def in_verifying(self, act: Callable[[], T]) -> T:
        """Run ``act``, which may read for minutes, on the verification executor."""
        return await asyncio.get_running_loop().run_in_executor(self._verifying, act)

    async def swap(self, verified: Verified) -> None:
        """Apply a verified swap on the writer thread, between two commits."""
        await self._topics.on_writer(lambda: self._store.segments.apply_job(verified))
        manifest = verified.manifest
        logger.info("swap.applied job=%s partition=%s", manifest.job, manifest.topic_partition)
