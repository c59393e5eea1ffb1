"""The desk for the archive: which bundles hold what, as jobs that read them back have reported.

The broker writes no bundle and reads none. It remembers those it is told of, in order, and lets
RECLAIM go as far as they reach where a topic asks for that (``archive.required``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from typing import Any

from cordwood.errors import RequestError, StaleManifest
from cordwood.log.store import Store
from cordwood.meta.bundles import BundleEntry
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.broker")


class ArchiveDesk:
    """Record bundles and list them."""

    def __init__(self, store: Store, meta_thread: Executor) -> None:
        self._store = store
        self._catalog = store.catalog
        self._meta_thread = meta_thread

    def describe(self, topic: str) -> dict[str, Any]:
        """What of a topic is archived, and the cursors an archive must keep with it."""
        record = self._catalog.topic(topic)
        cursors = list(self._catalog.cursors().items())
        return {
            "topic": topic,
            "id": record.id,
            "partitions": [
                {
                    "partition": tp.partition,
                    "archived_end": self._catalog.bundles(tp).end,
                    "bundles": [asdict(entry) for entry in self._catalog.bundles(tp).entries()],
                    "cursors": {
                        where.reader: at.offset for where, at in cursors if where[1:] == tuple(tp)
                    },
                }
                for tp in record.partition_list()
            ],
        }

    async def record(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> int:
        """Bundles that were read back, in order; how far the partition is archived now."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._meta_thread, self._record, tp, bundles)

    def _record(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> int:
        """On the metadata thread; told again what it knows, it changes nothing."""
        if tp not in self._catalog.topic(tp.topic).partition_list():
            raise RequestError(f"topic {tp.topic} has no partition {tp.partition}")
        index = self._catalog.bundles(tp)
        partition = self._store.topic(tp.topic).partition(tp.partition)
        end, new = index.end, []
        for bundle in bundles:
            if index.find(bundle.start_offset) == bundle:
                continue
            if not max(end, partition.log_start_offset) >= bundle.start_offset >= end:
                raise StaleManifest(
                    f"{tp} is archived up to {end}, and bundle {bundle.name} begins at "
                    f"{bundle.start_offset}: another run was quicker; run `cordwood archive` again"
                )
            if not bundle.start_offset < bundle.end_offset <= partition.high_watermark:
                raise RequestError(f"bundle {bundle.name} does not fit {tp}")
            end = bundle.end_offset
            new.append(bundle)
        self._catalog.put_bundles(tp, new)
        logger.info("archive.recorded partition=%s bundles=%d end=%d", tp, len(new), end)
        return end
