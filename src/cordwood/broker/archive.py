"""The desk for the archive: which bundles hold what, and which of them the broker has read itself.

A job writes bundles, enters them in the manifest and tells the broker. The broker believes what it
can see: it reads the manifest and every bundle at the archive's place (``verification``) and
compares them with its own segments, beside the event loop. A bundle that contradicts what was told
is refused. One at a place that cannot be reached from here is recorded as not verified, and RECLAIM
does not count on it (``archive.required``) unless the topic believes its jobs
(``archive.verified.by=job``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.broker.verification import Unreachable, verify_bundles
from cordwood.decide.archive import Live, Span, bundle_name, shelf_name
from cordwood.errors import RequestError, StaleManifest
from cordwood.log.directory import ARCHIVE
from cordwood.log.store import Store
from cordwood.meta.bundles import BundleEntry
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.broker")


class Recorded(NamedTuple):
    """How far a partition is archived now, and why the broker could not see it if it could not."""

    archived_end: int
    verified_end: int
    unverified: str | None = None


class ArchiveDesk:
    """Verify bundles, record them and list them."""

    def __init__(self, store: Store, meta_thread: Executor) -> None:
        self._store = store
        self._catalog = store.catalog
        self._meta_thread = meta_thread
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="cordwood-archive")

    def describe(self, topic: str) -> dict[str, Any]:
        """What of a topic is archived, and the cursors an archive must keep with it."""
        record = self._catalog.topic(topic)
        cursors: dict[TopicPartition, dict[str, int]] = {}
        for where, at in list(self._catalog.cursors().items()):
            if where.topic == topic:
                cursors.setdefault(TopicPartition(*where[1:]), {})[where.reader] = at.offset
        return {
            "topic": topic,
            "id": record.id,
            "partitions": [
                {
                    "partition": tp.partition,
                    "archived_end": self._catalog.bundles(tp).end,
                    "verified_end": self._catalog.bundles(tp).verified_end,
                    "bundles": [asdict(entry) for entry in self._catalog.bundles(tp).entries()],
                    "cursors": cursors.get(tp, {}),
                }
                for tp in record.partition_list()
            ],
        }

    async def record(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> Recorded:
        """Bundles a job has entered in its manifest, in order; all of them or none."""
        loop = asyncio.get_running_loop()
        asked = await loop.run_in_executor(self._meta_thread, self._plan, tp, bundles)
        live = [
            Live(segment.base_offset, segment.end_offset, segment.records)
            for segment in self._store.topic(tp.topic).partition(tp.partition).segments()
        ]
        reason = None
        try:
            await loop.run_in_executor(self._reading, verify_bundles, tp, asked, live)
            asked = [replace(bundle, verified=True) for bundle in asked]
        except Unreachable as error:
            reason = str(error)
            logger.warning("archive.unverified partition=%s reason=%s", tp, reason)
        ends = await loop.run_in_executor(self._meta_thread, self._record, tp, asked)
        return Recorded(*ends, reason)

    def close(self) -> None:
        """End the thread that reads bundles, with the bundle it is in."""
        self._reading.shutdown(cancel_futures=True)

    # --- on the metadata thread -------------------------------------------------------------

    def _plan(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> list[BundleEntry]:
        """Those to be verified: new, or recorded without being verified; raises what cannot be."""
        topic = self._catalog.topic(tp.topic)
        if tp not in topic.partition_list():
            raise RequestError(f"topic {tp.topic} has no partition {tp.partition}")
        index = self._catalog.bundles(tp)
        partition = self._store.topic(tp.topic).partition(tp.partition)
        end, asked = index.end, []
        for bundle in bundles:
            self._check_place(bundle.place)
            span = Span(bundle.start_offset, bundle.end_offset)
            wanted = f"{shelf_name(tp.topic, topic.id)}/{bundle_name(tp.partition, span)}"
            if bundle.name != wanted:
                raise StaleManifest(
                    f"{bundle.name} is no bundle of {tp}, whose name would be {wanted}; was the "
                    "topic deleted and created again? Run `cordwood archive create` again"
                )
            known = index.find(bundle.start_offset)
            if known is not None and replace(known, verified=False) == bundle:
                asked += [] if known.verified else [bundle]
                continue
            if not max(end, partition.log_start_offset) >= bundle.start_offset >= end:
                raise StaleManifest(
                    f"{tp} is archived up to {end}, and bundle {bundle.name} begins at "
                    f"{bundle.start_offset}: another run was quicker; run `cordwood archive` again"
                )
            if not bundle.start_offset < bundle.end_offset <= partition.high_watermark:
                raise RequestError(f"bundle {bundle.name} does not fit {tp}")
            end = bundle.end_offset
            asked.append(bundle)
        return asked

    def _check_place(self, place: str) -> None:
        """Raise ``RequestError`` for a place whose files the broker itself removes or replaces."""
        name, data = place.removeprefix("file://"), self._store.data.resolve()
        path = Path(name).resolve() if name.startswith("/") else None
        if path and path.is_relative_to(data) and not path.is_relative_to(data / ARCHIVE):
            raise RequestError(
                f"{place} is the broker's own directory; archive to {data / ARCHIVE} or elsewhere"
            )

    def _record(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> tuple[int, int]:
        """Much may have happened while they were read: what is recorded is planned once more."""
        unverified = [replace(bundle, verified=False) for bundle in bundles]
        left = set(self._plan(tp, unverified))
        new = [bundle for bundle in bundles if replace(bundle, verified=False) in left]
        self._catalog.put_bundles(tp, new)
        index = self._catalog.bundles(tp)
        logger.info(
            "archive.recorded partition=%s bundles=%d end=%d verified_end=%d",
            tp, len(new), index.end, index.verified_end,
        )  # fmt: skip
        return index.end, index.verified_end
