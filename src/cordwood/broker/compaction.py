"""The desk for compaction: what is due and why, orders for jobs, and what came of them.

A job asks for orders (``begin``), works on the files by itself, and reports (``finish``, ``fail``).
Its staged segments come in through the gate like any swap, and how far compaction has come is
written down in the very transaction that ends the last of them. A partition is given out under a
lease that its job renews, and not again before the job reports or the lease ends. A job whose
partition was given to another is told so when it renews or reports, and is not let in; should two
meet all the same, the gate takes only one.

Decides nothing: ``decide.compaction`` does. A partition whose pass failed is left alone for a
while, is named in ``/readyz`` and in the metrics, and holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, NamedTuple

from cordwood.broker.gate import Gate
from cordwood.broker.topics import TopicDesk
from cordwood.clock import Clock
from cordwood.config import MINUTE_MS, overrides
from cordwood.decide.compaction import (
    CleanerState,
    CompactionFacts,
    CompactionPlan,
    due_first,
    encode_state,
    explain,
    parse_state,
    plan_compaction,
    plan_retry,
)
from cordwood.decide.roll import RollReason
from cordwood.errors import CordwoodError, InvalidManifest, PolicyViolation, StaleManifest
from cordwood.log.partition import Partition
from cordwood.log.store import Store
from cordwood.model import TopicPartition

LEASE_MS: Final = 5 * MINUTE_MS  # a job renews it; one that died leaves its partition so long
ERROR_CHARS_MAX: Final = 500

logger = logging.getLogger("cordwood.broker")


class Look(NamedTuple):
    """One partition as compaction sees it now."""

    partition: Partition
    facts: CompactionFacts
    plan: CompactionPlan


class Lease(NamedTuple):
    """Who works on a partition, and until when that holds, in the clock's milliseconds."""

    token: str
    until_ms: int


