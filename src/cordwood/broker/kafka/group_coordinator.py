"""Group coordinator: carries out the instructions of ``decide.groups``, durably.

Committed offsets are the catalog's cursors, the same that line readers move. A group that commits
on a topic whose cleanup policy has ``consume`` is registered there, so that RECLAIM waits for it.
After a restart every stored group, or group with cursors, exists again in state Empty.

Times are monotonic, so that setting the system clock expels no member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from cordwood.broker.kafka.keyed_queue import KeyedQueue, Timers
from cordwood.broker.kafka.time_slices import RequestSlices
from cordwood.broker.readers import ReaderService
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.groups import (
    DeleteGroup,
    DeleteReply,
    EraseGroup,
    EraseOffsets,
    Event,
    Forget,
    GroupDirectory,
    GroupSettings,
    Instruction,
    PersistGroup,
    PersistOffsets,
    Reply,
    SetTimer,
    Tick,
    is_expired,
    refusal,
)
from cordwood.decide.groups.messages import Answer
from cordwood.decide.offsets import PartitionOffset
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.metadata.catalog import Catalog
from cordwood.metadata.keys import Cursor, ReaderPartition

logger = logging.getLogger("cordwood.broker")

EXPIRY_CHECK_S: Final = 600.0
AWAY: Final = Code.COORDINATOR_NOT_AVAILABLE  # every client retries after this code

Token = asyncio.Future[Any]  # resolves with the ``Answer`` type of its event


class GroupCoordinator:
    """Every group of this broker. Used only on the event loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        catalog: Catalog,
        topics: TopicService,
        readers: ReaderService,
        meta_thread: Executor,
    ) -> None:
        self.groups = GroupDirectory(GroupSettings.from_config(config))
        self._retention_ms = config.offsets_retention_ms
        self._clock = clock
        self._catalog = catalog
        self._topics = topics
        self._readers = readers
        self._meta_thread = meta_thread
        self._keyed_queue = KeyedQueue(self._carry_out)
        self.timers = Timers(self._now_ms, self._tick)
        self._asked: dict[Token, Event] = {}
        self._stopping = False
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Restore the groups from before the restart, and start expiring idle ones."""
        self.adopt_all()
        self._sweeper = asyncio.create_task(self._sweep())

    def drain(self) -> None:
        """Refuse waiting and new requests with a retriable error, from now on."""
        self._stopping = True
        self.timers.cancel_all()
        for token in list(self._asked):
            self._refuse(token)

    async def stop(self) -> None:
        """Finish instructions in progress."""
        self.drain()
        if self._sweeper:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self.idle()

    async def idle(self) -> None:
        """Wait until no instruction is in progress."""
        await self._keyed_queue.idle()

    # --- events -----------------------------------------------------------------------------

    async def ask(self, group_id: str, event: Callable[[Token], Event]) -> Any:
        """Handle the event made with a token; returns its answer once the outcome is durable."""
        token: Token = asyncio.get_running_loop().create_future()
        asked = event(token)
        self._asked[token] = asked
        if self._stopping:
            self._refuse(token)
        else:
            self.adopt(group_id)
            self._handle(group_id, asked)
        return await token

    def _handle(self, group_id: str, event: Event) -> None:
        self._keyed_queue.put(group_id, self.groups.handle(group_id, event, self._now_ms()))

    def _tick(self, group_id: str) -> None:
        self._handle(group_id, Tick())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # --- groups known by their cursors ------------------------------------------------------

    def adopt(self, group_id: str) -> None:
        """Restore a stored group or one with cursors, perhaps moved by the line protocol."""
        if group_id in self.groups or group_id in self._keyed_queue:
            return
        has_offsets = self._catalog.has_cursors(group_id)
        if has_offsets or group_id in self._catalog.groups:
            self._restore(group_id, has_offsets=has_offsets)

    def adopt_all(self) -> None:
        """Restore every such group."""
        for group_id in self.stored():
            self.adopt(group_id)

    def stored(self) -> list[str]:
        """Return the groups that ``adopt`` would find in the catalog."""
        return [*self._catalog.readers_with_cursors(), *list(self._catalog.groups)]

    def _restore(self, group_id: str, *, has_offsets: bool) -> None:
        instructions = self.groups.restore(
            group_id,
            protocol_type=self._catalog.groups.get(group_id, ""),
            has_offsets=has_offsets,
            now_ms=self._now_ms(),
        )
        self._keyed_queue.put(group_id, instructions)

    # --- instructions -----------------------------------------------------------------------

    async def _carry_out(self, group_id: str, instructions: Sequence[Instruction]) -> None:
        """Carry out in order; after a failure timers are still set, and replies become refusals."""
        asked_for = any(
            isinstance(each, Reply) and isinstance(each.answer, DeleteReply)
            for each in instructions
        )
        failed = False
        for instruction in instructions:
            match instruction:
                case Reply():
                    self._reply(instruction, failed=failed)
                case SetTimer():
                    if not self._stopping:
                        self.timers.set(group_id, instruction.at_ms)
                case Forget():
                    self.timers.cancel(group_id)
                case _ if not failed:
                    try:
                        await self._persist(group_id, instruction, erase_cursors=asked_for)
                    except CordwoodError as error:
                        logger.warning("group.unsaved group=%s error=%s", group_id, error)
                        failed = True

    async def _persist(
        self, group_id: str, instruction: Instruction, *, erase_cursors: bool
    ) -> None:
        match instruction:
            case PersistOffsets():
                await self.register(group_id, instruction.offsets)
                await self._readers.commit(cursors_of(group_id, instruction.offsets, self._clock))
            case PersistGroup():
                await self._in_meta(self._catalog.put_group, group_id, instruction.protocol_type)
            case EraseOffsets():
                partitions = instruction.partitions
                await self._in_meta(self._catalog.release_cursors, group_id, partitions)
            case EraseGroup():
                # A group forgotten without a DeleteGroup request has committed nothing. Any
                # cursors of its name belong to a line reader and stay.
                erase = self._catalog.erase_group if erase_cursors else self._catalog.forget_group
                await self._in_meta(erase, group_id)

    def _reply(self, reply: Reply, *, failed: bool) -> None:
        assert isinstance(reply.token, asyncio.Future)
        if failed:
            self._refuse(reply.token)
        else:
            self._end(reply.token, reply.answer)

    def _refuse(self, token: Token) -> None:
        asked = self._asked.get(token)
        if asked is not None and not isinstance(asked, Tick):
            self._end(token, refusal(asked, AWAY))

    def _end(self, token: Token, answer: Answer) -> None:
        """Answer a token once; ``drain`` may have answered it before."""
        if self._asked.pop(token, None) is not None and not token.done():
            token.set_result(answer)

    async def register(self, group_id: str, offsets: Sequence[PartitionOffset]) -> None:
        """Register the group on those topics whose policy makes RECLAIM wait for it."""
        async for topic in RequestSlices().of({each.partition.topic for each in offsets}):
            with contextlib.suppress(UnknownTopic):  # deleted meanwhile: nothing to wait for
                if "consume" in self._topics.get(topic).config.cleanup_policy:
                    await self._readers.register(topic, group_id)

    async def _in_meta(self, change: Callable[..., None], *arguments: Any) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, change, *arguments)

    # --- expired offsets --------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            await self.expire()

    async def expire(self) -> None:
        """Delete the groups whose offsets have passed their retention."""
        self.adopt_all()
        for group_id in self.expired():
            try:
                answer = await self.ask(group_id, DeleteGroup)
            except CordwoodError as error:  # the others still expire
                logger.warning("group.unexpired group=%s error=%s", group_id, error)
                continue
            logger.info("group.expired group=%s code=%s", group_id, answer.code.name)

    def expired(self) -> list[str]:
        """Return the groups to expire; those RECLAIM waits for are left to an operator."""
        newest_ms = self._newest_commits()
        held = {
            reader for topic in self._topics.all() for reader in self._catalog.registered(topic)
        }
        return [
            group.group_id
            for group in self.groups.listing()
            if group.group_id in newest_ms
            and group.group_id not in held
            and is_expired(
                group,
                now_ms=self._now_ms(),
                commit_age_ms=self._clock.now_ms() - newest_ms[group.group_id],
                retention_ms=self._retention_ms,
            )
        ]

    def _newest_commits(self) -> Mapping[str, int]:
        newest_ms: dict[str, int] = {}
        for where, cursor in list(self._catalog.cursors().items()):
            newest_ms[where.reader] = max(cursor.commit_ms, newest_ms.get(where.reader, 0))
        return newest_ms


def cursors_of(
    group_id: str, offsets: Sequence[PartitionOffset], clock: Clock
) -> dict[ReaderPartition, Cursor]:
    """Return a group's offsets as catalog cursors."""
    now_ms = clock.now_ms()
    return {
        ReaderPartition(group_id, *each.partition): Cursor(
            each.offset, each.metadata, each.leader_epoch, now_ms
        )
        for each in offsets
    }
