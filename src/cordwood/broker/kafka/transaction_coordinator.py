"""Transaction coordinator: carries out the instructions of ``decide.transactions``, durably.

A transaction record is durable before any client hears of it. The record that ends a committed
transaction and the cursors it moves are one write. Transaction markers go through the writer like
any batch, so they follow every record of their transaction. A start finishes transactions that were
decided before the restart.

Times are wall-clock times, because transaction records outlive the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_marker
from cordwood.broker.kafka.coordinator import AWAY, Coordinator
from cordwood.broker.kafka.group_coordinator import GroupCoordinator, cursors_of
from cordwood.broker.produce import ProduceService
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.decide.instructions import CodeReply, Forget, Reply, SetTimer
from cordwood.decide.transactions import messages as m
from cordwood.decide.transactions.directory import TransactionDirectory
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.log.write.partition import Appended, Partition
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.broker")

COORDINATOR_EPOCH: Final = 0  # markers carry the coordinator's epoch; a single broker has only one
MARKED_AT_ONCE: Final = 1_000  # partitions marked concurrently; the next follow once these are done
TURN_MARKERS: Final = 50


class TransactionCoordinator(Coordinator[m.Event, m.Instruction]):
    """Every transactional id of this broker. Used only on the event loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        metadata: AsyncMetadata,
        topics: TopicService,
        produce: ProduceService,
        groups: GroupCoordinator,
    ) -> None:
        super().__init__(clock.now_ms)
        self.transactions = TransactionDirectory(m.TransactionSettings.from_config(config))
        self._clock = clock
        self._metadata = metadata
        self._state = metadata.readers
        self._topics = topics
        self._produce = produce
        self._groups = groups
        self._marking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Restore every id; transactions already decided are carried to their end."""
        for transactional_id, txn_record in list(self._state.transactions.items()):
            self._keyed_queue.put(
                transactional_id, self.transactions.restore(transactional_id, txn_record)
            )

    async def stop(self) -> None:
        """Finish instructions in progress; the next start writes the missing markers."""
        self.drain()
        for task in self._marking:
            task.cancel()
        await self.idle()

    async def idle(self) -> None:
        """Wait until no instruction and no marker is in progress."""
        await super().idle()
        while self._marking:
            await asyncio.wait(self._marking)
            await super().idle()

    # --- events -----------------------------------------------------------------------------

    async def new_producer_id(self) -> int:
        """Return an unused producer id; it is durable before it is returned."""
        return await self._metadata.run(self._state.new_producer_id)

    def _decide(self, transactional_id: str, event: m.Event) -> list[m.Instruction]:
        return self.transactions.handle(transactional_id, event, self._now_ms())

    def _refusal(self, event: m.Event) -> m.InitReply | CodeReply:
        return m.InitReply(AWAY) if isinstance(event, m.InitProducer) else CodeReply(AWAY)

    # --- instructions -----------------------------------------------------------------------

    async def _carry_out(
        self, transactional_id: str, instructions: Sequence[m.Instruction]
    ) -> None:
        for instruction in instructions:
            try:
                await self._do(transactional_id, instruction)
            except CordwoodError as error:
                logger.warning("transaction.save_failed id=%s error=%s", transactional_id, error)
                self._fall_back(transactional_id)
                return

    async def _do(self, transactional_id: str, instruction: m.Instruction) -> None:
        match instruction:
            case Reply() | SetTimer() | Forget():
                self._apply(transactional_id, instruction)
            case m.Persist():
                await self._persist(transactional_id, instruction)
            case m.WriteMarkers():
                self._begin(self._mark(transactional_id, instruction))
            case m.Erase():
                await self._metadata.run(self._state.delete_transaction, transactional_id)

    async def _persist(self, transactional_id: str, persist: m.Persist) -> None:
        for group_id, offsets in persist.cursors:
            await self._groups.register(group_id, offsets)
        await self._metadata.run(self._put, transactional_id, persist)

    def _put(self, transactional_id: str, persist: m.Persist) -> None:
        """Store the record; runs off the event loop, as a large one takes long to encode."""
        cursors: dict[ReaderPartition, Cursor] = {}
        for group_id, offsets in persist.cursors:
            cursors |= cursors_of(group_id, offsets, self._clock)
        self._state.put_transaction(transactional_id, persist.txn_record, cursors)

    def _fall_back(self, transactional_id: str) -> None:
        """Refuse all waiting requests and restore the last record: memory is ahead of the disk."""
        self._keyed_queue.drop_waiting(transactional_id)
        self.timers.cancel(transactional_id)
        self._refuse_all(transactional_id)
        txn_record = self._state.transactions.get(transactional_id)
        if txn_record is None:
            self.transactions.drop(transactional_id)
        else:
            instructions = self.transactions.restore(transactional_id, txn_record)
            if any(isinstance(each, m.WriteMarkers) for each in instructions):
                self._handle(transactional_id, m.MarkersFailed())  # later: the disk has just failed
            else:
                self._keyed_queue.put(transactional_id, instructions)

    # --- markers ----------------------------------------------------------------------------

    def _begin(self, marking: Coroutine[Any, Any, None]) -> None:
        """Write markers in a task; requests in the meantime are told that the transaction ends."""
        task = asyncio.create_task(marking)
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, transactional_id: str, wanted: m.WriteMarkers) -> None:
        marker = encode_marker(
            wanted.commit,
            producer_id=wanted.producer_id,
            producer_epoch=wanted.producer_epoch,
            coordinator_epoch=COORDINATOR_EPOCH,
            timestamp_ms=self._clock.now_ms(),
        )
        written = True
        for start in range(0, len(wanted.partitions), MARKED_AT_ONCE):
            some = wanted.partitions[start : start + MARKED_AT_ONCE]
            written &= await self._append_all(some, marker)
        self._handle(transactional_id, m.MarkersWritten() if written else m.MarkersFailed())

    async def _append_all(self, partitions: Sequence[TopicPartition], marker: bytes) -> bool:
        """Return whether the marker is durable in all of these partitions."""
        appends: list[asyncio.Future[bool]] = []
        try:
            async for tp in RequestSlices(TURN_MARKERS).of(partitions):
                append = asyncio.ensure_future(self._append(tp, marker))
                appends.append(append)  # at once: a cancellation must reach every started append
            return all(await asyncio.gather(*appends))
        except asyncio.CancelledError:
            for begun in appends:
                begun.cancel()
            raise

    async def _append(self, tp: TopicPartition, marker: bytes) -> bool:
        """Return whether the marker is durable; a deleted topic needs none."""
        try:
            partition = self._topics.get(tp.topic).partition(tp.partition)
            await self._submit(partition, marker)
        except UnknownTopic:
            return True
        except CordwoodError as error:
            logger.warning("transaction.marker_failed partition=%s error=%s", tp, error)
            return False
        return True

    def append_marker(
        self,
        partition: Partition,
        *,
        commit: bool,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> asyncio.Future[Appended]:
        """Append a marker that ends a transaction of which this coordinator knows nothing."""
        marker = encode_marker(
            commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        return self._submit(partition, marker)

    def _submit(self, partition: Partition, marker: bytes) -> asyncio.Future[Appended]:
        data = bytearray(marker)
        return self._produce.submit(partition, data, parse_headers(data))

    # --- lookups ----------------------------------------------------------------------------

    def unstable(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose committed offset depends on an open transaction."""
        return self.transactions.unstable(group_id, partitions)
