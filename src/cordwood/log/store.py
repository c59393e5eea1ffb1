"""Topics → partitions: opened, created, changed and deleted; one process per data directory.

The catalog is the truth about which topics there are. So that a crash between the catalog and the
files leaves nothing half done, every change has one commit point, a catalog transaction, and the
files follow it:

* *create*: topics recorded, then directories. A start-up makes directories that never came to be;
  one that had been there before and is gone means lost records, and its partition stays offline.
  The files in them are made durable with the first append that is.
* *delete*: topic and all that is known of it removed and the deletion noted, directories renamed
  away, the note removed, files removed. A start-up goes on wherever it stopped.
* *reclaim*: segments marked reclaimed and the log start moved, then files dropped.
* *swap*: noted, files swapped (``swap``), then the segment index.

What changes partitions runs on the writer thread; lookups and ``hash_sealed`` run on any. Damage
takes one partition offline, with its reason; all others serve.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cordwood.clock import Clock
from cordwood.config import KIB, BrokerConfig, TopicConfig, changed, overrides, rows
from cordwood.decide.retention import RetentionPlan
from cordwood.decide.roll import RollReason
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    InvalidConfig,
    InvalidManifest,
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    PartitionOffline,
    TopicExists,
    UnavailableError,
    UnknownTopic,
)
from cordwood.log.descriptors import Descriptors
from cordwood.log.directory import (
    META,
    doomed_directories,
    doomed_name,
    foreign_names,
    open_directory,
)
from cordwood.log.files import TMP_SUFFIX, Files, OpenFile
from cordwood.log.ledger import Ledger
from cordwood.log.manifest import STAGING_NAME, is_job_name
from cordwood.log.partition import Partition
from cordwood.log.swap import Verified, apply_swap, read_manifest, verify_staged
from cordwood.meta.catalog import Catalog
from cordwood.meta.keys import Topic
from cordwood.meta.sqlite import SqliteStore
from cordwood.model import SegmentInfo, TopicPartition, is_topic_name

PARTITIONS_MAX = 10_000
CLOSE_THREADS = 16  # a device orders many syncs at once better than one after the other
PROBE_BYTES = 64 * KIB  # an empty disk takes at least so much

logger = logging.getLogger("cordwood.log")


class NewTopic(NamedTuple):
    """A topic that is wanted; settings are dotted names."""

    name: str
    partitions: int
    config: Mapping[str, object]


class LiveTopic:
    """A topic and its partitions, open or offline."""

    def __init__(self, topic: Topic, config: TopicConfig) -> None:
        """Without partitions yet; the store opens them."""
        self.name = topic.name
        self.id = topic.id
        self.config = config
        self.slots: list[Partition | PartitionOffline] = []

    @property
    def partition_count(self) -> int:
        """How many partitions it has, offline ones included."""
        return len(self.slots)

    def partition(self, number: int) -> Partition:
        """One partition; raises ``UnknownTopic`` or ``PartitionOffline``."""
        if not 0 <= number < len(self.slots):
            raise UnknownTopic(
                f"topic {self.name} has no partition {number}, only 0 to {len(self.slots) - 1}"
            )
        slot = self.slots[number]
        if isinstance(slot, PartitionOffline):
            raise PartitionOffline(*slot.args)
        return slot

    def online(self) -> list[Partition]:
        """The partitions that serve."""
        return [slot for slot in self.slots if isinstance(slot, Partition)]


class Store:
    """One data directory, held by this process from ``open`` to ``close``."""

    def __init__(
        self, data: Path, catalog: Catalog, clock: Clock, files: Files, lock: OpenFile
    ) -> None:
        """From an open directory; use ``open``."""
        self.data = data
        self.catalog = catalog
        self.topics: dict[str, LiveTopic] = {}
        self._clock = clock
        self._files = files
        self._lock = lock
        self._closed = False
        self._descriptors = Descriptors()
        self._ledger = Ledger(catalog)

    @classmethod
    def open(cls, data: Path, config: BrokerConfig, clock: Clock, files: Files) -> Store:
        """Lock, check and recover the directory; raises ``ConfigError``s that name the remedy."""
        del config  # nothing of it concerns the files yet; the broker's defaults are its own
        lock = open_directory(data, files)
        try:
            catalog = Catalog(SqliteStore(data / META, clock))
        except BaseException:
            files.close(lock)
            raise
        store = cls(data, catalog, clock, files, lock)
        try:
            store._start()
        except BaseException:
            store.close()
            raise
        return store

    def has_space(self) -> bool:
        """Whether the disk takes a small file now; asked after it was full."""
        probe = self.data / f"space{TMP_SUFFIX}"
        try:
            self._files.unlink(probe)
            file = self._files.create(probe)
            try:
                self._files.write_at(file, bytes(PROBE_BYTES), 0)
                self._files.sync_data(file)
            finally:
                self._files.close(file)
                self._files.unlink(probe)
        except UnavailableError:
            return False
        return True

    def close(self) -> None:
        """Close every partition, the catalog, and give the lock back; twice is as good as once."""
        if self._closed:
            return
        self._closed = True
        try:
            self._close_partitions()
        finally:
            self.topics.clear()
            self.catalog.close()
            self._files.close(self._lock)

    def _close_partitions(self) -> None:
        """Side by side: each waits for the device most of its time, and none needs another."""
        partitions = [each for topic in self.topics.values() for each in topic.online()]
        if len(partitions) == 1:
            _close(partitions[0])
            return
        with ThreadPoolExecutor(CLOSE_THREADS, thread_name_prefix="cordwood-close") as pool:
            list(pool.map(_close, partitions))  # asked for, so that no failure is lost

    # --- lookups: any thread ----------------------------------------------------------------

    def topic(self, name: str) -> LiveTopic:
        """A topic; raises ``UnknownTopic``."""
        try:
            return self.topics[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name}; `cordwood topic list` has all") from None

    def partition(self, tp: TopicPartition) -> Partition:
        """A partition; raises ``UnknownTopic`` or ``PartitionOffline``."""
        return self.topic(tp.topic).partition(tp.partition)

    def partitions(self, name: str) -> list[Partition]:
        """The partitions of a topic that serve; none when there is no such topic."""
        topic = self.topics.get(name)
        return topic.online() if topic else []

    @property
    def offline(self) -> dict[TopicPartition, PartitionOffline]:
        """Every partition that does not serve, and why."""
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
        """Create one topic; raises what is wrong with it."""
        (outcome,) = self.create_topics([NewTopic(name, partitions, config or {})])
        if isinstance(outcome, CordwoodError):
            raise outcome
        return outcome

    def create_topics(self, wanted: Sequence[NewTopic]) -> list[LiveTopic | CordwoodError]:
        """Create topics, each checked first and made whole or not at all; one sync serves all."""
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
        """Raise what ``create_topic`` would; changes nothing."""
        if not is_topic_name(name):
            raise InvalidTopic(
                f"{name!r} cannot name a topic; use 1 to 249 of A-Z a-z 0-9 . _ - (not . or ..)"
            )
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"{partitions} partitions; use 1 to {PARTITIONS_MAX}")
        if name in self.topics:
            raise TopicExists(f"topic {name} exists already")
        self._check_free(name, range(partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and everything known of it."""
        live = self.topic(name)
        with self._ledger.changing:
            topic = self.catalog.begin_delete(name)
            del self.topics[name]
        for partition in live.online():
            partition.abandon("its topic was deleted")
        self._finish_delete(topic)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings, all or none; None gives one its default back. Takes effect at once."""
        live = self.topic(name)
        defaults = rows(TopicConfig)
        unset = {n: v for n, v in changes.items() if v is None and n in defaults}
        kept = {n: v for n, v in overrides(live.config).items() if n not in unset}
        config = changed(TopicConfig(), kept | {n: v for n, v in changes.items() if n not in unset})
        self.catalog.alter_topic(replace(self.catalog.topic(name), config=overrides(config)))
        live.config = config
        for partition in live.online():
            partition.config = config

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the partition count to ``count``; raises ``InvalidPartitions``.

        One that cannot be opened now, on a full disk, is offline until the next start.
        """
        live = self.topic(name)
        before = live.partition_count
        if not before < count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {name} has {before} partitions; ask for {before + 1} to {PARTITIONS_MAX}"
            )
        self._check_free(name, range(before, count))
        topic = replace(self.catalog.topic(name), partitions=count)
        self.catalog.alter_topic(topic)
        self._make_directories([topic])
        for tp in topic.partition_list()[before:]:
            live.slots.append(self._open_partition(tp, live.id, live.config))

    # --- segments: writer thread ------------------------------------------------------------

    def roll(self, partition: Partition, reason: RollReason) -> SegmentInfo | None:
        """Seal the active segment and index it; None when it is empty."""
        sealed = partition.roll(reason)
        if sealed is not None:
            try:
                self._ledger.record(partition.tp, [sealed])
            except UnavailableError as error:  # hash_sealed will do it
                logger.warning("segment.unindexed partition=%s error=%s", partition.tp, error)
        return sealed

    def reclaim(self, partition: Partition, plan: RetentionPlan) -> None:
        """Drop what a plan says, as far as the segments are still those it was made for."""
        current = partition.segments()[:-1]
        drops = []
        for segment, drop in zip(current, plan.drops, strict=False):
            if segment != drop.segment:
                break
            drops.append(segment)
        if not drops:
            return
        self._ledger.reclaim(partition.tp, drops)
        partition.drop([segment.base_offset for segment in drops])

    def advance_start(self, tp: TopicPartition, offset: int) -> int:
        """Delete the records below an offset (DeleteRecords); the log start after it."""
        partition = self.partition(tp)
        if offset > partition.high_watermark:
            raise OffsetOutOfRange(
                f"{tp}: cannot delete up to {offset}, the log ends at {partition.high_watermark}"
            )
        if offset > partition.log_start_offset:
            self.catalog.set_log_start(tp, offset)
            partition.advance_start(offset)
        return partition.log_start_offset

    # --- jobs: the gate ---------------------------------------------------------------------

    def verify_job(self, job: str) -> Verified:
        """Read a finished job's manifest and every staged byte; on any thread."""
        staging = self._staging(job)
        manifest = read_manifest(staging)
        return verify_staged(
            staging,
            manifest,
            self._files,
            interval_bytes=self.topic(manifest.topic).config.index_interval_bytes,
            now_ms=self._clock.now_ms(),
        )

    def apply_job(self, job: Verified) -> None:
        """Swap a verified job in and forget its staging; on the writer thread."""
        tp = job.manifest.topic_partition
        partition, live = self.partition(tp), self.topic(tp.topic)
        staging = self._staging(job.manifest.job)
        with self._ledger.changing:
            self._ledger.settle_swap(partition)
            hashes = self._ledger.hashes(tp)
            self._ledger.begin_swap(job)
            try:
                apply_swap(
                    partition, staging, job, files=self._files, topic_id=live.id, hashes=hashes
                )
            except PartitionOffline as error:
                self.take_offline(partition, error)
                raise
            except CordwoodError:
                self.catalog.cancel_swap(tp)
                raise
            self._ledger.settle_swap(partition)
        self._files.rmtree(staging)

    def take_offline(self, partition: Partition, error: PartitionOffline) -> None:
        """Stop serving a partition until the next start."""
        logger.error("partition.offline partition=%s error=%s", partition.tp, error)
        self.topic(partition.tp.topic).slots[partition.tp.partition] = error
        partition.abandon(str(error))

    # --- the segment index: any thread ------------------------------------------------------

    def hash_sealed(self, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Index what was sealed since, and learn the sha256 of what has none; how many it hashed.

        Reads whole files, so it belongs to a background thread.
        """
        hashed = 0
        for topic in list(self.topics.values()):
            for partition in topic.online():
                self._ledger.index(partition, self._is_live)
                for entry in self._ledger.unhashed(partition.tp):
                    if should_stop():
                        return hashed
                    hashed += self._ledger.hash(partition, entry, self._is_live)
        return hashed

    def _is_live(self, partition: Partition) -> bool:
        topic = self.topics.get(partition.tp.topic)
        return topic is not None and partition in topic.slots

    # --- start-up ---------------------------------------------------------------------------

    def _start(self) -> None:
        for topic in list(self.catalog.deleting.values()):
            self._finish_delete(topic)
        for doomed in doomed_directories(self.data):
            self._files.rmtree(doomed)
        topics = list(self.catalog.topics.values())
        for name in foreign_names(self.data, topics):
            logger.warning("directory.foreign name=%s: not ours; left alone", name)
        self._make_directories(topics)
        self.catalog.begin_terms()
        for topic in topics:
            self.topics[topic.name] = self._open_topic(topic)

    def _make_directories(self, topics: Iterable[Topic]) -> None:
        """Directories of partitions in their first term; later ones have been there before."""
        for topic in topics:
            for tp in topic.partition_list():
                path = self.data / str(tp)
                if self.catalog.leader_epoch(tp) == 0 and not path.is_dir():
                    self._files.mkdir(path)
        self._files.sync_dir(self.data)  # also those of a process that died before its sync

    def _open_topic(self, topic: Topic) -> LiveTopic:
        """A topic at start-up; what cannot be opened is offline, and the rest serves."""
        try:
            config = changed(TopicConfig(), topic.config)
        except InvalidConfig as error:
            live = LiveTopic(topic, TopicConfig())
            reason = f"its settings are not this program's: {error}"
            live.slots = [_offline(tp, reason) for tp in topic.partition_list()]
            return live
        live = LiveTopic(topic, config)
        live.slots = [self._open_partition(tp, topic.id, config) for tp in topic.partition_list()]
        return live

    def _open_partition(
        self, tp: TopicPartition, topic_id: str, config: TopicConfig
    ) -> Partition | PartitionOffline:
        try:
            return self._recover(tp, topic_id, config)
        except (CordwoodError, OSError) as error:
            return _offline(tp, str(error))

    def _recover(self, tp: TopicPartition, topic_id: str, config: TopicConfig) -> Partition:
        path = self.data / str(tp)
        if not path.is_dir():
            raise CorruptionError(
                f"its directory {path} is gone; restore it from a copy, or delete the topic"
            )
        partition = Partition.open(
            path,
            tp,
            config,
            files=self._files,
            clock=self._clock,
            leader_epoch=self.catalog.leader_epoch(tp),
            log_start_offset=self.catalog.log_start(tp),
            topic_id=uuid.UUID(topic_id),
            descriptors=self._descriptors,
        )
        try:
            self._ledger.settle_swap(partition)
            self._ledger.reconcile(partition)
        except BaseException:
            partition.close()
            raise
        _report(partition)
        return partition

    # --- inside -----------------------------------------------------------------------------

    def _delete(self, topic: Topic) -> None:
        """Undo a creation that could not be finished."""
        try:
            self.catalog.begin_delete(topic.name)
            self._finish_delete(topic)
        except CordwoodError as error:
            logger.error("topic.undeleted topic=%s error=%s", topic.name, error)  # noqa: TRY400

    def _finish_delete(self, topic: Topic) -> None:
        """Move the directories out of the way, free the name, then remove them."""
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

    def _check_free(self, name: str, numbers: range) -> None:
        """Refuse a name under which somebody else's files lie: a new topic starts empty."""
        for number in numbers:
            path = self.data / f"{name}-{number}"
            if path.exists() and not (path.is_dir() and not any(path.iterdir())):
                raise TopicExists(f"{path} is there and belongs to no topic; move it away first")

    def _staging(self, job: str) -> Path:
        if not is_job_name(job):
            raise InvalidManifest(f"{job!r} is no job name")
        return self.data / STAGING_NAME / job


def _close(partition: Partition) -> None:
    try:
        partition.close()
    except CordwoodError as error:  # the next start scans what could not be written
        logger.warning("partition.unclean partition=%s error=%s", partition.tp, error)


def _offline(tp: TopicPartition, reason: str) -> PartitionOffline:
    logger.error("partition.offline partition=%s error=%s", tp, reason)
    return PartitionOffline(f"partition {tp} is offline: {reason}")


def _report(partition: Partition) -> None:
    recovery = partition.recovery
    logger.info(
        "partition.opened partition=%s seq_resume=%d end=%s cut_bytes=%d scanned_bytes=%d",
        partition.tp,
        recovery.next_offset,
        recovery.end.value,
        recovery.cut_bytes,
        recovery.scanned_bytes,
    )
    for note in recovery.notes:
        logger.warning("partition.note partition=%s %s", partition.tp, note)
