"""The store: opens, creates, changes and deletes the topics and partitions of a data directory.

The metadata is the source of truth for the existing topics. Each change has one commit point, a
metadata transaction, and the files follow it, so that a crash between the two leaves nothing half
done:

* *create*: record the topics, then make the directories. Start-up makes directories that are still
  missing. A missing directory that existed before means lost records; its partition stays offline.
  The first synced append makes the files in them durable.
* *delete*: remove the topic and all its metadata and record the deletion, rename the
  directories, remove that record, remove the files. Start-up continues wherever it stopped.

Changes run on the writer thread, lookups on any thread. ``segments`` changes sealed segments.
Damage takes one partition offline, with a reason; all others are served.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import compress

from cordwood.clock import Clock
from cordwood.config import (
    BrokerConfig,
    TopicConfig,
    TopicDefaults,
    changed,
    rows,
    topic_config,
    topic_overrides,
)
from cordwood.decide.dynamic_settings import combine, usable_levels
from cordwood.errors import (
    CordwoodError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    PartitionOffline,
    RequestError,
    TopicExists,
)
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache, share_descriptors
from cordwood.log.health.registry import Condition
from cordwood.log.lifecycle.accept_loss import AcceptedLoss, accept_loss
from cordwood.log.lifecycle.directory import (
    DataDirectory,
    check_free,
    deleted_directories,
    deleted_name,
    foreign_names,
    has_space,
)
from cordwood.log.lifecycle.live_topics import LiveTopic, LiveTopics, NewTopic, attempt
from cordwood.log.lifecycle.partition_directories import PartitionDirectories
from cordwood.log.lifecycle.segment_changes import SegmentChanges
from cordwood.log.lifecycle.segment_index_writer import SegmentIndexWriter
from cordwood.log.lifecycle.unopened import UnopenedPartition, load_all
from cordwood.log.staging.claim import CLAIMED_NAME
from cordwood.log.write.partition import Partition
from cordwood.metadata.front import Metadata
from cordwood.metadata.keys import Topic
from cordwood.metadata.store import MetadataStore
from cordwood.model import TopicPartition, is_topic_name
from cordwood.plural import plural

PARTITIONS_MAX = 10_000
CLOSE_THREADS = 16  # parallel syncs let the device order its writes
EAGER_MAX = 100  # up to so many are opened at start-up, so damage is known before serving

logger = logging.getLogger("cordwood.log")


class Store(LiveTopics):
    """One data directory, locked by this process from ``open`` to ``close``."""

    def __init__(
        self, directory: DataDirectory, metadata: Metadata, clock: Clock, files: Files,
        file_cache: FileCache, *, defaults: TopicDefaults,
    ) -> None:  # fmt: skip
        """Create the store before its topics are opened. Callers use ``open``."""
        super().__init__()
        self.directory = directory
        self.data = directory.path
        self.metadata = metadata
        self.defaults = defaults
        self._clock = clock
        self._files = files
        self._closed = False
        index = SegmentIndexWriter(metadata.cluster)
        self.partition_directories = PartitionDirectories(
            self.data, index, health=self.health, clock=clock, files=files, file_cache=file_cache
        )
        self.segments = SegmentChanges(self.data, self, index, clock, files)

    @classmethod
    def open(
        cls, directory: DataDirectory, metadata: MetadataStore, config: BrokerConfig,
        clock: Clock, files: Files, *, eager: int = EAGER_MAX,
    ) -> Store:  # fmt: skip
        """Check and recover the directory; a ``ConfigError`` names the remedy.

        With more than ``eager`` partitions, each is recovered only when it is first needed. The
        store closes the directory and the metadata store with itself, or if opening fails.
        """
        try:
            plan = share_descriptors(config)
            file_cache = FileCache(plan.readers, plan.tails)
            store = cls(
                directory, Metadata(metadata), clock, files, file_cache,
                defaults=config.topic_defaults,
            )  # fmt: skip
            levels, _ = usable_levels(config, store.metadata.cluster.config)
            store.defaults = combine(config, levels).topic_defaults
        except BaseException:
            metadata.close()
            directory.close()
            raise
        try:
            store._start(eager)
        except BaseException:
            store.close()
            raise
        return store

    def has_space(self) -> bool:
        """Whether the disk has space for a small file; polled after it was full."""
        return has_space(self.data, self._files)

    def close(self) -> None:
        """Close every partition and the metadata, and release the lock. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            for unopened in self.unopened():
                unopened.close()
            online = [each for topic in self.topics.values() for each in topic.online()]
            self.partition_directories.recovery_points.record(_close_all(online))
        finally:
            self._withdraw_all()
            self.metadata.close()
            self.directory.close()

    # --- topics: writer thread --------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, object] | None = None
    ) -> LiveTopic:
        """Create one topic; raises an error if that is refused."""
        (outcome,) = self.create_topics([NewTopic(name, partitions, config or {})])
        if isinstance(outcome, CordwoodError):
            raise outcome
        return outcome

    def create_topics(self, wanted: Sequence[NewTopic]) -> list[LiveTopic | CordwoodError]:
        """Create topics, each one completely or not at all. One sync serves all of them."""
        planned: dict[str, Topic] = {}
        refused: dict[int, CordwoodError] = {}
        for number, new in enumerate(wanted):
            try:
                if new.name in planned:
                    raise TopicExists(f"topic {new.name} is already being created")
                planned[new.name] = self._plan_topic(new)
            except CordwoodError as error:
                refused[number] = error
        if planned:
            self.metadata.cluster.create_topics(planned.values())
            try:
                self.partition_directories.make(planned.values())
            except CordwoodError:
                for topic in planned.values():
                    self._delete(topic)
                raise
        return [
            refused[number] if number in refused else self._open_new(planned[new.name])
            for number, new in enumerate(wanted)
        ]

    def _plan_topic(self, new: NewTopic) -> Topic:
        topic_config(self.defaults, new.config)
        own = topic_overrides(new.config)
        if new.name in self.metadata.cluster.deleting:
            self._finish_delete(self.metadata.cluster.deleting[new.name])
        self.check_new_topic(new.name, new.partitions)
        now_ms = self._clock.now_ms()
        return Topic(new.name, str(uuid.uuid4()), new.partitions, own, now_ms)

    def _open_new(self, topic: Topic) -> LiveTopic | CordwoodError:
        live = LiveTopic(topic, topic_config(self.defaults, topic.config))
        try:
            for tp in topic.partition_list():
                live.slots.append(self.partition_directories.recover(tp, topic.id, live.config))
        except CordwoodError as error:
            self._delete(topic)
            return error
        self._serve(live)
        return live

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Raise the error that ``create_topic`` would raise; changes nothing."""
        if not is_topic_name(name):
            raise InvalidTopic(
                f"{name!r} is not a valid topic name; use 1 to 249 characters of A-Z a-z 0-9 . _ "
                "- (not . or ..)"
            )
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"{partitions} is not a valid number of partitions; use 1 to {PARTITIONS_MAX}"
            )
        if name in self.topics:
            raise TopicExists(f"topic {name} already exists")
        check_free(self.data, name, range(partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and all its metadata."""
        live = self.topic(name)
        with self.segments.index.changing:
            topic = self.metadata.begin_delete(name)
            self._withdraw(name)
        for partition in live.held():
            partition.abandon("its topic was deleted")
        self.health.forget(name)
        self._finish_delete(topic)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings, all or none, with immediate effect. None restores a default."""
        live = self.topic(name)
        own = altered(live.overrides, changes)
        config = topic_config(self.defaults, own)
        topic = replace(self.metadata.cluster.topic(name), config=topic_overrides(own))
        self.metadata.cluster.alter_topic(topic)
        live.config, live.overrides = config, topic.config
        for partition in live.held():
            partition.config = config

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the partition count to ``count``; raises ``InvalidPartitions``.

        A partition that cannot be opened now, for example on a full disk, is offline until the next
        start.
        """
        live = self.topic(name)
        before = live.partition_count
        if not before < count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {name} has {plural(before, 'partition')}; request {before + 1} to "
                f"{PARTITIONS_MAX}"
            )
        check_free(self.data, name, range(before, count))
        topic = replace(self.metadata.cluster.topic(name), partitions=count)
        self.metadata.cluster.alter_topic(topic)
        self.partition_directories.make([topic])
        for tp in topic.partition_list()[before:]:
            live.slots.append(self._open_partition(tp, live.id, live.config))
        self.topics_version += 1

    # --- start-up ---------------------------------------------------------------------------

    def _start(self, eager: int) -> None:
        for topic in list(self.metadata.cluster.deleting.values()):
            attempt("topic.delete_failed", topic.name, partial(self._finish_delete, topic))
        for deleted in deleted_directories(self.data):
            attempt("directory.remove_failed", deleted.name, partial(self._files.rmtree, deleted))
        self.segments.release(self.data / CLAIMED_NAME)  # no swap outlives its process
        topics = list(self.metadata.cluster.topics.values())
        for name in foreign_names(self.data, topics):
            logger.warning("directory.ignored name=%s: not a directory of this broker", name)
        for path in self.partition_directories.missing(topics):
            attempt("directory.create_failed", path.name, partial(self._files.mkdir, path))
        self._files.sync_dir(self.data)  # includes names that a crashed process did not sync
        self.metadata.cluster.begin_terms()
        for topic in topics:
            self._serve(self._open_topic(topic))
        if len(unopened := self.unopened()) <= eager:
            load_all(unopened)

    def change_defaults(self, defaults: TopicDefaults) -> None:
        """Let every topic follow other defaults of what it does not set; valid for all of them."""
        self.defaults = defaults
        for live in self.topics.values():
            live.config = topic_config(defaults, live.overrides)
            for partition in live.held():
                partition.config = live.config

    def _open_topic(self, topic: Topic) -> LiveTopic:
        """Load a topic at start-up; its partitions are offline if its settings are invalid."""
        try:
            config = changed(self.defaults.config, topic.config)
        except InvalidConfig as error:
            live = LiveTopic(topic, self.defaults.config)
            reason = f"its settings are invalid in this release: {error}"
            live.slots = [self._offline(tp, reason) for tp in topic.partition_list()]
            return live
        live = LiveTopic(topic, config)
        live.slots = [self._unopened(tp, topic.id, config) for tp in topic.partition_list()]
        return live

    def _unopened(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        """A partition that is recovered at its first use, on whichever thread that happens."""
        return UnopenedPartition(
            self.data / str(tp), tp, config, self.metadata.cluster.leader_epoch(tp),
            recover=partial(self.partition_directories.recover, tp, topic_id),
            give_up=partial(self._give_up, tp, topic_id),
        )  # fmt: skip

    def _give_up(self, tp: TopicPartition, topic_id: str, reason: str) -> PartitionOffline:
        """Take a partition that cannot be opened offline, unless it was deleted."""
        live = self.topics.get(tp.topic)
        if live is None or live.id != topic_id:
            return PartitionOffline(f"partition {tp} was deleted")
        live.slots[tp.partition] = offline = self._offline(tp, reason)
        return offline

    def _open_partition(
        self, tp: TopicPartition, topic_id: str, config: TopicConfig
    ) -> Partition | PartitionOffline:
        try:
            return self.partition_directories.recover(tp, topic_id, config)
        except (CordwoodError, OSError) as error:
            return self._offline(tp, str(error))

    def _offline(self, tp: TopicPartition, reason: str) -> PartitionOffline:
        self.health.report(tp, Condition.OFFLINE, reason)
        return PartitionOffline(f"partition {tp} is offline: {reason}")

    def accept_loss(self, tp: TopicPartition) -> AcceptedLoss:
        """Serve an offline partition without its missing records. Runs on the writer thread."""
        live = self.topic(tp.topic)
        with suppress(PartitionOffline):
            live.partition(tp.partition).load()
            raise RequestError(f"{tp} is online and has no known loss")
        accepted = accept_loss(
            self.data / str(tp),
            tp,
            metadata=self.metadata,
            files=self._files,
            open_partition=lambda: self.partition_directories.open(tp, live.id, live.config),
        )
        live.slots[tp.partition] = self.partition_directories.recover(tp, live.id, live.config)
        self.health.resolve(tp, Condition.OFFLINE)
        logger.warning("partition.loss_accepted partition=%s %s", tp, accepted)
        return accepted

    # --- internals --------------------------------------------------------------------------

    def _delete(self, topic: Topic) -> None:
        """Undo a creation that could not be finished."""

        def undo() -> None:
            self.metadata.begin_delete(topic.name)
            self._finish_delete(topic)

        attempt("topic.delete_failed", topic.name, undo)

    def _finish_delete(self, topic: Topic) -> None:
        """Rename the directories, free the topic's name, then remove the directories."""
        deleted = []
        for tp in topic.partition_list():
            path = self.data / str(tp)
            if path.is_dir():
                target = self.data / deleted_name(tp, topic.id)
                self._files.rename(path, target)
                deleted.append(target)
        self._files.sync_dir(self.data)
        self.metadata.cluster.finish_delete(topic.name)
        for path in deleted:
            self._files.rmtree(path)


def altered(own: Mapping[str, str], changes: Mapping[str, object]) -> dict[str, object]:
    """What a topic sets itself after changes, of which None removes a setting."""
    unset = {name for name, value in changes.items() if value is None and name in rows(TopicConfig)}
    return {name: value for name, value in {**own, **changes}.items() if name not in unset}


def _close_all(partitions: Sequence[Partition]) -> list[Partition]:
    """Close all in parallel; returns those closed cleanly, with all their records synced."""
    with ThreadPoolExecutor(CLOSE_THREADS, thread_name_prefix="cordwood-close") as pool:
        return list(compress(partitions, pool.map(_close, partitions)))


def _close(partition: Partition) -> bool:
    was_online = not partition.offline_reason
    try:
        partition.close()
    except CordwoodError as error:  # the next start scans the file
        logger.warning("partition.close_failed partition=%s error=%s", partition.tp, error)
        return False
    return was_online
