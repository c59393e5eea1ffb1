"""Compaction service: report what is due, lease partitions to jobs, and apply their results.

A job asks for orders (``begin``), compacts the files on its own, and reports the outcome
(``finish`` or ``fail``). The broker swaps segments only on an order that is still valid
(``swap_orders``). The order's token is the job's lease: the job renews it, and a broker restart
ends every lease. Before it replaces a segment, the broker reads both the result and the log it was
made from (``log.lifecycle.compaction_proof``). The last swap and the new cleaner state are recorded
in one transaction. A partition is ordered again only after the job reports or its lease ends. A job
whose partition went to another job gets an error when it renews or finishes, and its result is
refused.

This module makes no compaction decisions; ``decide.compaction`` does. A partition whose pass failed
is skipped until its retry time and is named in ``/readyz`` and in the metrics. It delays no other
partition.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from cordwood.broker.jobs.swap_orders import SwapOrder, check_policy, verify_pass
from cordwood.broker.jobs.swaps import SwapService
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import MINUTE_MS, overrides
from cordwood.decide.compaction import (
    CleanerState,
    CompactionInputs,
    CompactionPlan,
    due_first,
    explain,
    parse_state,
    plan_compaction,
    plan_retry,
    watermark,
)
from cordwood.decide.compression import topic_codec
from cordwood.decide.roll import RollReason
from cordwood.errors import CordwoodError, InvalidManifest, PolicyViolation, StaleManifest
from cordwood.log.health.registry import Condition
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.metadata.front import AsyncMetadata
from cordwood.model import SegmentInfo, TopicPartition
from cordwood.protocol.api import compaction as api
from cordwood.protocol.api.call import Done
from cordwood.protocol.api.status import DirectoryIdentity

LEASE_MS: Final = 5 * MINUTE_MS  # the job renews it; a dead job blocks its partition this long
ERROR_CHARS_MAX: Final = 500

logger = logging.getLogger("cordwood.broker")


class CompactionCheck(NamedTuple):
    """The inputs and the compaction plan of one partition, as of now."""

    partition: Partition
    inputs: CompactionInputs
    plan: CompactionPlan


class CompactionService:
    """Compaction state, orders and results, for the API, the jobs and the metrics."""

    def __init__(
        self,
        store: Store,
        topics: TopicService,
        swaps: SwapService,
        clock: Clock,
        metadata: AsyncMetadata,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._cluster = metadata.cluster
        self._topics = topics
        self._swaps = swaps
        self._clock = clock
        self._leases: dict[TopicPartition, SwapOrder] = {}
        self._reserved: set[TopicPartition] = set()
        self._finishing: WeakValueDictionary[TopicPartition, asyncio.Lock] = WeakValueDictionary()
        for topic in self._cluster.topics.values():
            for tp in topic.partition_list():
                self._report_state(tp, self._cluster.cleaner(tp))

    # --- state and plans ----------------------------------------------------------------------

    def look(self, topic: str | None = None, *, demand: bool = False) -> list[CompactionCheck]:
        """Check every compacted partition, or all partitions of one topic whatever its policy."""
        return list(self.looks(topic, demand=demand))

    def looks(self, topic: str | None = None, *, demand: bool = False) -> Iterator[CompactionCheck]:
        """Yield the results of ``look`` one at a time."""
        for partition in self._partitions(topic):
            yield self._look(partition, demand)

    def _partitions(self, topic: str | None) -> Iterator[Partition]:
        if topic is not None:
            yield from self._topics.get(topic).online()
            return
        for live in list(self._store.topics.values()):
            if "compact" in live.config.cleanup_policy:
                yield from live.online()

    def _look(self, partition: Partition, demand: bool) -> CompactionCheck:
        inputs = self._inputs(partition)
        return CompactionCheck(partition, inputs, plan_compaction(inputs, demand=demand))

    def _inputs(self, partition: Partition) -> CompactionInputs:
        *sealed, active = partition.segments()
        log_start = partition.log_start_offset
        now_ms = self._clock.now_ms()
        return CompactionInputs(
            sealed=tuple(segment for segment in sealed if segment.end_offset > log_start),
            active=active,
            log_start=log_start,
            last_stable=partition.last_stable_offset,
            state=self._cluster.cleaner(partition.tp),
            readers=self._metadata.readers.registered_positions(partition.tp),
            config=partition.config,
            now_ms=now_ms,
            is_running=self.is_leased(partition.tp),
        )

    def quarantined(self) -> dict[TopicPartition, str]:
        """Return the partitions whose last pass failed, with the error."""
        failed = self._store.health.reasons(Condition.COMPACTION_FAILED)
        return {tp: error for tp, error in failed.items() if self._is_compacted(tp.topic)}

    def compacted_topics(self) -> Iterator[str]:
        """Yield the names of the topics whose cleanup.policy includes compact."""
        yield from filter(self._is_compacted, self._topics.all())

    def _is_compacted(self, topic: str) -> bool:
        live = self._store.topics.get(topic)
        return live is not None and "compact" in live.config.cleanup_policy

    def _report_state(self, tp: TopicPartition, state: CleanerState) -> None:
        """Report the outcome of the last pass to the health registry."""
        if state.failures:
            self._store.health.report(tp, Condition.COMPACTION_FAILED, state.error)
        else:
            self._store.health.resolve(tp, Condition.COMPACTION_FAILED)

    # --- orders -------------------------------------------------------------------------------

    async def handle(self, request: api.CompactionCall) -> api.CompactionOrders | Done:
        """Carry out a request of a compaction job."""
        if isinstance(request, api.BeginCompaction):
            orders = await self.begin(request.topic, demand=request.demand, dry=request.dry)
            return api.CompactionOrders(tuple(orders))
        tp, lease = TopicPartition(request.topic, request.partition), request.lease
        match request:
            case api.RenewLease():
                self._renewed(tp, lease)
            case api.FinishCompaction():
                await self.finish(tp, request.topic_id, request.jobs, request.state, lease)
            case api.FailCompaction():
                await self.fail(tp, request.error, lease)
            case api.ReleaseLease():
                self._end_lease(tp, lease)
        return Done()

    async def begin(
        self, topic: str | None = None, *, demand: bool = False, dry: bool = False
    ) -> list[api.CompactionOrder]:
        """Return orders for the partitions that are due, the dirtiest first.

        ``demand`` seals the active segments of ``topic`` first and compacts everything. ``dry``
        orders are for inspection only: nothing is sealed, and no lease is taken.
        """
        if topic is not None and "compact" not in self._topics.get(topic).config.cleanup_policy:
            raise PolicyViolation(
                f"topic {topic} is not compacted; set its cleanup.policy to compact first"
            )
        if topic is not None:
            await self._topics.open_topic(topic)
        if demand and topic is not None and not dry:
            for partition in self._topics.get(topic).online():
                with self._store.guard(partition, Condition.RETENTION_FAILED):
                    await self._topics.on_writer(partial(self._cut, partition))
        looks = {look.partition.tp: look for look in self.look(topic, demand=demand)}
        for tp, look in looks.items():
            if look.plan.is_reset:
                state = replace(look.inputs.state, clean_end=look.plan.clean_end, horizons=())
                await self._remember(tp, state)
        orders = []
        for tp in due_first({tp: look.plan for tp, look in looks.items()}):
            if self.is_leased(tp):  # since it was planned
                continue
            try:
                with self.reserve(tp):
                    order = await self._topics.on_writer(partial(self._order, looks[tp]))
                    if not dry:
                        order = await self._grant(looks[tp], order)
            except CordwoodError as error:  # the other orders are still given out
                await self._cannot_order(looks[tp], error)
                continue
            orders.append(order)
        return orders

    async def _cannot_order(self, look: CompactionCheck, error: CordwoodError) -> None:
        """Quarantine a partition that cannot be read, unless it was deleted in the meantime."""
        if self._store.is_live(look.partition):
            await self._note_failure(look.partition.tp, str(error))

    async def _grant(
        self, look: CompactionCheck, order: api.CompactionOrder
    ) -> api.CompactionOrder:
        """Add each segment's sha256 and a lease token to the order, and store the lease."""
        partition, inputs, plan = look
        hashes = await self._swaps.in_verifying(
            partial(self._store.segments.hash_partition, partition)
        )
        token = secrets.token_hex(16)
        self._leases[partition.tp] = SwapOrder(
            token=token,
            until_ms=self._clock.now_ms() + LEASE_MS,
            tp=partition.tp,
            topic_id=order.topic_id,
            segments=plan.clean + plan.dirty,
            hashes=hashes,
            bound=plan.bound,
            now_ms=inputs.now_ms,
            delete_retention_ms=inputs.config.delete_retention_ms,
            passed_end=watermark(inputs.readers),
            codec=topic_codec(inputs.config),
            aborted=order.aborted,
            producers=order.producers,
        )
        segments = tuple(
            msgspec.structs.replace(segment, sha256=hashes.get(segment.base_offset))
            for segment in order.segments
        )
        return msgspec.structs.replace(order, segments=segments, lease=token)

    def _renewed(self, tp: TopicPartition, token: str) -> SwapOrder:
        """Return the order with this token, after extending its lease by the full ``LEASE_MS``."""
        order = self._leases.get(tp)
        now_ms = self._clock.now_ms()
        if order is None or order.until_ms <= now_ms:
            raise StaleManifest(
                f"the compaction order for {tp} has expired or was lost in a restart; run the job "
                "again"
            )
        if not secrets.compare_digest(order.token.encode(), token.encode()):
            raise StaleManifest(
                f"another job has taken over the compaction of {tp}; this one must stop"
            )
        self._leases[tp] = replace(order, until_ms=now_ms + LEASE_MS)
        return order

    def _holder(self, tp: TopicPartition) -> str | None:
        """Return the token of the lease that is valid now, or None; a restart ends all leases."""
        lease = self._leases.get(tp)
        return lease.token if lease and lease.until_ms > self._clock.now_ms() else None

    def is_leased(self, tp: TopicPartition) -> bool:
        """Return whether a job, or the broker itself, may replace segments of the partition now."""
        return tp in self._reserved or self._holder(tp) is not None

    @contextmanager
    def reserve(self, tp: TopicPartition) -> Iterator[None]:
        """Let nobody else replace segments meanwhile; ``StaleManifest`` if somebody may already."""
        if self.is_leased(tp):
            raise StaleManifest(f"another job may replace segments of {tp}; try again later")
        self._reserved.add(tp)
        try:
            yield
        finally:
            self._reserved.discard(tp)

    def _end_lease(self, tp: TopicPartition, token: str) -> bool:
        """End the order with this token; False if it is not the partition's latest order."""
        order = self._leases.get(tp)
        if order is None or order.token != token:
            return False
        del self._leases[tp]
        return True

    def _cut(self, partition: Partition) -> None:
        self._store.segments.roll(partition, RollReason.DEMAND)

    def _order(self, look: CompactionCheck) -> api.CompactionOrder:
        """Build the order; runs on the writer thread, which owns the producer state."""
        partition, inputs, plan = look
        segments = plan.clean + plan.dirty
        return api.CompactionOrder(
            *msgspec.structs.astuple(describe(look)),
            topic_id=self._store.topic(partition.tp.topic).id,
            data=str(self._store.data.absolute()),
            identity=DirectoryIdentity(*self._store.directory.identity),
            config=overrides(partition.config),
            now_ms=inputs.now_ms,
            bound=plan.bound,
            segments=tuple(_ordered(each) for each in segments),
            readers=dict(inputs.readers),
            aborted=tuple(partition.aborted(segments[0].base_offset, plan.bound)),
            producers=tuple(
                (producer_id, each.epoch, each.sent[-1].last_offset if each.sent else -1)
                for producer_id, each, _ in partition.producers.active()
            ),
        )

    # --- results ------------------------------------------------------------------------------

    async def finish(
        self,
        tp: TopicPartition,
        topic_id: str,
        jobs: Sequence[str],
        state: CleanerState,
        lease: str = "",
    ) -> None:
        """Apply the swaps of a pass, lowest offsets first, and record how far compaction has come.

        The order matters: a tombstone may be removed only after every older value it hides. A
        report that is repeated while the first is still being processed waits for it.
        """
        async with self._finishing.setdefault(tp, asyncio.Lock()):
            await self._finish(tp, topic_id, jobs, state, lease)

    async def _finish(
        self,
        tp: TopicPartition,
        topic_id: str,
        jobs: Sequence[str],
        new: CleanerState,
        lease: str,
    ) -> None:
        self._check_state(tp, topic_id, new)
        if self._is_done(tp, jobs, new):  # a report may arrive twice
            self._end_lease(tp, lease)
            return
        order = self._renewed(tp, lease)
        try:
            await self._apply(order, jobs, new)
        except StaleManifest:  # the log changed in the meantime; the job is not at fault
            raise
        except CordwoodError as error:
            await self.fail(tp, str(error), lease)
            raise
        finally:
            self._end_lease(tp, lease)
        self._report_state(tp, new)
        logger.info(
            "compaction.finished partition=%s clean_end=%d freed_bytes=%d swaps=%d",
            tp, new.clean_end, new.last_freed_bytes, len(jobs),
        )  # fmt: skip

    async def _apply(self, order: SwapOrder, jobs: Sequence[str], new: CleanerState) -> None:
        tp = order.tp
        if new.clean_end != order.bound:
            raise InvalidManifest(
                f"{tp} is to be compacted up to offset {order.bound}, not {new.clean_end}"
            )
        self._check_policy(order)
        if not jobs:
            await self._remember(tp, new)
            return
        act = partial(verify_pass, self._store, order, tuple(jobs), self._passed_end(tp))
        verified, proof = await self._swaps.in_verifying(act)
        try:
            states = [each.manifest.verified.get("cleaner") for each in verified]
            if states[:-1] != [None] * (len(jobs) - 1) or parse_state(states[-1] or {}) != new:
                raise InvalidManifest(f"{tp}: the manifests and the report disagree on its state")
            for each in verified:
                self._check_policy(order)
                if proof.tombstones_end > self._passed_end(tp):
                    raise StaleManifest(
                        f"{tp}: a reader was reset to an earlier offset in the meantime; run the "
                        "job again"
                    )
                await self._swaps.swap(each)
        finally:
            await self._swaps.in_verifying(partial(self._store.segments.release_jobs, verified))

    def _check_policy(self, order: SwapOrder) -> None:
        live = self._store.topic(order.tp.topic)
        check_policy(order, live.id, live.config, self._clock.now_ms())

    def _passed_end(self, tp: TopicPartition) -> int:
        return watermark(self._metadata.readers.registered_positions(tp))

    def _is_done(self, tp: TopicPartition, jobs: Sequence[str], new: CleanerState) -> bool:
        """Return whether this same report was applied before."""
        if self._cluster.cleaner(tp) != new:
            return False
        history = self._cluster.replaced_segments(tp)
        return set(jobs) <= {text.rsplit("/", 2)[1] for text, _ in history}

    def _check_state(self, tp: TopicPartition, topic_id: str, new: CleanerState) -> None:
        """Raise ``StaleManifest`` if the log is not the one that the job compacted."""
        partition, live = self._store.partition(tp), self._store.topic(tp.topic)
        if live.id != topic_id:
            raise StaleManifest(
                f"topic {tp.topic} was deleted and created again; run the job again"
            )
        if not 0 <= new.clean_end <= partition.segments()[-1].base_offset:
            raise StaleManifest(
                f"{tp} has no sealed segment that ends at offset {new.clean_end}; run the job again"
            )

    async def fail(self, tp: TopicPartition, error: str, lease: str = "") -> None:
        """Record that a pass failed; ignored unless ``lease`` is the partition's latest order."""
        if self._end_lease(tp, lease):
            await self._note_failure(tp, error)

    async def _note_failure(self, tp: TopicPartition, error: str) -> None:
        """Record the failure and postpone the next attempt, longer after each failure."""
        if tp.topic not in self._store.topics:
            return
        state = self._cluster.cleaner(tp)
        failures = state.failures + 1
        retry_ms = plan_retry(failures, self._clock.now_ms())
        failed = replace(state, failures=failures, retry_ms=retry_ms, error=error[:ERROR_CHARS_MAX])
        await self._remember(tp, failed)
        logger.error("compaction.failed partition=%s failures=%d error=%s", tp, failures, error)

    async def _remember(self, tp: TopicPartition, state: CleanerState) -> None:
        await self._metadata.run(self._cluster.put_cleaner, tp, state)
        self._report_state(tp, state)


def _ordered(segment: SegmentInfo) -> api.OrderedSegment:
    """The facts of a segment that a job needs; not everything the broker's own policies use."""
    return api.OrderedSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        records=segment.records,
        first_ms=segment.first_ms,
        newest_ms=segment.newest_ms,
        created_ms=segment.created_ms,
        state=segment.state.value,
    )


def describe(look: CompactionCheck) -> api.PartitionCompaction:
    """Return a partition's compaction state and plan as the API shows them."""
    partition, inputs, plan = look
    return api.PartitionCompaction(
        topic=partition.tp.topic,
        partition=partition.tp.partition,
        is_due=plan.rule is not None,
        rule=plan.rule.value if plan.rule else None,
        wait=plan.wait.value if plan.wait else None,
        explain=explain(plan, inputs),
        next_due_ms=plan.next_due_ms,
        dirty_ratio=round(plan.ratio, 4),
        clean_bytes=plan.clean_bytes,
        dirty_bytes=plan.dirty_bytes,
        clean_end=plan.clean_end,
        held_by=tuple(plan.held_by),
        records=sum(segment.records for segment in partition.segments()),
        state=inputs.state,
    )
