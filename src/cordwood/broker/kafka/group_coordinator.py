"""Group coordinator: carries out the instructions of ``decide.groups``, durably.

Committed offsets are cursors, the same that line readers move. A group that commits on a topic
whose cleanup policy has ``consume`` is registered there, so that RECLAIM waits for it.
After a restart every stored group, or group with cursors, exists again: a classic one in state
Empty, a KIP-848 one with its members, epochs and assignments.

Times are monotonic, so that setting the system clock expels no member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cordwood.broker.kafka.coordinator import AWAY, Coordinator, Token
from cordwood.broker.readers import ReaderService
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.decide.groups.consumer.messages import (
    EraseConsumerGroup,
    PersistConsumerGroup,
    SubscribedTopic,
)
from cordwood.decide.groups.directory import GroupDirectory, refusal
from cordwood.decide.groups.expiry import is_expired
from cordwood.decide.groups.group import StoredGroup
from cordwood.decide.groups.messages import (
    Answer,
    DeleteGroup,
    EraseGroup,
    EraseOffsets,
    Event,
    GroupRequest,
    GroupSettings,
    Instruction,
    PersistGroup,
    PersistOffsets,
)
from cordwood.decide.instructions import Forget, Reply, SetTimer
from cordwood.decide.offsets import PartitionOffset
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import Cursor, ReaderPartition

logger = logging.getLogger("cordwood.broker")

EXPIRY_CHECK_S: Final = 600.0


class ExistingTopics:
    """The topics of this broker, as consumer groups see them."""

    def __init__(self, topics: TopicService) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        """Another number after every change of a topic's existence or size."""
        return self._topics.version

    def find(self, name: str) -> SubscribedTopic | None:
        """Return the topic with that name, if it exists."""
        topic = self._topics.all().get(name)
        return None if topic is None else SubscribedTopic(topic.id, name, topic.partition_count)


