"""CUT by age and RECLAIM, at every monitor interval and on demand.

``decide`` makes every decision. This module inspects the partitions, carries out the plans on the
writer thread, and reports in the log and in counters what was dropped, what was held back, and why.

A segment that may be dropped only because a bundle holds its records is dropped only after the
bundle has been read again (``ArchiveService.confirm``). That takes long, so a round leaves such
partitions to ``run_archived``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from cordwood.broker.jobs.archive import ArchiveService
from cordwood.broker.time_slices import in_slices
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import KEEP_ALL, BrokerConfig
from cordwood.decide.archive import Span
from cordwood.decide.retention import (
    Drop,
    Hold,
    Holder,
    Reason,
    RetentionPlan,
    plan_retention,
)
from cordwood.decide.roll import RollReason, plan_roll
from cordwood.errors import CordwoodError
from cordwood.log.health.registry import Condition
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.model import TopicPartition
from cordwood.protocol.api.topics import HeldSegments

logger = logging.getLogger("cordwood.broker")

HARD_LIMITS: Final = {
    Reason.HARD_CAP: "retention.hard.bytes",
    Reason.HARD_AGE: "retention.hard.ms",
}
NOT_FOR_ARCHIVE: Final = frozenset({Reason.LOG_START, *HARD_LIMITS})  # need no bundle


@dataclass(slots=True)
class MonitorStats:
    """Counters for the metrics."""

    reclaims: Counter[str] = field(default_factory=Counter)  # by reason
    reclaimed_bytes: int = 0
    lost_records: Counter[str] = field(default_factory=Counter)  # by reader, lost to the hard cap
    held: dict[TopicPartition, int] = field(default_factory=dict)  # segments due but held back now


class Monitor:
    """Cuts and reclaims the segments of every partition."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        topics: TopicService,
        clock: Clock,
        background: Executor,
        *,
        archive: ArchiveService,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._clock = clock
        self._background = background
        self._archive = archive
        self._archived: dict[TopicPartition, Partition] = {}  # for ``run_archived`` to reclaim
        self._has_archived = asyncio.Event()
        self._has_interval = asyncio.Event()  # monitor.interval.ms was changed
        self._held_before: dict[TopicPartition, frozenset[tuple[int, str]]] = {}
        self.stats = MonitorStats()

    async def run(self) -> None:
        """Run a round every ``monitor.interval.ms`` until cancelled."""
        while True:
            self._has_interval.clear()
            try:
                async with asyncio.timeout(self._config.monitor_interval_ms / 1000):
                    await self._has_interval.wait()
            except TimeoutError:
                await self.run_round()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use other settings from now on; the wait for the next round begins again."""
        if config.monitor_interval_ms != self._config.monitor_interval_ms:
            self._has_interval.set()
        self._config = config

    async def run_archived(self) -> None:
        """Reclaim partitions whose bundles must be read again first, until cancelled."""
        while True:
            await self._has_archived.wait()
            self._has_archived.clear()
            while self._archived:
                tp = next(iter(self._archived))
                partition = self._archived[tp]
                with self._store.guard(partition, Condition.RETENTION_FAILED):
                    await self._confirm_and_reclaim(partition)
                self._archived.pop(tp, None)

    async def run_round(self) -> None:
        """Run one round: sync, cut old segments, reclaim, purge deleted files, hash sealed ones.

        A failure is reported for its own partition and delays no other.
        """
        await self._topics.sync_overdue()
        topics = list(self._store.topics)
        partitions = (each for name in topics for each in self._store.partitions(name))
        async for partition in in_slices(partitions):
            await self._maintain(partition)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._background, self._store.segments.hash_sealed)

    async def _maintain(self, partition: Partition) -> None:
        """Do what is due on the writer thread; most partitions are idle and skip it."""
        with self._store.guard(partition, Condition.RETENTION_FAILED):
            self._archive.note_health(partition)
            if self._is_due(partition):
                await self._topics.on_writer(partial(self._cut_and_reclaim, partition))
                if self._archived_drops(partition, self.plan(partition)):
                    self._archived[partition.tp] = partition
                    self._has_archived.set()
        if partition.has_deleted:
            with self._store.guard(partition, Condition.PURGE_FAILED):
                await self._topics.on_writer(partial(self._purge, partition))

    def _is_due(self, partition: Partition) -> bool:
        """Return whether a cut or drop looks due; the writer thread decides again."""
        active = partition.segments()[-1]
        if plan_roll(active, 0, 0, partition.config, self._clock.now_ms()) is not None:
            return True
        plan = self.plan(partition)
        if plan.drops or plan.roll_active:
            return True
        self._report(partition, plan)
        return False

    async def cut(self, topic: str) -> int:
        """Seal the active segments of a topic now; returns how many held records and were sealed.

        Every partition is tried; then the first error is raised.
        """
        live = await self._topics.open_topic(topic)
        sealed, errors = 0, []
        for number in range(live.partition_count):
            try:
                cut = partial(self._cut, live.partition(number), RollReason.DEMAND)
                sealed += await self._topics.on_writer(cut)
            except CordwoodError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return sealed

    async def reclaim(self, topic: str | None) -> int:
        """Drop what the policies allow now; returns the number of dropped segments.

        Every partition is tried; then the first error is raised.
        """
        if topic is not None:
            await self._topics.open_topic(topic)
        dropped, errors = 0, []
        for name in [topic] if topic else list(self._store.topics):
            for partition in self._store.partitions(name):
                try:
                    dropped += await self._confirm_and_reclaim(partition)
                except CordwoodError as error:
                    if self._store.is_live(partition):  # a partition deleted meanwhile is no error
                        errors.append(error)
        if errors:
            raise errors[0]
        return dropped

    def held(self, topic: str | None) -> Iterator[HeldSegments]:
        """Yield the segments of open partitions that are due but held, by what holds them."""
        for name in [topic] if topic else list(self._store.topics):
            for partition in self._store.partitions(name):
                yield from _held(partition, self.plan(partition))

    async def _confirm_and_reclaim(self, partition: Partition) -> int:
        drops = self._archived_drops(partition, self.plan(partition))
        confirmed_end = 0
        if drops:
            span = Span(drops[0].segment.base_offset, drops[-1].segment.end_offset)
            confirmed_end = await self._archive.confirm(partition, span)
        return await self._topics.on_writer(partial(self._reclaim, partition, confirmed_end))

    # --- on the writer thread -------------------------------------------------------------

    def _cut_and_reclaim(self, partition: Partition) -> None:
        active = partition.segments()[-1]
        reason = plan_roll(active, 0, 0, partition.config, self._clock.now_ms())
        if reason is not None:
            self._cut(partition, reason)
        self._reclaim(partition)

    def _cut(self, partition: Partition, reason: RollReason) -> bool:
        return self._store.segments.roll(partition, reason) is not None

    def _reclaim(self, partition: Partition, confirmed_end: int = 0) -> int:
        """Drop what may go; segments that depend on the archive only below ``confirmed_end``."""
        plan = self._plan_confirmed(partition, confirmed_end)
        if plan.roll_active and self._cut(partition, RollReason.AGE):
            plan = self._plan_confirmed(partition, confirmed_end)
        if plan.drops:
            self._store.segments.reclaim(partition, plan)
        self._report(partition, plan)
        return len(plan.drops)

    def _plan_confirmed(self, partition: Partition, confirmed_end: int) -> RetentionPlan:
        plan = self.plan(partition)
        drops = self._archived_drops(partition, plan)
        if not drops or drops[-1].segment.end_offset <= confirmed_end:
            return plan
        return self.plan(partition, archived_end=confirmed_end)

    def _archived_drops(self, partition: Partition, plan: RetentionPlan) -> list[Drop]:
        """Return the drops that are allowed only because verified bundles hold their records."""
        config = partition.config
        if not config.archive_required or config.archive_verified_by == "job":
            return []
        return [drop for drop in plan.drops if drop.reason not in NOT_FOR_ARCHIVE]

    def plan(
        self,
        partition: Partition,
        *,
        archived_end: int = KEEP_ALL,
        moved: Mapping[str, int] = MappingProxyType({}),
    ) -> RetentionPlan:
        """Plan RECLAIM for this partition now, assuming that its bundles are still intact.

        Offsets from ``archived_end`` on do not count as archived; ``moved`` are readers whose
        cursors are assumed at other offsets.
        """
        *sealed, active = partition.segments()
        return plan_retention(
            sealed,
            active,
            {**self._store.metadata.readers.registered_positions(partition.tp), **moved},
            log_start=partition.log_start_offset,
            config=partition.config,
            now_ms=self._clock.now_ms(),
            archived_end=min(self._archived_end(partition), archived_end),
        )

    def _archived_end(self, partition: Partition) -> int:
        """Return the offset up to which the archive allows RECLAIM."""
        if not partition.config.archive_required:
            return KEEP_ALL
        bundles = self._store.metadata.cluster.bundles(partition.tp)
        is_trusted = partition.config.archive_verified_by == "job"
        return bundles.end if is_trusted else bundles.verified_end

    def _purge(self, partition: Partition) -> None:
        partition.purge_deleted(self._clock.now_ms())

    def _report(self, partition: Partition, plan: RetentionPlan) -> None:
        for drop in plan.drops:
            self.stats.reclaims[drop.reason.value] += 1
            self.stats.reclaimed_bytes += drop.segment.size_bytes
            logger.info(
                "segment.dropped partition=%s base=%d end=%d bytes=%d reason=%s",
                partition.tp, drop.segment.base_offset, drop.segment.end_offset,
                drop.segment.size_bytes, drop.reason.value,
            )  # fmt: skip
            if drop.reason in HARD_LIMITS:
                self._report_loss(partition, drop)
        held = frozenset((hold.segment.base_offset, hold.holder.value) for hold in plan.holds)
        self.stats.held[partition.tp] = len(held)
        if held != self._held_before.get(partition.tp, frozenset()):
            for hold in plan.holds:
                logger.info(
                    "segment.held partition=%s base=%d bytes=%d due=%s holder=%s readers=%s",
                    partition.tp, hold.segment.base_offset, hold.segment.size_bytes,
                    hold.reason.value, hold.holder.value, ",".join(hold.readers) or "-",
                )  # fmt: skip
        self._held_before[partition.tp] = held

    def _report_loss(self, partition: Partition, drop: Drop) -> None:
        """Report data loss: a hard limit dropped records that these readers had not passed."""
        for reader in drop.loses:
            self.stats.lost_records[reader] += drop.segment.records
            logger.error(
                "data.lost partition=%s reader=%s records=%d reason=%s",
                partition.tp, reader, drop.segment.records, HARD_LIMITS[drop.reason],
            )  # fmt: skip


def _held(partition: Partition, plan: RetentionPlan) -> Iterator[HeldSegments]:
    groups: dict[tuple[Holder, tuple[str, ...]], list[Hold]] = {}
    for hold in plan.holds:
        groups.setdefault((hold.holder, hold.readers), []).append(hold)
    for (holder, readers), holds in groups.items():
        size_bytes = sum(hold.segment.size_bytes for hold in holds)
        yield HeldSegments(*partition.tp, holder.value, readers, len(holds), size_bytes)
