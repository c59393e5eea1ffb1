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
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_marker
from cordwood.broker.kafka.group_coordinator import GroupCoordinator, Token, cursors_of
from cordwood.broker.kafka.keyed_queue import KeyedQueue, Timers
from cordwood.broker.kafka.time_slices import RequestSlices
from cordwood.broker.produce import ProduceService
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.transactions import (
    Erase,
    Event,
    Forget,
    InitProducer,
    InitReply,
    Instruction,
    MarkersFailed,
    MarkersWritten,
    Persist,
    Reply,
    SetTimer,
    Tick,
    TransactionDirectory,
    TransactionSettings,
    TxnReply,
    WriteMarkers,
)
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.metadata.catalog import Catalog
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.broker")

COORDINATOR_EPOCH: Final = 0  # markers carry the coordinator's epoch; a single broker has only one
MARKED_AT_ONCE: Final = 1_000  # partitions marked concurrently; the next follow once these are done
TURN_MARKERS: Final = 50
AWAY: Final = Code.COORDINATOR_NOT_AVAILABLE


class TransactionCoordinator:
    """Every transactional id of this broker. Used only on the event loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        catalog: Catalog,
        topics: TopicService,
        produce: ProduceService,
        groups: GroupCoordinator,
        meta_thread: Executor,
    ) -> None:
        self.transactions = TransactionDirectory(TransactionSettings.from_config(config))
        self._clock = clock
        self._catalog = catalog
        self._topics = topics
        self._produce = produce
        self._groups = groups
        self._meta_thread = meta_thread
        self._keyed_queue = KeyedQueue(self._carry_out)
        self.timers = Timers(clock.now_ms, self._tick)
        self._asked: dict[Token, tuple[str, Event]] = {}
        self._marking: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        """Restore every id; transactions already decided are carried to their end."""
        for transactional_id, txn_record in list(self._catalog.transactions.items()):
            self._keyed_queue.put(
                transactional_id, self.transactions.restore(transactional_id, txn_record)
            )

    def drain(self) -> None:
        """Refuse waiting and new requests with a retriable error, from now on."""
        self._stopping = True
        self.timers.cancel_all()
        for token in list(self._asked):
            self._refuse(token)

    async def stop(self) -> None:
        """Finish instructions in progress; the next start writes the missing markers."""
        self.drain()
        for task in self._marking:
            task.cancel()
        await self.idle()

    async def idle(self) -> None:
        """Wait until no instruction and no marker is in progress."""
        await self._keyed_queue.idle()
        while self._marking:
            await asyncio.wait(self._marking)
            await self._keyed_queue.idle()

    # --- events -----------------------------------------------------------------------------

    async def ask(self, transactional_id: str, event: Callable[[Token], Event]) -> Any:
        """Handle the event made with a token; returns its answer once the outcome is durable."""
        token: Token = asyncio.get_running_loop().create_future()
        asked = event(token)
        self._asked[token] = transactional_id, asked
        if self._stopping:
            self._refuse(token)
        else:
            self._handle(transactional_id, asked)
        return await token

    async def new_producer_id(self) -> int:
        """Return an unused producer id; it is durable before it is returned."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._meta_thread, self._catalog.new_producer_id)

    def _handle(self, transactional_id: str, event: Event) -> None:
        instructions = self.transactions.handle(transactional_id, event, self._clock.now_ms())
        self._keyed_queue.put(transactional_id, instructions)

    def _tick(self, transactional_id: str) -> None:
        self._handle(transactional_id, Tick())

    # --- instructions -----------------------------------------------------------------------

    async def _carry_out(self, transactional_id: str, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            try:
                await self._do(transactional_id, instruction)
            except CordwoodError as error:
                logger.warning("transaction.unsaved id=%s error=%s", transactional_id, error)
                self._fall_back(transactional_id)
                return

    async def _do(self, transactional_id: str, instruction: Instruction) -> None:
        match instruction:
            case Reply():
                assert isinstance(instruction.token, asyncio.Future)
                self._end(instruction.token, instruction.answer)
            case Persist():
                await self._persist(transactional_id, instruction)
            case WriteMarkers():
                self._begin(self._mark(transactional_id, instruction))
            case SetTimer():
                if not self._stopping:
                    self.timers.set(transactional_id, instruction.at_ms)
            case Erase():
                await self._in_meta(self._catalog.delete_transaction, transactional_id)
            case Forget():
                self.timers.cancel(transactional_id)

    async def _persist(self, transactional_id: str, persist: Persist) -> None:
        for group_id, offsets in persist.cursors:
            await self._groups.register(group_id, offsets)
        await self._in_meta(self._put, transactional_id, persist)

    def _put(self, transactional_id: str, persist: Persist) -> None:
        """Store the record; runs on the metadata thread, as a large one takes long to encode."""
        cursors: dict[ReaderPartition, Cursor] = {}
        for group_id, offsets in persist.cursors:
            cursors |= cursors_of(group_id, offsets, self._clock)
        self._catalog.put_transaction(transactional_id, persist.txn_record, cursors)

    def _fall_back(self, transactional_id: str) -> None:
        """Refuse all waiting requests and restore the last record: memory is ahead of the disk."""
        self._keyed_queue.drop_waiting(transactional_id)
        self.timers.cancel(transactional_id)
        for token, (asked_id, _) in list(self._asked.items()):
            if asked_id == transactional_id:
                self._refuse(token)
        txn_record = self._catalog.transactions.get(transactional_id)
        if txn_record is None:
            self.transactions.drop(transactional_id)
        else:
            instructions = self.transactions.restore(transactional_id, txn_record)
            if any(isinstance(each, WriteMarkers) for each in instructions):
                self._handle(transactional_id, MarkersFailed())  # later: the disk has just failed
            else:
                self._keyed_queue.put(transactional_id, instructions)

    def _refuse(self, token: Token) -> None:
        _, asked = self._asked[token]
        self._end(token, InitReply(AWAY) if isinstance(asked, InitProducer) else TxnReply(AWAY))

    def _end(self, token: Token, answer: InitReply | TxnReply) -> None:
        """Answer a token once; a refused token may get a second answer, which is ignored."""
        if self._asked.pop(token, None) is not None and not token.done():
            token.set_result(answer)

    async def _in_meta(self, change: Callable[..., None], *arguments: Any) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, change, *arguments)

    # --- markers ----------------------------------------------------------------------------

    def _begin(self, marking: Coroutine[Any, Any, None]) -> None:
        """Write markers in a task; requests in the meantime are told that the transaction ends."""
        task = asyncio.create_task(marking)
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, transactional_id: str, wanted: WriteMarkers) -> None:
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
        self._handle(transactional_id, MarkersWritten() if written else MarkersFailed())

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
        data = bytearray(marker)
        try:
            partition = self._topics.get(tp.topic).partition(tp.partition)
            await self._produce.submit(partition, data, parse_headers(data))
        except UnknownTopic:
            return True
        except CordwoodError as error:
            logger.warning("transaction.unmarked partition=%s error=%s", tp, error)
            return False
        return True

    # --- lookups ----------------------------------------------------------------------------

    def unstable(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose committed offset depends on an open transaction."""
        return self.transactions.unstable(group_id, partitions)
