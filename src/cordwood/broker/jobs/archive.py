"""Archive service: record which bundles hold which offsets, and which of them are verified.

A job writes bundles, enters them in the manifest and tells the broker. The broker does not trust
the report: it reads the manifest and every bundle in the archive, and compares every record with
its own log (``bundle_verification``), on a low-priority thread. A bundle that contradicts the log
is refused. A bundle that the broker cannot reach or prove is recorded as not verified. RECLAIM does
not rely on it (``archive.required``), unless the topic trusts its jobs
(``archive.verified.by=job``).

A bundle is proved once. It is read again just before segments are deleted because of it
(``confirm``); if it is missing or changed, it loses its verified state. The health registry names
every partition whose archive RECLAIM waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from cordwood.broker.jobs.bundle_verification import (
    Lost,
    Unreachable,
    confirm_bundles,
    verify_bundles,
)
from cordwood.broker.thread_priority import yield_processor
from cordwood.decide.archive import Span, bundle_name, topic_archive_name
from cordwood.errors import RequestError, StaleManifest
from cordwood.log.health.registry import Condition
from cordwood.log.lifecycle.archive_proof import Unproven
from cordwood.log.lifecycle.directory import ARCHIVE
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.metadata.bundle_index import BundleEntry
from cordwood.metadata.front import AsyncMetadata
from cordwood.model import TopicPartition
from cordwood.protocol.api.archive import (
    ArchivedPartition,
    ArchivedTopic,
    Bundle,
    BundlesRecorded,
    KnownBundle,
)

logger = logging.getLogger("cordwood.broker")


class ArchiveService:
    """Verifies, records and lists bundles."""

    def __init__(self, store: Store, metadata: AsyncMetadata) -> None:
        self._store = store
        self._metadata = metadata
        self._cluster = metadata.cluster
        self._unverified: dict[TopicPartition, str] = {}  # the reason, where it is known
        self._unreachable: dict[TopicPartition, str] = {}  # verified, but unreadable at the moment
        self._reading = ThreadPoolExecutor(
            1, thread_name_prefix="cordwood-archive", initializer=yield_processor
        )

    def describe(self, topic: str) -> ArchivedTopic:
        """Describe a topic's bundles, and the cursors to store with its archive."""
        record = self._cluster.topic(topic)
        cursors: dict[TopicPartition, dict[str, int]] = {}
        for where, at in list(self._metadata.readers.cursors().items()):
            if where.topic == topic:
                cursors.setdefault(TopicPartition(*where[1:]), {})[where.reader] = at.offset
        partitions = (self._described(tp, cursors.get(tp, {})) for tp in record.partition_list())
        return ArchivedTopic(topic, record.id, tuple(partitions))

    def _described(self, tp: TopicPartition, cursors: dict[str, int]) -> ArchivedPartition:
        index = self._cluster.bundles(tp)
        return ArchivedPartition(
            partition=tp.partition,
            archived_end=index.end,
            verified_end=index.verified_end,
            bundles=tuple(KnownBundle(**asdict(entry)) for entry in index.entries()),
            cursors=cursors,
        )

    async def record(self, tp: TopicPartition, bundles: Sequence[Bundle]) -> BundlesRecorded:
        """Verify and record bundles that a job entered in its manifest, in order; all or none."""
        loop = asyncio.get_running_loop()
        entries = [BundleEntry(**msgspec.structs.asdict(bundle)) for bundle in bundles]
        asked = await self._metadata.run(self._plan, tp, entries)
        partition = self._store.topic(tp.topic).partition(tp.partition)
        reason = None
        try:
            asked = await loop.run_in_executor(self._reading, verify_bundles, tp, asked, partition)
        except Unproven as error:
            reason = str(error)
            self._unverified[tp] = reason
            logger.warning("archive.unverified partition=%s reason=%s", tp, reason)
        ends = await self._metadata.run(self._record, tp, asked)
        self.note_health(partition)
        return BundlesRecorded(*ends, reason)

    # --- what RECLAIM relies on -------------------------------------------------------------

    async def confirm(self, partition: Partition, span: Span) -> int:
        """Read the bundles of these offsets again; returns the end of the part still intact."""
        tp, loop = partition.tp, asyncio.get_running_loop()
        bundles = [
            entry
            for entry in self._cluster.bundles(tp).entries()
            if entry.start_offset < span.end and span.start < entry.end_offset
        ]
        try:
            await loop.run_in_executor(self._reading, confirm_bundles, tp, bundles)
        except Lost as error:
            self._unverified[tp] = str(error)
            logger.warning(
                "archive.lost partition=%s bundle=%s reason=%s", tp, error.bundle.name, error
            )
            await self._metadata.run(self._forget_proof, tp, error.bundle)
            self.note_health(partition)
            return error.bundle.start_offset
        except Unreachable as error:
            self._unreachable[tp] = str(error)
            self.note_health(partition)
            return span.start
        self._unreachable.pop(tp, None)
        self.note_health(partition)
        return span.end

    def note_health(self, partition: Partition) -> None:
        """Report the partition if RECLAIM waits for a bundle that is recorded but not verified."""
        tp = partition.tp
        reason = self._waits_for(partition) if self._is_asked(partition) else None
        if reason is not None:
            self._store.health.report(tp, Condition.ARCHIVE_UNVERIFIED, reason)
            return
        self._unverified.pop(tp, None)
        self._unreachable.pop(tp, None)
        self._store.health.resolve(tp, Condition.ARCHIVE_UNVERIFIED)

    def _is_asked(self, partition: Partition) -> bool:
        config = partition.config
        return config.archive_required and config.archive_verified_by != "job"

    def _waits_for(self, partition: Partition) -> str | None:
        index = self._cluster.bundles(partition.tp)
        if index.verified_end >= index.end:
            return self._unreachable.get(partition.tp) if index.end else None
        why = self._unverified.get(partition.tp, "run `cordwood archive create` again")
        return f"archived up to offset {index.end}, verified up to {index.verified_end}: {why}"

    def close(self) -> None:
        """Stop the reading thread after the bundle it is reading."""
        self._reading.shutdown(cancel_futures=True)

    # --- run by the metadata front ----------------------------------------------------------

    def _plan(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> list[BundleEntry]:
        """Return the bundles to verify: new or not yet verified; raises for invalid ones."""
        topic = self._cluster.topic(tp.topic)
        if tp not in topic.partition_list():
            raise RequestError(f"topic {tp.topic} has no partition {tp.partition}")
        index = self._cluster.bundles(tp)
        partition = self._store.topic(tp.topic).partition(tp.partition)
        end, asked = index.end, []
        for bundle in bundles:
            self._check_place(bundle.place)
            span = Span(bundle.start_offset, bundle.end_offset)
            wanted = f"{topic_archive_name(tp.topic, topic.id)}/{bundle_name(tp.partition, span)}"
            if bundle.name != wanted:
                raise StaleManifest(
                    f"{bundle.name} is not a bundle of {tp} (expected {wanted}); if the topic was "
                    "deleted and created again, run `cordwood archive create` again"
                )
            known = index.find(bundle.start_offset)
            if known is not None and _without_verdict(known) == bundle:
                asked += [] if known.verified else [bundle]
                continue
            if not max(end, partition.log_start_offset) >= bundle.start_offset >= end:
                raise StaleManifest(
                    f"{tp} is archived up to {end}, and bundle {bundle.name} begins at "
                    f"{bundle.start_offset}: another archive job has finished first; run "
                    "`cordwood archive create` again"
                )
            if not bundle.start_offset < bundle.end_offset <= partition.high_watermark:
                raise RequestError(f"bundle {bundle.name} does not fit {tp}")
            end = bundle.end_offset
            asked.append(bundle)
        return asked

    def _check_place(self, place: str) -> None:
        """Raise ``RequestError`` for a place whose files the broker itself deletes or replaces."""
        name, data = place.removeprefix("file://"), self._store.data.resolve()
        path = Path(name).resolve() if name.startswith("/") else None
        if path and path.is_relative_to(data) and not path.is_relative_to(data / ARCHIVE):
            raise RequestError(
                f"{place} is inside the broker's data directory; archive to {data / ARCHIVE} or "
                "to a place outside of it"
            )

    def _record(self, tp: TopicPartition, bundles: Sequence[BundleEntry]) -> tuple[int, int]:
        """Plan again, as the state may have changed during the reading, and record the bundles."""
        left = set(self._plan(tp, [_without_verdict(bundle) for bundle in bundles]))
        new = [bundle for bundle in bundles if _without_verdict(bundle) in left]
        self._cluster.put_bundles(tp, new)
        index = self._cluster.bundles(tp)
        logger.info(
            "archive.recorded partition=%s bundles=%d end=%d verified_end=%d",
            tp, len(new), index.end, index.verified_end,
        )  # fmt: skip
        return index.end, index.verified_end

    def _forget_proof(self, tp: TopicPartition, bundle: BundleEntry) -> None:
        """Mark the bundle as not verified, if it is still the recorded one."""
        if tp.topic in self._store.topics and bundle in self._cluster.bundles(tp).entries():
            self._cluster.put_bundles(tp, [_without_verdict(bundle)])


def _without_verdict(bundle: BundleEntry) -> BundleEntry:
    """Return the entry as the job reported it, without the broker's findings."""
    return replace(bundle, verified=False, unproven_records=0)
