"""Topic service: find, auto-create, change and delete topics.

Changes to partition directories run on the writer thread, changes to metadata alone through its
async front.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.partition_opener import PartitionOpener
from cordwood.broker.topic_state import (
    PartitionState,
    describe_partition,
    summarize_partition,
)
from cordwood.config import KEEP_ALL, BrokerConfig, topic_config
from cordwood.errors import ConfigError, InvalidConfig, InvalidTopic, TopicExists, UnknownTopic
from cordwood.log.lifecycle.live_topics import LiveTopic, NewTopic
from cordwood.log.lifecycle.store import Store, altered
from cordwood.log.write.partition import Partition
from cordwood.log.write.writer import Writer
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import ProducerIdentity
from cordwood.model import is_topic_name

T = TypeVar("T")

CREATED_AT_ONCE = 64  # topics created in one step of the writer thread


class TopicService:
    """Topics as requests see them."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        cluster: ClusterView,
        writer: Writer,
        metadata: AsyncMetadata,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._store = store
        self._writer = writer
        self._metadata = metadata
        self.opener = PartitionOpener(store)
        self._creating: dict[str, asyncio.Future[LiveTopic]] = {}
        self._wanted: list[tuple[NewTopic, asyncio.Future[LiveTopic]]] = []
        self._creator: asyncio.Task[None] | None = None

    def get(self, name: str) -> LiveTopic:
        """Return an existing topic; raises ``UnknownTopic``."""
        return self._store.topic(name)

    def get_by_id(self, topic_id: UUID) -> LiveTopic:
        """Return an existing topic; raises ``UnknownTopicId``."""
        return self._store.topic_by_id(topic_id)

    def all(self) -> Mapping[str, LiveTopic]:
        """Return every topic by name."""
        return self._store.topics

    @property
    def version(self) -> int:
        """Another number after every change of a topic's existence or size."""
        return self._store.topics_version

    async def open_partition(self, name: str, number: int) -> Partition:
        """Return a partition with open files; raises ``UnknownTopic`` or ``PartitionOffline``."""
        partition = self.get(name).partition(number)
        if not partition.is_open:
            await self.opener.open(partition)
        return partition

    async def open_topic(self, name: str) -> LiveTopic:
        """Return a topic, all partitions open or known to be offline; raises ``UnknownTopic``."""
        topic = self.get(name)
        await self.opener.open_all(topic.held())
        return topic

    async def ensure(
        self, name: str, *, explicit: bool = False, is_route: bool = False
    ) -> LiveTopic:
        """Return the topic; create it if it is missing and creation is explicit or automatic.

        ``is_route`` tells that the router sends records to it.
        """
        topic = self._store.topics.get(name)
        if topic is not None:
            return topic
        if not is_topic_name(name):
            raise InvalidTopic(
                f"{name!r} is not a valid topic name; use 1 to 249 characters of A-Z a-z 0-9 . _ "
                "- (not . or ..)"
            )
        if not (explicit or self._config.auto_create_topics):
            raise UnknownTopic(
                f"topic {name} does not exist and auto.create.topics is off; create it with "
                f"REGISTER {name}"
            )
        return await self._create_once(name, is_route=is_route)

    async def _create_once(self, name: str, *, is_route: bool) -> LiveTopic:
        """Create the topic once, even if several first writers ask for it at the same time."""
        if name not in self._creating:
            own = plan_settings(self._config, name, is_route=is_route or self._is_bound(name))
            work = asyncio.ensure_future(self.create(name, self._config.num_partitions, own))
            work.add_done_callback(_look)
            self._creating[name] = work
        try:
            return await asyncio.shield(self._creating[name])
        except TopicExists:
            return self._store.topic(name)
        finally:
            self._creating.pop(name, None)

    def _is_bound(self, name: str) -> bool:
        """Return whether a routing key is bound to the topic."""
        bindings = self._metadata.cluster.bindings()
        return name in {*bindings.exact.values(), *bindings.prefix.values()}

    async def create(self, name: str, partitions: int, config: Mapping[str, object]) -> LiveTopic:
        """Create a topic; raises ``TopicExists``, ``InvalidTopic`` or ``InvalidConfig``.

        Concurrent creations are batched, so that a thousand topics cost few fsyncs, and run in
        steps, so that appends are written in between.
        """
        self.check_settings(name, config)
        done: asyncio.Future[LiveTopic] = asyncio.get_running_loop().create_future()
        self._wanted.append((NewTopic(name, partitions, config), done))
        if self._creator is None or self._creator.done():
            self._creator = asyncio.ensure_future(self._create_wanted())
        return await done

    async def _create_wanted(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted[:CREATED_AT_ONCE], self._wanted[CREATED_AT_ONCE:]
            create = partial(self._store.create_topics, [topic for topic, _ in wanted])
            outcomes: Sequence[LiveTopic | Exception]
            try:
                outcomes = await self.on_writer(create)
            except Exception as error:  # noqa: BLE001 - passed to all who wait
                outcomes = [error for _ in wanted]
            for (_, done), outcome in zip(wanted, outcomes, strict=True):
                if done.done():  # the requester is gone
                    continue
                if isinstance(outcome, Exception):
                    done.set_exception(outcome)
                else:
                    done.set_result(outcome)

    async def delete(self, name: str) -> None:
        """Delete a topic with its records and all its metadata."""
        await self.on_writer(lambda: self._store.delete_topic(name))

    async def alter(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings, all or none."""
        self.check_changes(name, changes)
        await self.on_writer(lambda: self._store.alter_topic(name, changes))

    def check_changes(self, name: str, changes: Mapping[str, object]) -> None:
        """Raise what ``alter`` would raise; changes nothing."""
        self.check_settings(name, altered(self.get(name).overrides, changes))

    def check_settings(self, name: str, own: Mapping[str, object]) -> None:
        """Raise ``InvalidConfig`` if a topic of this name may not set exactly this itself."""
        self._check_own(self._config, name, own)

    def _check_own(self, broker: BrokerConfig, name: str, own: Mapping[str, object]) -> None:
        config = topic_config(broker.topic_defaults, own)
        if name == broker.dead_letter_topic and "compact" in config.cleanup_policy:
            raise InvalidConfig(
                f"{name} is the dead-letter topic and cannot be compacted: dead letters with the "
                "same key do not replace each other; use delete or consume"
            )

    async def check_reconfigure(self, config: BrokerConfig) -> None:
        """Raise ``InvalidConfig`` if an existing topic may not follow the new defaults."""
        if config.topic_defaults != self._config.topic_defaults:
            await self.on_writer(partial(self._check_topics, config))

    def _check_topics(self, config: BrokerConfig) -> None:
        for name, topic in list(self._store.topics.items()):
            try:
                self._check_own(config, name, topic.overrides)
            except InvalidConfig as error:
                raise InvalidConfig(f"topic {name} cannot follow this default: {error}") from None

    async def reconfigure(self, config: BrokerConfig) -> None:
        """Use other settings from now on; topics follow new defaults of what they do not set."""
        has_defaults = config.topic_defaults != self._config.topic_defaults
        self._config = config
        if has_defaults:
            await self.on_writer(partial(self._store.change_defaults, config.topic_defaults))

    def check_defaults(self) -> None:
        """Raise ``ConfigError`` if an existing topic may not follow a broker-wide default."""
        name, setting = self._config.dead_letter_topic, "cleanup.policy"
        topic = self.all().get(name)
        if topic is None or setting in topic.overrides:
            return
        if "compact" not in topic.config.cleanup_policy:
            return
        source = self._config.topic_defaults.sources.get(setting)
        raise ConfigError(
            f"{setting}: compact cannot be the default of all topics, as the dead-letter topic "
            f"{name} follows it and cannot be compacted; start without this default, set "
            f"{setting} on {name}, and start with it again" + (f" ({source})" if source else "")
        )

    async def add_partitions(self, name: str, count: int) -> None:
        """Raise the partition count to ``count``."""
        await self.on_writer(lambda: self._store.add_partitions(name, count))

    async def line_producer(self, name: str, epoch: int | None) -> ProducerIdentity:
        """Return the line producer that a HELLO name stands for."""
        return await self._metadata.run(self._metadata.readers.line_producer, name, epoch)

    async def on_writer(self, change: Callable[[], T]) -> T:
        """Run a change on the writer thread, the only thread that may change partitions."""
        return await asyncio.wrap_future(self._writer.call(change))

    async def sync_overdue(self) -> None:
        """Sync the partitions whose records have not been synced for ``flush.ms``."""
        if self._writer.has_unsynced:
            await asyncio.wrap_future(self._writer.sync_overdue())

    def state(self, partitions: Sequence[Partition]) -> dict[str, Any]:
        """Return a partition's state as Walrus's ``STATE``, or a summary of several partitions."""
        tp = partitions[0].tp
        if len(partitions) == 1:
            return {"topic": tp.topic, **describe_partition(self._partition_state(partitions[0]))}
        rows = [
            {"partition": each.tp.partition, **summarize_partition(self._partition_state(each))}
            for each in partitions
        ]
        return {"topic": tp.topic, "partitions": rows}

    def _partition_state(self, partition: Partition) -> PartitionState:
        tp = partition.tp
        return PartitionState(
            live=partition.segments(),
            remembered=self._metadata.cluster.segments(tp).entries(),
            bundles=self._metadata.cluster.bundles(tp),
            cursors=self._metadata.readers.registered_positions(tp),
            leader_id=self._cluster.placement(self.get(tp.topic), tp.partition).leader_id,
            log_start_offset=partition.log_start_offset,
            high_watermark=partition.high_watermark,
        )


def plan_settings(config: BrokerConfig, name: str, *, is_route: bool) -> dict[str, object]:
    """Return what an automatically created topic sets itself; topics of routing have a policy."""
    if not is_route and name not in {config.ingress_topic, config.dead_letter_topic}:
        return {}
    own: dict[str, object] = {"cleanup.policy": config.routes_cleanup_policy}
    if config.routes_retention_ms != KEEP_ALL:
        own["retention.hard.ms"] = config.routes_retention_ms
    return own


def _look(creation: asyncio.Future[LiveTopic]) -> None:
    """Retrieve the exception, as the requests that wanted the topic may be gone."""
    if not creation.cancelled():
        creation.exception()
