"""Background compression: rewrites sealed segments in the codec that their topic asks for.

Batches are stored as producers send them. Once a segment has been sealed for a while, it is read,
rewritten and compared record by record (``log.lifecycle.segment_compression``), and then takes the
place of the original through the swap that compaction uses. One segment at a time, oldest first, at
no more than ``compression.bytes.per.second``, on a thread with the lowest priority.

``decide.compression`` decides what is due. While a compaction job has a partition, nothing is
swapped there: a segment that was compressed meanwhile is compressed again later. A damaged segment
is left alone, and is scrubbed so that the damage is reported.

A run on demand (``cordwood segment compress``) does not wait, neither for the delay after a cut
nor for the rate.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from cordwood.batch.recoding import MERGED_BYTES, Recoding
from cordwood.broker.jobs.compaction import CompactionService
from cordwood.broker.jobs.swaps import SwapService
from cordwood.broker.thread_priority import yield_processor
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import MIB, BrokerConfig
from cordwood.decide.compaction import plan_retry
from cordwood.decide.compression import (
    CompressionInputs,
    CompressionStatus,
    PlannedSegment,
    SealedSegment,
    codec_levels,
    plan_compression,
    topic_codec,
)
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    PolicyViolation,
    RequestError,
    ShuttingDown,
    StaleManifest,
)
from cordwood.log.health.registry import Condition
from cordwood.log.lifecycle.store import Store
from cordwood.log.read.scrub import Pace, yield_device
from cordwood.log.swap.ladder import Verified
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import SegmentEntry
from cordwood.model import SegmentInfo, SegmentState, TopicPartition
from cordwood.protocol.api.compression import CompressedSegment, CompressionProgress

ROUND_SEGMENTS: Final = 1000  # segments per round, before the due ones are looked up again
SWAP_BYTES: Final = 4 * MIB  # a swap costs syncs: small segments count as this large
ROWS_MAX: Final = 10_000  # segments that a run on demand lists

logger = logging.getLogger("cordwood.broker")


class CompressionTarget(NamedTuple):
    """A sealed segment of a partition that is served."""

    partition: Partition
    planned: PlannedSegment

    @property
    def info(self) -> SegmentInfo:
        """The segment."""
        return self.planned.segment.info

    @property
    def key(self) -> tuple[TopicPartition, int]:
        """The partition and the base offset."""
        return self.partition.tp, self.info.base_offset


@dataclass(slots=True)
class CompressionStats:
    """Counters for the metrics, by topic."""

    segments: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    bytes_before: Counter[str] = field(default_factory=Counter)
    bytes_after: Counter[str] = field(default_factory=Counter)


class FailedAttempts(NamedTuple):
    """A segment that could not be compressed."""

    times: int
    retry_ms: int


@dataclass(slots=True)
class CompressionRun:
    """A run on demand."""

    topic: str
    targets: list[CompressionTarget]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    done_bytes: int = 0
    rows: dict[tuple[TopicPartition, int], CompressedSegment] = field(default_factory=dict)

    def note(self, target: CompressionTarget, status: str, bytes_after: int, error: str) -> None:
        """Set the row of a segment."""
        result = target.planned.segment.result
        before = result.bytes_before if result else target.info.size_bytes
        row = CompressedSegment(
            partition=str(target.partition.tp),
            segment=target.info.base_offset,
            status=status,
            bytes_before=before,
            bytes=bytes_after,
            error=error,
        )
        if target.key in self.rows or len(self.rows) < ROWS_MAX:
            self.rows[target.key] = row

    def progress(self) -> CompressionProgress:
        """Return the progress as the HTTP API shows it."""
        return CompressionProgress(
            topic=self.topic,
            running=not self.ended.is_set(),
            bytes=self.done_bytes,
            total_bytes=sum(target.info.size_bytes for target in self.targets),
            segments=tuple(self.rows.values()),
        )


class Compressor:
    """Plans compression, does it on its own thread, and swaps the results in."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        clock: Clock,
        *,
        topics: TopicService,
        swaps: SwapService,
        compaction: CompactionService,
        on_damage: Callable[[TopicPartition, int], None],
    ) -> None:
        self.stats = CompressionStats()
        self.last_run: CompressionRun | None = None
        self.reconfigure(config)
        self._store = store
        self._topics = topics
        self._swaps = swaps
        self._compaction = compaction
        self._clock = clock
        self._on_damage = on_damage
        self._failures: dict[tuple[TopicPartition, int], FailedAttempts] = {}
        self._stopping = threading.Event()
        self._demand: CompressionRun | None = None
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="cordwood-compress", initializer=_yield_machine
        )

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use another rate and another pause between two searches for due segments."""
        self._rate = config.compression_bytes_per_second
        self._pause_s = config.monitor_interval_ms / 1000

    async def run(self) -> None:
        """Compress due segments, and those of runs on demand, until cancelled."""
        while not self._stopping.is_set():
            demand = self._demand
            if demand is not None:
                await self._run_demand(demand)
            elif not await self._run_due():
                self._wake.clear()
                await self._pause()

    async def _run_demand(self, demand: CompressionRun) -> None:
        try:
            for target in demand.targets:
                await self._compress(target, demand)
                demand.done_bytes += target.info.size_bytes
        finally:
            self._demand = None
            demand.ended.set()

    async def _run_due(self) -> bool:
        """Compress what is due, unless a run on demand begins; False if nothing was."""
        self._forget_gone()
        targets = await self._on_thread(self._due) if self._rate else []
        for target in targets:
            if self._demand is not None or self._stopping.is_set():
                break
            await self._compress(target, None)
        return bool(targets)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), self._pause_s)

    def stop(self) -> None:
        """Abandon the segment that is being compressed; it is compressed after a restart."""
        self._stopping.set()
        self._thread.shutdown()

    # --- on demand --------------------------------------------------------------------------

    async def compress_now(self, topic: str, *, dry: bool) -> CompressionRun:
        """Start to compress a topic, or only list its segments; ``last_run`` has the progress."""
        self._check_idle()
        live = await self._topics.open_topic(topic)
        if topic_codec(live.config) is None:
            raise PolicyViolation(
                f"topic {topic} keeps the codec of its producers; set its compression.type first"
            )
        for partition in live.online():  # segments that were sealed just now
            await self._on_thread(self._store.segments.index.index, partition, self._store.is_live)
        planned = await self._on_thread(lambda: list(self._plan_topic(topic, demand=True)))
        due = [each for each in planned if each.planned.status is CompressionStatus.DUE]
        run = CompressionRun(topic, [] if dry else due)
        for target in planned:
            run.note(target, target.planned.status.value, target.info.size_bytes, "")
        self._check_idle()  # another request may have come first
        self.last_run = run
        if dry:
            run.ended.set()
        else:
            self._demand = run
            self._wake.set()
        return run

    def _check_idle(self) -> None:
        if self._demand is not None:
            raise RequestError(
                f"topic {self._demand.topic} is being compressed; wait until that ends"
            )

    # --- what is due: on the thread ---------------------------------------------------------

    def _due(self) -> list[CompressionTarget]:
        due: list[CompressionTarget] = []
        for topic in list(self._store.topics):
            try:
                planned = list(self._plan_topic(topic, demand=False))
            except (CordwoodError, OSError) as error:  # the other topics do not wait for it
                logger.warning("compression.postponed topic=%s error=%s", topic, error)
                continue
            due += [each for each in planned if each.planned.status is CompressionStatus.DUE]
            if len(due) >= ROUND_SEGMENTS:
                break
        return due[:ROUND_SEGMENTS]

    def _plan_topic(self, topic: str, *, demand: bool) -> Iterator[CompressionTarget]:
        live = self._store.topics.get(topic)
        if live is None or topic_codec(live.config) is None:
            return
        for partition in live.online():
            inputs = self._inputs(partition)
            for planned in plan_compression(inputs, demand=demand) if inputs else ():
                yield CompressionTarget(partition, planned)

    def _inputs(self, partition: Partition) -> CompressionInputs | None:
        tp, config = partition.tp, partition.config
        codec = topic_codec(config)
        if codec is None:
            return None
        cluster = self._store.metadata.cluster
        entries = {each.base_offset: each for each in cluster.segments(tp).entries()}
        damaged = {each.segment for each in self._store.health.damage(tp)}
        segments = partition.segments()
        low, high = partition.log_start_offset, partition.high_watermark
        sealed = [
            self._sealed(tp, info, later.created_ms, entry, damaged)
            for info, later in pairwise(segments)
            if (entry := entries.get(info.base_offset)) is not None
            and entry.state is SegmentState.SEALED
            and low < info.end_offset <= high
        ]
        is_compacted = "compact" in config.cleanup_policy
        return CompressionInputs(
            sealed=tuple(sealed),
            codec=codec,
            delay_ms=config.compression_delay_ms,
            clean_end=cluster.cleaner(tp).clean_end if is_compacted else None,
            is_leased=self._compaction.is_leased(tp),
            now_ms=self._clock.now_ms(),
        )

    def _sealed(
        self,
        tp: TopicPartition,
        info: SegmentInfo,
        sealed_ms: int,
        entry: SegmentEntry,
        damaged: set[int],
    ) -> SealedSegment:
        failure = self._failures.get((tp, info.base_offset))
        return SealedSegment(
            info=info,
            sealed_ms=sealed_ms,
            result=entry.compression,
            is_damaged=info.base_offset in damaged,
            retry_ms=failure.retry_ms if failure else 0,
        )

    # --- one segment ------------------------------------------------------------------------

    async def _compress(self, target: CompressionTarget, run: CompressionRun | None) -> None:
        """Compress one segment; a failure is reported and delays no other segment."""
        partition, info = target.partition, target.info
        try:
            verified = await self._on_thread(self._rewrite, target)
            if verified is not None:
                await self._swap(partition.tp, verified)
        except (ShuttingDown, StaleManifest) as error:
            logger.info("compression.postponed partition=%s error=%s", partition.tp, error)
            if run is not None:
                run.note(target, "postponed", info.size_bytes, str(error))
        except (CordwoodError, OSError) as error:
            self._fail(target, error)
            if run is not None:
                run.note(target, CompressionStatus.FAILED.value, info.size_bytes, str(error))
        else:
            self._finish(target, verified, run)

    def _rewrite(self, target: CompressionTarget) -> Verified | None:
        """Rewrite the segment, on the thread; None if it stays as it is."""
        partition, info = target.partition, target.info
        if self._stopping.is_set() or not self._store.is_live(partition):
            raise ShuttingDown(f"{partition.tp} is no longer served")
        codec = topic_codec(partition.config)
        now = partition.sealed_segment(info.base_offset)
        if codec is None or now is None or now.size_bytes != info.size_bytes:
            raise StaleManifest(f"{partition.tp}: segment {info.base_offset} has changed")
        recoding = Recoding(
            codec=codec,
            levels=codec_levels(partition.config),
            merged_bytes=min(MERGED_BYTES, partition.config.max_message_bytes),
        )
        pace = self._pace()
        verified = self._store.segments.compress(partition, info, recoding, pace)
        pace(max(0, SWAP_BYTES - info.size_bytes))
        return verified

    async def _swap(self, tp: TopicPartition, verified: Verified) -> None:
        try:
            with self._compaction.reserve(tp):
                await self._swaps.swap(verified)
        except CordwoodError:
            await self._on_thread(self._store.segments.release_jobs, [verified])
            raise

    def _finish(
        self, target: CompressionTarget, verified: Verified | None, run: CompressionRun | None
    ) -> None:
        tp, before = target.partition.tp, target.info.size_bytes
        self._forget_failure(target.key)
        status, after = CompressionStatus.KEPT, before
        if verified is None:
            self.stats.kept[tp.topic] += 1
        else:
            status, after = (
                CompressionStatus.COMPRESSED,
                verified.manifest.segments[0].log.size_bytes,
            )
            self.stats.segments[tp.topic] += 1
            self.stats.bytes_before[tp.topic] += before
            self.stats.bytes_after[tp.topic] += after
            logger.info(
                "segment.compressed partition=%s base_offset=%d bytes_before=%d bytes=%d",
                tp, target.info.base_offset, before, after,
            )  # fmt: skip
        if run is not None:
            run.note(target, status.value, after, "")

    def _fail(self, target: CompressionTarget, error: Exception) -> None:
        """Report the failure and try again later, later after each failure."""
        tp, base = target.key
        if not self._store.is_live(target.partition):
            return
        if isinstance(error, CorruptionError):
            self._on_damage(tp, base)
        before = self._failures.get(target.key)
        times = before.times + 1 if before else 1
        self._failures[target.key] = FailedAttempts(times, plan_retry(times, self._clock.now_ms()))
        self.stats.failures[tp.topic] += 1
        self._store.health.report(tp, Condition.COMPRESSION_FAILED, f"segment {base}: {error}")

    def _forget_failure(self, key: tuple[TopicPartition, int]) -> None:
        if self._failures.pop(key, None) and all(tp != key[0] for tp, _ in self._failures):
            self._store.health.resolve(key[0], Condition.COMPRESSION_FAILED)

    def _forget_gone(self) -> None:
        """Forget failures of segments that were dropped, or are reported as damaged."""
        for tp, base in list(self._failures):
            live = self._store.topics.get(tp.topic)
            online = [] if live is None else [each for each in live.online() if each.tp == tp]
            damaged = {each.segment for each in self._store.health.damage(tp)}
            if not online or base in damaged or online[0].sealed_segment(base) is None:
                self._forget_failure((tp, base))

    # --- pace -------------------------------------------------------------------------------

    def _pace(self) -> Pace:
        """Return a pace that limits what is compressed, unless a run on demand waits."""
        began_s, total = time.monotonic(), 0

        def pace(size_bytes: int) -> None:
            nonlocal total
            total += size_bytes
            rate = 0 if self._demand is not None else self._rate
            ahead_s = began_s + total / rate - time.monotonic() if rate else 0.0
            if self._stopping.wait(max(0.0, ahead_s)):
                raise ShuttingDown("the broker is stopping")

        return pace

    async def _on_thread(self, act: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, act, *arguments)


def _yield_machine() -> None:
    """Let all other threads run and read first."""
    yield_device()
    yield_processor()
