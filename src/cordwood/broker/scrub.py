"""The background scrub: reads sealed segments to find damage before a reader does.

Each segment is read every ``scrub.interval.ms``, the least recently read first, at no more than
``scrub.bytes.per.second``, on a thread whose reads have the lowest I/O priority. A segment is read
at once if a reader met damage in it, or if it was damaged before a restart, because it may have
been restored since. Damage is reported to the health registry. The time and the result of each
scrub go into the segment index, so they survive a restart.

A run on demand (``cordwood segment scrub``) reads everything now, without the rate limit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, RequestError, ShuttingDown
from cordwood.log.health.registry import Condition, DamagedRange
from cordwood.log.lifecycle.store import Store
from cordwood.log.read.scrub import Pace, Verdict, scrub_segment, yield_device
from cordwood.log.read.segment import Segment
from cordwood.metadata.keys import ScrubResult, SegmentEntry
from cordwood.model import SegmentState, TopicPartition
from cordwood.plural import plural
from cordwood.protocol.api.topics import ScrubDamage, ScrubStatus

LOOK_S: Final = 60.0  # pause between two searches for due segments
ROUND_SEGMENTS: Final = 1000  # segments per round, before the due ones are looked up again
ROWS_MAX: Final = 10_000  # damaged segments that a run on demand lists

logger = logging.getLogger("cordwood.broker")


class ScrubTarget(NamedTuple):
    """One sealed segment, as the segment index describes it."""

    tp: TopicPartition
    entry: SegmentEntry


@dataclass(slots=True)
class ScrubStats:
    """Counters for the metrics."""

    segments: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class ScrubRun:
    """Progress of a run on demand."""

    topic: str | None
    total_segments: int
    total_bytes: int
    is_running: bool = True
    segments: int = 0
    size_bytes: int = 0
    damaged: list[ScrubDamage] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def status(self) -> ScrubStatus:
        """Return the progress as the HTTP API shows it."""
        return ScrubStatus(
            topic=self.topic,
            running=self.is_running,
            segments=self.segments,
            total_segments=self.total_segments,
            bytes=self.size_bytes,
            total_bytes=self.total_bytes,
            damaged=tuple(self.damaged),
            failed=dict(self.failed),
        )


class Scrubber:
    """Plans scrubs on the event loop and reads on its own threads."""

    def __init__(self, config: BrokerConfig, store: Store, clock: Clock) -> None:
        self.stats = ScrubStats()
        self.last_run: ScrubRun | None = None
        self.reconfigure(config)
        self._store = store
        self._clock = clock
        self._stopping = threading.Event()
        self._urgent: deque[tuple[TopicPartition, int]] = deque()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="cordwood-scrub", initializer=yield_device
        )
        self._demand_thread = ThreadPoolExecutor(
            1, thread_name_prefix="cordwood-scrub-now", initializer=yield_device
        )
        self._demanded: asyncio.Future[None] | None = None
        store.health.on_damage(self.scrub_soon)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use another pace and interval, from the next look for due segments on."""
        self._rate = config.scrub_bytes_per_second
        self._interval_ms = config.scrub_interval_ms

    async def run(self) -> None:
        """Scrub due segments until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._remember_damage()
        while not self._stopping.is_set():
            targets = await self._on_thread(self._due)
            pace = self._pace(self._rate)
            for target in targets:
                await self._on_thread(self._scrub, target, pace)
                if self._urgent:
                    break
            if not targets:
                self._wake.clear()
                if not self._urgent:
                    await self._pause()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), LOOK_S)
        except TimeoutError:
            return

    def stop(self) -> None:
        """Abandon the segment being read; it is read again after a restart."""
        self._stopping.set()
        self._thread.shutdown()
        self._demand_thread.shutdown()

    # --- on demand --------------------------------------------------------------------------

    async def scrub_now(self, topic: str | None) -> ScrubRun:
        """Start to scrub everything, or one topic; ``last_run`` shows the progress."""
        if self.last_run is not None and self.last_run.is_running:
            raise RequestError("a scrub is already running; wait until it ends")
        if topic is not None:
            self._store.topic(topic)
        await asyncio.get_running_loop().run_in_executor(None, self._store.segments.hash_sealed)
        targets = [t for t in self._targets() if topic in {None, t.tp.topic}]
        total_bytes = sum(target.entry.size_bytes for target in targets)
        run = self.last_run = ScrubRun(topic, len(targets), total_bytes)
        loop = asyncio.get_running_loop()
        self._demanded = loop.run_in_executor(self._demand_thread, self._scrub_all, run, targets)
        return run

    def _scrub_all(self, run: ScrubRun, targets: list[ScrubTarget]) -> None:
        try:
            for target in targets:
                self._scrub(target, self._pace(0, run), run)
                run.segments += 1
        except ShuttingDown:
            return
        finally:
            run.is_running = False

    # --- what is due ------------------------------------------------------------------------

    def _targets(self) -> Iterator[ScrubTarget]:
        for topic in list(self._store.metadata.cluster.topics.values()):
            for tp in topic.partition_list():
                for entry in self._store.metadata.cluster.segments(tp).entries():
                    if entry.state is SegmentState.SEALED:
                        yield ScrubTarget(tp, entry)

    def _due(self) -> list[ScrubTarget]:
        """Return urgent segments if any, else due ones, the least recently read first."""
        reported: dict[tuple[TopicPartition, int], None] = {}
        while self._urgent:
            reported[self._urgent.popleft()] = None
        urgent = []
        for tp, base_offset in reported:
            entry = self._store.metadata.cluster.segments(tp).get(base_offset)
            if entry is not None and entry.state is SegmentState.SEALED:
                urgent.append(ScrubTarget(tp, entry))
        if urgent or not self._rate:
            return urgent
        due_ms = self._clock.now_ms() - self._interval_ms
        due = [target for target in self._targets() if _scrubbed_ms(target.entry) <= due_ms]
        return nsmallest(ROUND_SEGMENTS, due, key=lambda target: _scrubbed_ms(target.entry))

    def _remember_damage(self) -> None:
        """Report damage found before the restart at once, and queue it for another scrub."""
        for tp, entry in self._targets():
            if entry.scrub is not None and entry.scrub.damage:
                ranges = [DamagedRange(entry.base_offset, *each) for each in entry.scrub.damage]
                accepted = [DamagedRange(entry.base_offset, *each) for each in entry.scrub.accepted]
                self._store.health.accept_damage(tp, entry.base_offset, accepted)
                self._store.health.set_damage(tp, entry.base_offset, ranges)
                self._urgent.append((tp, entry.base_offset))

    def scrub_soon(self, tp: TopicPartition, base_offset: int) -> None:
        """Queue a segment in which a reader met damage; safe on any thread."""
        self._urgent.append((tp, base_offset))
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    # --- on the scrub's thread --------------------------------------------------------------

    def _scrub(self, target: ScrubTarget, pace: Pace, run: ScrubRun | None = None) -> None:
        tp, entry = target
        with self._store.health.guard(tp, Condition.SCRUB_FAILED, lambda: not self._is_there(tp)):
            segment = self._store.partition(tp).sealed_segment(entry.base_offset)
            if segment is None or segment.size_bytes != entry.size_bytes:
                return  # dropped or replaced in the meantime
            try:
                verdict = scrub_segment(segment, pace)
            except (CordwoodError, OSError) as error:
                if run is not None and not isinstance(error, ShuttingDown):
                    run.failed[f"{tp} segment {entry.base_offset}"] = str(error)
                if isinstance(error, ShuttingDown):
                    raise
                self._record(target, (), "")  # count it as read, so that the others come first
                raise
            self._judge(target, segment, verdict, run)

    def _judge(
        self, target: ScrubTarget, segment: Segment, verdict: Verdict, run: ScrubRun | None
    ) -> None:
        tp, entry = target
        ranges = _ranges(segment, verdict, entry)
        if segment.damage != verdict.damage:
            segment.forget()  # the open file may not be the one on disk any more
            segment.damage = verdict.damage
        self._store.health.set_damage(tp, entry.base_offset, ranges)
        self._record(target, ranges, verdict.sha256)
        self.stats.segments += 1
        if run is not None and ranges and len(run.damaged) < ROWS_MAX:
            run.damaged += [
                ScrubDamage(*damaged, partition=str(tp))
                for damaged in self._store.health.damage(tp)
                if damaged.segment == entry.base_offset
            ]

    def _record(
        self, target: ScrubTarget, ranges: tuple[DamagedRange, ...], file_sha256: str
    ) -> None:
        damage = tuple((r.start_offset, r.end_offset, r.problem) for r in ranges)
        scrub = ScrubResult(self._clock.now_ms(), damage)
        self._store.segments.index.record_scrub(target.tp, target.entry, scrub, file_sha256)

    def _is_there(self, tp: TopicPartition) -> bool:
        return tp.topic in self._store.topics and tp not in self._store.offline

    # --- pace -------------------------------------------------------------------------------

    def _pace(self, rate: int, run: ScrubRun | None = None) -> Pace:
        """Return a pace that counts what is read and limits it to ``rate`` a second, unless 0."""
        began_s, total = time.monotonic(), 0

        def pace(size_bytes: int) -> None:
            nonlocal total
            total += size_bytes
            self.stats.size_bytes += size_bytes
            if run is not None:
                run.size_bytes += size_bytes
            ahead_s = began_s + total / rate - time.monotonic() if rate else 0.0
            if self._stopping.wait(max(0.0, ahead_s)):
                raise ShuttingDown("the broker is stopping")

        return pace

    async def _on_thread(self, act: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, act, *arguments)


def _scrubbed_ms(entry: SegmentEntry) -> int:
    return entry.scrub.at_ms if entry.scrub is not None else 0


def _ranges(segment: Segment, verdict: Verdict, entry: SegmentEntry) -> tuple[DamagedRange, ...]:
    """Return what is wrong with a segment: damage, or a file other than the sealed one."""
    base, path = entry.base_offset, segment.path()
    if verdict.damage:
        return tuple(
            DamagedRange(base, d.start_offset, d.end_offset, f"{path}: {d.problem}")
            for d in verdict.damage
        )
    if entry.sha256 not in {None, verdict.sha256}:
        problem = (
            "its sha256 is different from when it was sealed, although every batch checksum matches"
        )
    elif verdict.records != entry.records:
        problem = (
            f"it has {plural(verdict.records, 'record')}; it had {entry.records} when it was sealed"
        )
    else:
        return ()
    return (DamagedRange(base, base, entry.end_offset, f"{path}: {problem}"),)
