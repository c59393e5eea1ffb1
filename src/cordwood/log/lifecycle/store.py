"""The store: opens, creates, changes and deletes the topics and partitions of a data directory.

The catalog is the source of truth for the existing topics. Each change has one commit point, a
catalog transaction, and the files follow it, so that a crash between the two leaves nothing half
done:

* *create*: record the topics, then make the directories. Start-up makes directories that are still
  missing. A missing directory that existed before means lost records; its partition stays offline.
  The first synced append makes the files in them durable.
* *delete*: remove the topic and everything known of it and note the deletion, rename the
  directories, remove the note, remove the files. Start-up continues wherever it stopped.
* *reclaim*: mark the segments reclaimed and move the log start, then drop the files.
* *swap*: note it, swap the files (``ladder``), then update the segment index.

Changes to partitions run on the writer thread; lookups and ``hash_sealed`` run on any thread.
Damage takes one partition offline, with a reason; all others are served.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from cordwood.clock import Clock
from cordwood.config import BrokerConfig, TopicConfig, changed, overrides, rows
from cordwood.decide.retention import RetentionPlan
from cordwood.decide.roll import RollReason
from cordwood.errors import (
    CordwoodError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    PartitionOffline,
    TopicExists,
    UnavailableError,
    UnknownSegment,
    UnknownTopic,
)
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache, share_descriptors
from cordwood.log.files.modes import BY_NAME
from cordwood.log.format.identity import DataIdentity
from cordwood.log.health.registry import Condition, DamagedRange, HealthRegistry
from cordwood.log.lifecycle.accept_loss import AcceptedLoss, accept_loss
from cordwood.log.lifecycle.directory import (
    META,
    check_free,
    doomed_directories,
    doomed_name,
    foreign_names,
    has_space,
    open_directory,
    prepare_permissions,
    renew_identity,
)
from cordwood.log.lifecycle.directory_lock import DirectoryLock
from cordwood.log.lifecycle.recovery_points import RecoveryPoints
from cordwood.log.lifecycle.segment_index_writer import SegmentIndexWriter
from cordwood.log.lifecycle.shutdown import close_partitions
from cordwood.log.lifecycle.topics import LiveTopic, NewTopic
from cordwood.log.lifecycle.unopened import UnopenedPartition, load_all
from cordwood.log.staging.area import StagingArea
from cordwood.log.staging.claim import CLAIMED_NAME, claim_job, release_claim
from cordwood.log.swap.ladder import Verified, apply_swap, verify_staged
from cordwood.log.write.partition import Partition
from cordwood.metadata.catalog import Catalog
from cordwood.metadata.keys import ScrubResult, SegmentEntry, Topic
from cordwood.metadata.sqlite import SqliteStore
from cordwood.model import SegmentInfo, TopicPartition, is_topic_name

PARTITIONS_MAX = 10_000
EAGER_MAX = 100  # up to so many are opened at start-up, so damage is known before serving

logger = logging.getLogger("cordwood.log")


class Store:
    """One data directory, locked by this process from ``open`` to ``close``."""

    def __init__(
        self, data: Path, catalog: Catalog, clock: Clock, files: Files, *, lock: DirectoryLock,
        descriptors: FileCache,
    ) -> None:  # fmt: skip
        """Create the store for a locked directory. Callers use ``open``."""
        self.data = data
        self.catalog = catalog
        self.topics: dict[str, LiveTopic] = {}
        self._clock = clock
        self._files = files
        self.lock = lock
        self.identity = DataIdentity.fresh(None)
        self._closed = False
        self.health = HealthRegistry()
        self._file_cache = descriptors
        self._index_writer = SegmentIndexWriter(catalog)
        self.recovery_points = RecoveryPoints(catalog)

    @classmethod
    def open(
        cls, data: Path, config: BrokerConfig, clock: Clock, files: Files, *, eager: int = EAGER_MAX
    ) -> Store:
        """Lock, check and recover the directory; a ``ConfigError`` names the remedy.

        With more than ``eager`` partitions, each is recovered only when it is first needed.
        """
        plan = share_descriptors(config)
        files.modes = BY_NAME[config.file_mode]
        lock = open_directory(data, files)
        try:
            prepare_permissions(data, files)
            identity = renew_identity(data, files)
            catalog = Catalog(SqliteStore(data / META, clock))
        except BaseException:
            lock.close()
            raise
        files.check_place = lock.check
        descriptors = FileCache(plan.readers, plan.tails)
        store = cls(data, catalog, clock, files, lock=lock, descriptors=descriptors)
        store.identity = identity
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
        """Close every partition and the catalog, and release the lock. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            for unopened in self.unopened():
                unopened.close()
            online = [each for topic in self.topics.values() for each in topic.online()]
            self.recovery_points.note(close_partitions(online))
        finally:
            self.topics.clear()
            self.catalog.close()
            self._files.check_place = Files.check_place
            self.lock.close()

    # --- lookups: any thread ----------------------------------------------------------------

    def topic(self, name: str) -> LiveTopic:
        """The topic with this name; raises ``UnknownTopic``."""
        try:
            return self.topics[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name}; `cordwood topic list` has all") from None

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition; raises ``UnknownTopic`` or ``PartitionOffline``."""
        return self.topic(tp.topic).partition(tp.partition)

    def partitions(self, name: str) -> list[Partition]:
        """The open partitions of a topic; empty if there is no such topic."""
        topic = self.topics.get(name)
        return topic.online() if topic else []

    def unopened(self) -> list[Partition]:
        """Every partition whose files have not been opened yet."""
        return [each for t in list(self.topics.values()) for each in t.held() if not each.is_open]

    @property
    def offline(self) -> dict[TopicPartition, PartitionOffline]:
        """Every partition that is not served, with the reason."""
        return {
            TopicPartition(topic.name, number): slot
            for topic in list(self.topics.values())
            for number, slot in enumerate(topic.slots)
            if isinstance(slot, PartitionOffline)
        }

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
                    raise TopicExists(f"topic {new.name} is being created already")
                planned[new.name] = self._plan_topic(new)
            except CordwoodError as error:
                refused[number] = error
        if planned:
            self.catalog.create_topics(planned.values())
            try:
                self._make_directories(planned.values())
            except CordwoodError:
                for topic in planned.values():
                    self._delete(topic)
                raise
        return [
            refused[number] if number in refused else self._open_new(planned[new.name])
            for number, new in enumerate(wanted)
        ]

    def _plan_topic(self, new: NewTopic) -> Topic:
        config = changed(TopicConfig(), new.config)
        if new.name in self.catalog.deleting:
            self._finish_delete(self.catalog.deleting[new.name])
        self.check_new_topic(new.name, new.partitions)
        now_ms = self._clock.now_ms()
        return Topic(new.name, str(uuid.uuid4()), new.partitions, overrides(config), now_ms)

    def _open_new(self, topic: Topic) -> LiveTopic | CordwoodError:
        live = LiveTopic(topic, changed(TopicConfig(), topic.config))
        try:
            for tp in topic.partition_list():
                live.slots.append(self._recover(tp, topic.id, live.config))
        except CordwoodError as error:
            self._delete(topic)
            return error
        self.topics[topic.name] = live
        return live

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Raise the error that ``create_topic`` would raise; changes nothing."""
        if not is_topic_name(name):
            raise InvalidTopic(
                f"{name!r} cannot name a topic; use 1 to 249 of A-Z a-z 0-9 . _ - (not . or ..)"
            )
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"{partitions} partitions; use 1 to {PARTITIONS_MAX}")
        if name in self.topics:
            raise TopicExists(f"topic {name} exists already")
        check_free(self.data, name, range(partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and all its metadata."""
        live = self.topic(name)
        with self._index_writer.changing:
            topic = self.catalog.begin_delete(name)
            del self.topics[name]
        for partition in live.held():
            partition.abandon("its topic was deleted")
        self.health.forget(name)
        self._finish_delete(topic)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings, all or none, with immediate effect. None restores a default."""
        live = self.topic(name)
        defaults = rows(TopicConfig)
        unset = {n: v for n, v in changes.items() if v is None and n in defaults}
        kept = {n: v for n, v in overrides(live.config).items() if n not in unset}
        config = changed(TopicConfig(), kept | {n: v for n, v in changes.items() if n not in unset})
        self.catalog.alter_topic(replace(self.catalog.topic(name), config=overrides(config)))
        live.config = config
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
                f"topic {name} has {before} partitions; ask for {before + 1} to {PARTITIONS_MAX}"
            )
        check_free(self.data, name, range(before, count))
        topic = replace(self.catalog.topic(name), partitions=count)
        self.catalog.alter_topic(topic)
        self._make_directories([topic])
        for tp in topic.partition_list()[before:]:
            live.slots.append(self._open_partition(tp, live.id, live.config))

    # --- segments: writer thread ------------------------------------------------------------

    def roll(self, partition: Partition, reason: RollReason) -> SegmentInfo | None:
        """Seal the active segment and index it; None if it is empty."""
        sealed = partition.roll(reason)
        if sealed is not None:
            try:
                self._index_writer.record(partition.tp, [sealed])
            except UnavailableError as error:  # hash_sealed indexes it later
                logger.warning("segment.unindexed partition=%s error=%s", partition.tp, error)
        return sealed

    def reclaim(self, partition: Partition, plan: RetentionPlan) -> None:
        """Drop the planned segments, up to the first that has changed since the plan was made."""
        current = partition.segments()[:-1]
        drops = []
        for segment, drop in zip(current, plan.drops, strict=False):
            if segment != drop.segment:
                break
            drops.append(segment)
        if not drops:
            return
        self._index_writer.reclaim(partition.tp, drops)
        partition.drop([segment.base_offset for segment in drops])

    def advance_start(self, tp: TopicPartition, offset: int) -> int:
        """Delete the records below an offset (DeleteRecords); returns the new log start."""
        partition = self.partition(tp)
        if offset > partition.high_watermark:
            raise OffsetOutOfRange(
                f"{tp}: cannot delete up to {offset}, the log ends at {partition.high_watermark}"
            )
        if offset > partition.log_start_offset:
            self.catalog.set_log_start(tp, offset)
            partition.advance_start(offset)
        return partition.log_start_offset

    # --- jobs: verify and swap --------------------------------------------------------------

    def verify_job(self, job: str) -> Verified:
        """Claim a finished job's files and check every byte of them. Safe on any thread.

        The caller applies the result or passes it to ``release_jobs``.
        """
        claim = claim_job(self.data, job, self._files)
        try:
            return verify_staged(
                claim, self._files, now_ms=self._clock.now_ms(),
                interval_bytes=self.topic(claim.manifest.topic).config.index_interval_bytes,
            )  # fmt: skip
        except BaseException:
            self._release(claim.directory)
            raise

    def release_jobs(self, jobs: Iterable[Verified]) -> None:
        """Remove the files of jobs that were verified but not applied. Safe on any thread."""
        for job in jobs:
            self._release(job.directory)

    def _release(self, claimed: Path) -> None:
        release = partial(release_claim, claimed, self._files)
        self._attempt("directory.unremoved", claimed.name, release)

    def apply_job(self, job: Verified) -> None:
        """Swap in a verified job and remove its staged files. Runs on the writer thread."""
        tp = job.manifest.topic_partition
        partition, live = self.partition(tp), self.topic(tp.topic)
        staging = StagingArea(self.data)
        with self._index_writer.changing:
            self._index_writer.settle_swap(partition)
            hashes = self._index_writer.hashes(tp)
            self._index_writer.begin_swap(job)
            try:
                apply_swap(partition, job, files=self._files, topic_id=live.id, hashes=hashes)
            except PartitionOffline as error:
                self.take_offline(partition, error)
                raise
            except CordwoodError:
                self.catalog.cancel_swap(tp)
                raise
            self._index_writer.settle_swap(partition)
        self._release(job.directory)
        name = job.manifest.job
        self._files.name_effect("rmtree", staging.directory / name, lambda: staging.remove(name))

    def take_offline(self, partition: Partition, error: PartitionOffline) -> None:
        """Stop serving a partition until the next start."""
        self.topic(partition.tp.topic).slots[partition.tp.partition] = error
        self.health.report(partition.tp, Condition.OFFLINE, str(error))
        self._attempt(
            "partition.unclean", str(partition.tp), partial(partition.abandon, str(error))
        )

    # --- the segment index: any thread ------------------------------------------------------

    def hash_sealed(self, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Index newly sealed segments and compute missing sha256 sums; returns how many.

        Reads whole files, so it runs on a background thread.
        """
        hashed = 0
        for topic in list(self.topics.values()):
            for partition in topic.online():
                with self.guard(partition, Condition.INDEXING_FAILED):
                    hashed += self._index_writer.index_and_hash(
                        partition, self.is_live, should_stop
                    )
        return hashed

    def note_scrub(
        self, tp: TopicPartition, entry: SegmentEntry, scrub: ScrubResult, file_sha256: str
    ) -> None:
        """Record when a segment was scrubbed and what was damaged in it. Safe on any thread."""
        self._index_writer.note_scrub(tp, entry, scrub, file_sha256)

    def hash_partition(self, partition: Partition) -> dict[int, str]:
        """The sha256 of every sealed segment of a partition, computed now where unknown."""
        self._index_writer.index_and_hash(partition, self.is_live, lambda: False)
        return self._index_writer.hashes(partition.tp)

    def guard(self, partition: Partition, condition: Condition) -> AbstractContextManager[None]:
        """Isolate one partition's errors in a round over many; see ``HealthRegistry.guard``."""

        def is_expected() -> bool:
            return bool(partition.offline_reason) or not self.is_live(partition)

        return self.health.guard(partition.tp, condition, is_expected)

    def is_live(self, partition: Partition) -> bool:
        """Whether this very partition is being served: neither deleted nor taken offline."""
        topic = self.topics.get(partition.tp.topic)
        return topic is not None and partition in topic.slots

    # --- start-up ---------------------------------------------------------------------------

    def _start(self, eager: int) -> None:
        for topic in list(self.catalog.deleting.values()):
            self._attempt("topic.undeleted", topic.name, partial(self._finish_delete, topic))
        for doomed in doomed_directories(self.data):
            self._attempt("directory.unremoved", doomed.name, partial(self._files.rmtree, doomed))
        self._release(self.data / CLAIMED_NAME)  # no swap outlives its process
        topics = list(self.catalog.topics.values())
        for name in foreign_names(self.data, topics):
            logger.warning("directory.foreign name=%s: not ours; left alone", name)
        for path in self._missing_directories(topics):
            self._attempt("directory.unmade", path.name, partial(self._files.mkdir, path))
        self._files.sync_dir(self.data)  # includes names that a crashed process did not sync
        self.catalog.begin_terms()
        for topic in topics:
            self.topics[topic.name] = self._open_topic(topic)
        if len(unopened := self.unopened()) <= eager:
            load_all(unopened)

    def _make_directories(self, topics: Iterable[Topic]) -> None:
        """Make all missing directories and sync them, or raise."""
        for path in self._missing_directories(topics):
            self._files.mkdir(path)
        self._files.sync_dir(self.data)

    def _missing_directories(self, topics: Iterable[Topic]) -> Iterator[Path]:
        """Missing directories of partitions that were never written; others are lost, not new."""
        for topic in topics:
            for tp in topic.partition_list():
                path = self.data / str(tp)
                if self.recovery_points.is_new(tp) and not path.is_dir():
                    yield path

    def _open_topic(self, topic: Topic) -> LiveTopic:
        """Load a topic at start-up; its partitions are offline if its settings are invalid."""
        try:
            config = changed(TopicConfig(), topic.config)
        except InvalidConfig as error:
            live = LiveTopic(topic, TopicConfig())
            reason = f"its settings are not this program's: {error}"
            live.slots = [self._offline(tp, reason) for tp in topic.partition_list()]
            return live
        live = LiveTopic(topic, config)
        live.slots = [self._unopened(tp, topic.id, config) for tp in topic.partition_list()]
        return live

    def _unopened(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        """A partition that is recovered at its first use, on whichever thread that happens."""
        return UnopenedPartition(
            self.data / str(tp), tp, config, self.catalog.leader_epoch(tp),
            recover=partial(self._recover, tp, topic_id),
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
            return self._recover(tp, topic_id, config)
        except (CordwoodError, OSError) as error:
            return self._offline(tp, str(error))

    def _offline(self, tp: TopicPartition, reason: str) -> PartitionOffline:
        self.health.report(tp, Condition.OFFLINE, reason)
        return PartitionOffline(f"partition {tp} is offline: {reason}")

    def _recover(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        self.recovery_points.check_directory(tp, self.data / str(tp))
        partition = self._open_files(tp, topic_id, config)
        try:
            self._index_writer.settle_swap(partition)
            self._index_writer.reconcile(partition)
            self.recovery_points.check(partition)
        except BaseException:
            partition.close()
            raise
        partition.recovery.report(tp)
        return partition

    def _open_files(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        return Partition.open(
            self.data / str(tp), tp, config, files=self._files, clock=self._clock,
            leader_epoch=self.catalog.leader_epoch(tp),
            log_start_offset=self.catalog.log_start(tp),
            topic_id=uuid.UUID(topic_id),
            descriptors=self._file_cache,
            registry=self.health,
        )  # fmt: skip

    def accept_loss(self, tp: TopicPartition) -> AcceptedLoss:
        """Serve an offline partition without its missing records. Runs on the writer thread."""
        live = self.topic(tp.topic)
        with suppress(PartitionOffline):
            live.partition(tp.partition).load()
            raise InvalidPartitions(f"{tp} is online: nothing of it is known to be lost")
        accepted = accept_loss(
            self.data / str(tp),
            tp,
            catalog=self.catalog,
            files=self._files,
            open_partition=lambda: self._open_files(tp, live.id, live.config),
        )
        live.slots[tp.partition] = self._recover(tp, live.id, live.config)
        self.health.resolve(tp, Condition.OFFLINE)
        logger.warning("partition.loss_accepted partition=%s %s", tp, accepted)
        return accepted

    def accept_damage(self, tp: TopicPartition, base_offset: int) -> list[DamagedRange]:
        """Accept the known damage of a segment; its records stay refused. Safe on any thread.

        Only the damage known now is accepted; damage found later is reported again.
        """
        self.partition(tp)
        ranges = [found for found in self.health.damage(tp) if found.segment == base_offset]
        if not ranges:
            raise UnknownSegment(
                f"{tp} has no known damage in a segment {base_offset}; `cordwood topic describe "
                f"{tp.topic}` lists what is damaged"
            )
        self._index_writer.accept_damage(tp, base_offset, ranges, self._clock.now_ms())
        self.health.accept_damage(tp, base_offset, ranges)
        for found in ranges:
            logger.warning("partition.damage_accepted partition=%s %s", tp, found)
        return ranges

    # --- internals --------------------------------------------------------------------------

    def _delete(self, topic: Topic) -> None:
        """Undo a creation that could not be finished."""

        def undo() -> None:
            self.catalog.begin_delete(topic.name)
            self._finish_delete(topic)

        self._attempt("topic.undeleted", topic.name, undo)

    @staticmethod
    def _attempt(event: str, name: str, act: Callable[[], None]) -> None:
        """Try one of several actions; a failure is logged and does not stop the others."""
        try:
            act()
        except (CordwoodError, OSError) as error:
            logger.error("%s name=%s error=%s", event, name, error)  # noqa: TRY400

    def _finish_delete(self, topic: Topic) -> None:
        """Rename the directories, free the topic's name, then remove the directories."""
        doomed = []
        for tp in topic.partition_list():
            path = self.data / str(tp)
            if path.is_dir():
                target = self.data / doomed_name(tp, topic.id)
                self._files.rename(path, target)
                doomed.append(target)
        self._files.sync_dir(self.data)
        self.catalog.finish_delete(topic.name)
        for path in doomed:
            self._files.rmtree(path)