class GroupCoordinator(Coordinator[GroupRequest, Instruction]):
    """Every group of this broker. Used only on the event loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        metadata: AsyncMetadata,
        topics: TopicService,
        readers: ReaderService,
    ) -> None:
        super().__init__(lambda: int(clock.monotonic() * 1000))
        existing = ExistingTopics(topics)
        self.groups = GroupDirectory(GroupSettings.from_config(config), existing)
        self.retention_ms = config.offsets_retention_ms
        self._clock = clock
        self._metadata = metadata
        self._state = metadata.readers
        self._topics = topics
        self._readers = readers
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Restore the groups from before the restart, and start expiring idle ones."""
        self.adopt_all()
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Finish instructions in progress."""
        self.drain()
        if self._sweeper:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self.idle()

    async def ask(self, group_id: str, event: Callable[[Token], GroupRequest]) -> Any:
        """Handle the event made with a token; returns its answer once the outcome is durable."""
        if not self._stopping:
            self.adopt(group_id)
        return await super().ask(group_id, event)

    def _decide(self, group_id: str, event: Event) -> list[Instruction]:
        return self.groups.handle(group_id, event, self._now_ms())

    def _refusal(self, event: GroupRequest) -> Answer:
        return refusal(event, AWAY)

    # --- groups known by their cursors ------------------------------------------------------

    def adopt(self, group_id: str) -> None:
        """Restore a stored group or one with cursors, perhaps moved by the line protocol."""
        if group_id in self.groups or group_id in self._keyed_queue:
            return
        has_offsets = self._state.has_cursors(group_id)
        if has_offsets or group_id in self._state.groups:
            self._restore(group_id, has_offsets=has_offsets)

    def adopt_all(self) -> None:
        """Restore every such group."""
        for group_id in self.stored():
            self.adopt(group_id)

    def stored(self) -> list[str]:
        """Return the groups that ``adopt`` would find in the metadata."""
        return [*self._state.readers_with_cursors(), *list(self._state.groups)]

    def _restore(self, group_id: str, *, has_offsets: bool) -> None:
        protocol_type = self._state.groups.get(group_id, "")
        stored = StoredGroup(protocol_type, has_offsets, *self._state.consumer_group(group_id))
        instructions = self.groups.restore(group_id, stored, self._now_ms())
        self._keyed_queue.put(group_id, instructions)

    # --- instructions -----------------------------------------------------------------------

    async def _carry_out(self, group_id: str, instructions: Sequence[Instruction]) -> None:
        """Carry out in order; after a failure timers are still set, and replies become refusals."""
        failed = False
        for instruction in instructions:
            match instruction:
                case Reply(token) if failed:
                    assert isinstance(token, asyncio.Future)
                    self._refuse(token)
                case Reply() | SetTimer() | Forget():
                    self._apply(group_id, instruction)
                case _ if not failed:
                    try:
                        await self._persist(group_id, instruction)
                    except CordwoodError as error:
                        logger.warning("group.save_failed group=%s error=%s", group_id, error)
                        failed = True
                        _, members = self._state.consumer_group(group_id)
                        self.groups.mark_unsaved(group_id, members)

    async def _persist(self, group_id: str, instruction: Instruction) -> None:
        match instruction:
            case PersistOffsets():
                await self.register(group_id, instruction.offsets)
                await self._readers.commit(cursors_of(group_id, instruction.offsets, self._clock))
            case PersistGroup():
                await self._metadata.run(self._state.put_group, group_id, instruction.protocol_type)
            case PersistConsumerGroup(record, members):
                put = self._state.put_consumer_group
                await self._metadata.run(put, group_id, record, members)
            case EraseConsumerGroup():
                await self._metadata.run(self._state.erase_consumer_group, group_id)
            case EraseOffsets():
                partitions = instruction.partitions
                await self._metadata.run(self._state.release_cursors, group_id, partitions)
            case EraseGroup():
                state, keeps_cursors = self._state, instruction.keeps_cursors
                erase = state.forget_group if keeps_cursors else state.erase_group
                await self._metadata.run(erase, group_id)

    async def register(self, group_id: str, offsets: Sequence[PartitionOffset]) -> None:
        """Register the group on those topics whose policy makes RECLAIM wait for it."""
        async for topic in RequestSlices().of({each.partition.topic for each in offsets}):
            with contextlib.suppress(UnknownTopic):  # deleted meanwhile: nothing to wait for
                if "consume" in self._topics.get(topic).config.cleanup_policy:
                    await self._readers.register(topic, group_id)

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
                logger.warning("group.expiry_failed group=%s error=%s", group_id, error)
                continue
            logger.info("group.expired group=%s code=%s", group_id, answer.code.name)

    def expired(self) -> list[str]:
        """Return the groups to expire; those RECLAIM waits for are left to an operator."""
        newest_ms = self._newest_commits()
        held = {reader for topic in self._topics.all() for reader in self._state.registered(topic)}
        return [
            group.group_id
            for group in self.groups.listing()
            if group.group_id in newest_ms
            and group.group_id not in held
            and is_expired(
                group,
                now_ms=self._now_ms(),
                commit_age_ms=self._clock.now_ms() - newest_ms[group.group_id],
                retention_ms=self.retention_ms,
            )
        ]

    def _newest_commits(self) -> Mapping[str, int]:
        newest_ms: dict[str, int] = {}
        for where, cursor in list(self._state.cursors().items()):
            newest_ms[where.reader] = max(cursor.commit_ms, newest_ms.get(where.reader, 0))
        return newest_ms


def cursors_of(
    group_id: str, offsets: Sequence[PartitionOffset], clock: Clock
) -> dict[ReaderPartition, Cursor]:
    """Return a group's offsets as cursors."""
    now_ms = clock.now_ms()
    return {
        ReaderPartition(group_id, *each.partition): Cursor(
            each.offset, each.metadata, each.leader_epoch, now_ms
        )
        for each in offsets
    }
