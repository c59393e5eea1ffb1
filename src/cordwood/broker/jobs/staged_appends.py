"""Append the staged parts of a delivery: check and number them, then store each exactly once.

A part belongs to the topic id that was recorded when the delivery was accepted. If that topic is
deleted, or replaced by another topic of the same name, the part is cancelled and its records are
counted: had it been stored a moment earlier, the deletion would have removed it. Any other failure
is raised once all appends have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from cordwood.batch.header import SEQUENCE_MODULUS, BatchHeader, parse_headers
from cordwood.broker.jobs import staged_parts
from cordwood.broker.produce import ProduceService
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import MIB
from cordwood.decide.delivery import DeliveryRecord, Part, chains_of, plan_appends
from cordwood.errors import BatchTooLarge, CordwoodError, QuarantinedDelivery
from cordwood.log.staging.area import JobFiles, StagingArea
from cordwood.log.write.partition import Partition
from cordwood.model import TopicPartition

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

DEAD_LETTER_BYTES_MAX: Final = 64 * MIB  # per batch: a dead letter is never too large
APPEND_BYTES: Final = 8 * MIB  # small parts of one partition are appended together up to this size
APPENDS_MAX: Final = 8  # partitions appended to concurrently, each buffering up to APPEND_BYTES
EPOCH: Final = 0  # constant, because a query's sequence numbers never restart


class StagedAppender:
    """Checks, numbers and appends the parts of deliveries."""

    def __init__(
        self,
        *,
        staging: StagingArea,
        topics: TopicService,
        produce: ProduceService,
        clock: Clock,
        background: Executor,
        dead_letter_topic: str,
        is_synced: bool,
        append_bytes: int = APPEND_BYTES,
    ) -> None:
        self._staging = staging
        self._topics = topics
        self._produce = produce
        self._clock = clock
        self._background = background
        self._dead_letter_topic = dead_letter_topic
        self._is_synced = is_synced  # fsync staged files before a delivery relies on them
        self.append_bytes = append_bytes
        self._append_slots = asyncio.Semaphore(APPENDS_MAX)

    # --- before a delivery is accepted ----------------------------------------------------------

    async def number(
        self, job: str, parts: Sequence[Part], numbers: dict[str, int]
    ) -> tuple[Part, ...]:
        """Check every staged byte and assign sequence numbers, continuing from ``numbers``."""
        return await self._in_background(self._number, job, parts, numbers) if parts else ()

    def _number(self, job: str, parts: Sequence[Part], numbers: dict[str, int]) -> tuple[Part, ...]:
        buffers = staged_parts.ReadBuffers()
        with self._staging.job(job) as files:
            numbered = [self._number_part(files, part, numbers, buffers) for part in parts]
            if self._is_synced:
                files.sync_names()
        if self._is_synced:
            self._staging.sync()
        return tuple(numbered)

    def _number_part(
        self,
        files: JobFiles,
        part: Part,
        numbers: dict[str, int],
        buffers: staged_parts.ReadBuffers,
    ) -> Part:
        partition = self._topics.get(part.topic).partition(part.partition)
        if self._is_synced:
            files.sync(part.file)
        data = buffers.read(files, [part])
        try:
            headers = self._produce.check(partition, data, self._bytes_max(partition))
        except BatchTooLarge as error:
            raise BatchTooLarge(
                f"topic {part.topic}: {error}; raise its max.message.bytes"
            ) from None
        records = sum(header.last_offset_delta + 1 for header in headers)
        where = str(partition.tp)
        sequence = numbers.get(where, 0)
        numbers[where] = sequence + records
        return part._replace(sequence=sequence, records=records, size_bytes=len(data))

    def _bytes_max(self, partition: Partition) -> int:
        limit = partition.config.max_message_bytes
        if partition.tp.topic == self._dead_letter_topic:
            return max(limit, DEAD_LETTER_BYTES_MAX)
        return limit

    # --- after a delivery is accepted -----------------------------------------------------------

    async def append(self, record: DeliveryRecord) -> Counter[str]:
        """Store the batches that the log lacks; returns the cancelled record count by topic."""
        cancelled: Counter[str] = Counter()
        chains = await self._in_background(chains_of, record.parts)
        await _all_of(self._append_chain(record, chain, cancelled) for chain in chains.values())
        for topic, records in cancelled.items():
            logger.warning(
                "delivery.cancelled topic=%s records=%d: the topic was deleted in the meantime",
                topic,
                records,
            )
        return cancelled

    async def pending(self, record: DeliveryRecord) -> Counter[TopicPartition]:
        """Count a delivery's unstored records by partition, without those of deleted topics."""
        missing: Counter[TopicPartition] = Counter()
        chains = await self._in_background(chains_of, record.parts)
        for tp, chain in chains.items():
            partition = await self._opened(record, chain[0])
            if partition is None:
                continue
            count = chain[-1].sequence + chain[-1].records - chain[0].sequence
            have = partition.producers.last_sequence(record.producer_id, EPOCH)
            if have is not None:
                ahead = (chain[0].sequence + count - 1 - have) % SEQUENCE_MODULUS
                count = min(count, ahead if ahead < SEQUENCE_MODULUS // 2 else 0)
            missing[tp] = count
        return missing

    async def _append_chain(
        self, record: DeliveryRecord, chain: Sequence[Part], cancelled: Counter[str]
    ) -> None:
        """Append the parts of one partition in order; a failure stops the parts after it."""
        async with self._append_slots:
            buffers = staged_parts.ReadBuffers()
            for run in plan_appends(chain, self.append_bytes):
                if not await self._append_run(record, run, buffers):
                    cancelled[run[0].topic] += sum(part.records for part in run)

    async def _append_run(
        self, record: DeliveryRecord, run: Sequence[Part], buffers: staged_parts.ReadBuffers
    ) -> bool:
        """Store one run of parts; False if their topic is gone."""
        partition = await self._opened(record, run[0])
        if partition is None:
            return False
        have = partition.producers.last_sequence(record.producer_id, EPOCH)
        if have is None:
            self._check_age(record, partition)

        def prepared() -> tuple[memoryview, list[BatchHeader]]:
            with self._staging.job(record.job) as files:
                data = buffers.read(files, run)
            staged_parts.stamp(data, record.producer_id, EPOCH, run[0].sequence)
            rest = staged_parts.without_stored(data, have)
            return rest, parse_headers(rest) if rest else []

        rest, headers = await self._in_background(prepared)
        try:
            if rest:  # its keys were checked when the delivery was accepted
                await self._produce.submit(
                    partition, rest, headers, strict=False, is_key_checked=True
                )
        except CordwoodError:
            if self._find(record, run[0]) is None:  # deleted while the append was running
                return False
            raise
        return True

    async def _opened(self, record: DeliveryRecord, part: Part) -> Partition | None:
        """Return ``_find``'s partition with its files open; only then its sequences are known."""
        if self._find(record, part) is None:
            return None
        return await self._topics.open_partition(part.topic, part.partition)

    def _find(self, record: DeliveryRecord, part: Part) -> Partition | None:
        """Return the partition a part was accepted for; None if its topic is gone or recreated."""
        topic = self._topics.all().get(part.topic)
        if topic is None or not record.unchanged(part.topic, topic.id):
            return None
        return topic.partition(part.partition)

    def _check_age(self, record: DeliveryRecord, partition: Partition) -> None:
        """Raise if the log has already expired the query's sequence numbers.

        Without them it is unknown which batches are stored.
        """
        age_ms = self._clock.now_ms() - record.accepted_ms
        if record.accepted_ms and age_ms > partition.config.producer_id_expiration_ms:
            raise QuarantinedDelivery(
                f"{partition.tp} keeps sequence numbers only for producer.id.expiration.ms, and "
                "this delivery is older: it is unknown which of its records are stored"
            )

    async def _in_background(self, act: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background, act, *arguments)


async def _all_of(acts: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run the coroutines concurrently; raise the first failure after all of them have ended."""
    for outcome in await asyncio.gather(*acts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