class CompactionDesk:
    """Compacted partitions as requests, jobs and metrics see them."""

    def __init__(
        self, store: Store, topics: TopicDesk, gate: Gate, clock: Clock, meta_thread: Executor
    ) -> None:
        self._store = store
        self._catalog = store.catalog
        self._topics = topics
        self._gate = gate
        self._clock = clock
        self._meta_thread = meta_thread
        self._leases: dict[TopicPartition, Lease] = {}

    # --- what there is to know ----------------------------------------------------------------

    def look(self, topic: str | None = None, *, demand: bool = False) -> list[Look]:
        """Every compacted partition, or those of one topic whatever its policy."""
        return [self._look(partition, demand) for partition in self._partitions(topic)]

    def _partitions(self, topic: str | None) -> Iterator[Partition]:
        if topic is not None:
            yield from self._topics.get(topic).online()
            return
        for live in list(self._store.topics.values()):
            if "compact" in live.config.cleanup_policy:
                yield from live.online()

    def _look(self, partition: Partition, demand: bool) -> Look:
        facts = self._facts(partition)
        return Look(partition, facts, plan_compaction(facts, demand=demand))

    def _facts(self, partition: Partition) -> CompactionFacts:
        *sealed, active = partition.segments()
        log_start = partition.log_start_offset
        now_ms = self._clock.now_ms()
        return CompactionFacts(
            sealed=tuple(segment for segment in sealed if segment.end_offset > log_start),
            active=active,
            log_start=log_start,
            last_stable=partition.last_stable_offset,
            state=self._catalog.cleaner(partition.tp),
            readers=self._catalog.registered_positions(partition.tp),
            config=partition.config,
            now_ms=now_ms,
            is_running=self._holder(partition.tp) is not None,
        )

    def quarantined(self) -> dict[TopicPartition, str]:
        """Partitions whose last pass failed, and why."""
        return {
            partition.tp: state.error
            for partition in self._partitions(None)
            if (state := self._catalog.cleaner(partition.tp)).failures
        }

    # --- orders -------------------------------------------------------------------------------

    async def begin(
        self, topic: str | None = None, *, demand: bool = False, dry: bool = False
    ) -> list[dict[str, Any]]:
        """Orders for what is due, the most dirty first; ``demand`` cuts first and takes it all.

        A ``dry`` order is for looking only: nothing is cut, and the partition may be given out.
        """
        if topic is not None and "compact" not in self._topics.get(topic).config.cleanup_policy:
            raise PolicyViolation(
                f"topic {topic} is not compacted; set its cleanup.policy to compact first"
            )
        if demand and topic is not None and not dry:
            for partition in self._topics.get(topic).online():
                await self._topics.on_writer(partial(self._cut, partition))
        looks = {look.partition.tp: look for look in self.look(topic, demand=demand)}
        for tp, look in looks.items():
            if look.plan.is_reset:
                state = replace(look.facts.state, clean_end=look.plan.clean_end, horizons=())
                await self._remember(tp, state)
        orders = []
        for tp in due_first({tp: look.plan for tp, look in looks.items()}):
            order = await self._topics.on_writer(partial(self._order, looks[tp]))
            if not dry:
                order["lease"] = secrets.token_hex(8)
                self._grant(tp, order["lease"])
            orders.append(order)
        return orders

    def renew(self, tp: TopicPartition, token: str) -> None:
        """The job still works on it; raises ``StaleManifest`` when another does."""
        self._check_holder(tp, token)
        self._grant(tp, token)

    def _grant(self, tp: TopicPartition, token: str) -> None:
        self._leases[tp] = Lease(token, self._clock.now_ms() + LEASE_MS)

    def _holder(self, tp: TopicPartition) -> str | None:
        """Whose lease holds now; after a restart, nobody's until it is renewed."""
        lease = self._leases.get(tp)
        return lease.token if lease and lease.until_ms > self._clock.now_ms() else None

    def _check_holder(self, tp: TopicPartition, token: str) -> None:
        if self._holder(tp) not in {None, token}:
            raise StaleManifest(f"{tp} was given to another job meanwhile; this one must stop")

    def _end_lease(self, tp: TopicPartition, token: str) -> None:
        if self._holder(tp) in {None, token}:
            self._leases.pop(tp, None)

    def _cut(self, partition: Partition) -> None:
        self._store.roll(partition, RollReason.DEMAND)

    def _order(self, look: Look) -> dict[str, Any]:
        """On the writer thread, as producers are its own."""
        partition, facts, plan = look
        taken = plan.clean + plan.dirty
        tp = partition.tp
        start = taken[0].base_offset
        return {
            **describe(look),
            "topic_id": self._store.topic(tp.topic).id,
            "data": str(self._store.data.absolute()),
            "config": overrides(partition.config),
            "now_ms": facts.now_ms,
            "bound": plan.bound,
            "segments": [_segment(segment) for segment in taken],
            "readers": dict(facts.readers),
            "aborted": [list(entry) for entry in partition.aborted(start, plan.bound)],
            "producers": [
                [
                    producer_id,
                    producer.epoch,
                    producer.sent[-1].last_offset if producer.sent else -1,
                ]
                for producer_id, producer, _ in partition.producers.active()
            ],
        }

    # --- results ------------------------------------------------------------------------------

    async def finish(
        self,
        tp: TopicPartition,
        topic_id: str,
        jobs: Sequence[str],
        state: Mapping[str, Any],
        lease: str = "",
    ) -> None:
        """Let a pass's swaps in, lowest offsets first, and remember how far it has come.

        The order matters: a tombstone may go only after every older value it hides.
        """
        self._check_holder(tp, lease)
        self._grant(tp, lease)
        try:
            new = self._checked(tp, topic_id, state)
            await self._apply(tp, jobs, new)
        except StaleManifest:  # the log moved on under the job: no fault of anybody
            raise
        except CordwoodError as error:
            await self.fail(tp, str(error), lease)
            raise
        finally:
            self._end_lease(tp, lease)
        logger.info(
            "compaction.finished partition=%s clean_end=%d freed_bytes=%d swaps=%d",
            tp, new.clean_end, new.last_freed_bytes, len(jobs),
        )  # fmt: skip

    async def _apply(self, tp: TopicPartition, jobs: Sequence[str], new: CleanerState) -> None:
        if not jobs:
            await self._remember(tp, new)
        for job in jobs:
            try:
                await self._gate.swap(job)
            except InvalidManifest:
                if not self._is_applied(tp, job):  # a report may come twice
                    raise
        if self._catalog.cleaner(tp) != new:
            raise StaleManifest(f"{tp}: another pass came between; run the job again")

    def _is_applied(self, tp: TopicPartition, job: str) -> bool:
        history = self._catalog.replaced_segments(tp)
        return any(text.rsplit("/", 2)[1] == job for text, _ in history)

    def _checked(self, tp: TopicPartition, topic_id: str, state: Mapping[str, Any]) -> CleanerState:
        """What a job wants remembered, if it can be true."""
        partition, live = self._store.partition(tp), self._store.topic(tp.topic)
        if live.id != topic_id:
            raise StaleManifest(f"topic {tp.topic} was deleted and created again; run it again")
        try:
            new = parse_state(state)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidManifest(f"compaction of {tp}: {error}") from None
        if not 0 <= new.clean_end <= partition.segments()[-1].base_offset:
            raise StaleManifest(f"{tp} has no sealed offset {new.clean_end}; run it again")
        return new

    async def fail(self, tp: TopicPartition, error: str, lease: str = "") -> None:
        """A pass failed: leave the partition alone for a while, longer each time."""
        self._end_lease(tp, lease)
        if tp.topic not in self._store.topics:
            return
        state = self._catalog.cleaner(tp)
        failures = state.failures + 1
        retry_ms = plan_retry(failures, self._clock.now_ms())
        failed = replace(state, failures=failures, retry_ms=retry_ms, error=error[:ERROR_CHARS_MAX])
        await self._remember(tp, failed)
        logger.error("compaction.failed partition=%s failures=%d error=%s", tp, failures, error)

    def release(self, tp: TopicPartition, lease: str = "") -> None:
        """A job lets a partition go without a result; another's it leaves alone."""
        self._end_lease(tp, lease)

    async def _remember(self, tp: TopicPartition, state: CleanerState) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, self._catalog.put_cleaner, tp, state)


def describe(look: Look) -> dict[str, Any]:
    """A partition's state and plan, as the API tells them."""
    partition, facts, plan = look
    return {
        "topic": partition.tp.topic,
        "partition": partition.tp.partition,
        "is_due": plan.rule is not None,
        "rule": plan.rule.value if plan.rule else None,
        "wait": plan.wait.value if plan.wait else None,
        "explain": explain(plan, facts),
        "next_due_ms": plan.next_due_ms,
        "dirty_ratio": round(plan.ratio, 4),
        "clean_bytes": plan.clean_bytes,
        "dirty_bytes": plan.dirty_bytes,
        "clean_end": plan.clean_end,
        "held_by": list(plan.held_by),
        "records": sum(segment.records for segment in partition.segments()),
        "state": encode_state(facts.state),
    }


def _segment(segment: Any) -> dict[str, Any]:
    return {**asdict(segment), "state": segment.state.value}
