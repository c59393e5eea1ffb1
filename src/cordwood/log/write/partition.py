"""One partition: ordered segments, the last of them active; append, read, roll, drop, truncate.

One thread writes (the broker's writer) and any number of threads read. Readers take an immutable
``ReadSnapshot`` and never wait for the writer. The writer replaces the snapshot when records become
readable (``publish``) or are removed. An append passes through three states: *written*
(``append_all``; not visible), *durable* (``sync``), *published* (``publish``: the high watermark
moves and readers see it). Nothing unpublished can be read; the writer decides when to acknowledge.

Disk errors. After a failed write (full disk, I/O error) the file is truncated to its previous size
and the error is raised; the next append may succeed. If the truncation fails too, the end of the
file is unknown and the partition goes offline. A failed sync is never repeated: the kernel may have
dropped the dirty pages and marked them clean, so a second ``fdatasync`` would succeed without
having written them. Everything unpublished is truncated, the partition refuses writes with
``PartitionOffline``, and published records stay readable. Opening it again scans the file.

A roll, in order: log synced → ``.index``, ``.timeindex``, ``.txnindex``, ``.snapshot`` → segment
stats → new ``.log`` → directory synced. After a crash before the new ``.log`` exists, the old
segment is still active and the files beside it are ignored or rebuilt.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple
from uuid import UUID

from cordwood.batch.header import BatchHeader
from cordwood.clock import Clock
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason, plan_capacity, plan_roll
from cordwood.errors import CordwoodError, DiskFull, OffsetOutOfRange, UnavailableError
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.epochs import EpochEnd, epoch_end, with_epoch
from cordwood.log.format.producers import Producers
from cordwood.log.health.partition_health import PartitionHealth, UnknownFileState
from cordwood.log.health.registry import HealthRegistry
from cordwood.log.read.published_offsets import PublishedOffsets
from cordwood.log.read.read_state import LogEnd, ReadState
from cordwood.log.read.readable_partition import ReadablePartition
from cordwood.log.read.survey import Survey
from cordwood.log.recovery.loader import Loader
from cordwood.log.recovery.result import Loaded, Recovery, open_segment
from cordwood.log.swap.ladder import live_segments, survey_staged
from cordwood.log.write import sidecars
from cordwood.log.write.partition_files import PartitionFiles
from cordwood.log.write.roll_authority import (
    LocalRollAuthority,
    PartitionRolls,
    RollAuthority,
    RollAwaited,
)
from cordwood.log.write.tail import (
    AppendGroup,
    PendingBatches,
    Tail,
    UnqueuedBatches,
    assign,
    offset_span,
    parse_markers,
)
from cordwood.model import NO_TIMESTAMP, SegmentInfo, TopicPartition

logger = logging.getLogger("cordwood.log")


class Appended(NamedTuple):
    """Offsets of an append, or of the earlier append it duplicates."""

    base_offset: int
    last_offset: int
    append_ms: int  # the broker's clock on LogAppendTime topics, otherwise NO_TIMESTAMP
    log_start_offset: int
    is_duplicate: bool = False


Outcome = Appended | CordwoodError


class Partition(ReadablePartition):
    """One partition of one topic. The section comments say which thread may call a method."""

    is_open: ClassVar[bool] = True  # False for an ``UnopenedPartition``

    def __init__(
        self, directory: Path, tp: TopicPartition, config: TopicConfig, *, files: Files,
        clock: Clock, leader_epoch: int, log_start_offset: int, descriptors: FileCache,
        registry: HealthRegistry, roll_authority: RollAuthority,
    ) -> None:  # fmt: skip
        """Load the partition from its existing directory. Callers use ``open``."""
        self.tp = tp
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self._files = files
        self._clock = clock
        self._file_cache = descriptors
        self._health = PartitionHealth(tp, registry)
        self.rolls = PartitionRolls(tp, roll_authority)
        self._is_closed = False
        self.is_end_recorded = True  # ``recovery_points`` has the active segment
        self.cuts: Counter[RollReason] = Counter()  # since opening, for the metrics
        loader = self._loader()
        loader.settle()
        loaded = loader.load(log_start_offset) or loader.create(log_start_offset)
        self._published_offsets = PublishedOffsets(directory, files)
        self._read_state = ReadState(self._published_offsets, self._health)
        self._read_state.log_start_offset = log_start_offset
        self._changes = PartitionFiles(directory, files, clock, self._read_state, self._health)
        self._adopt(loaded)
        self._repair_indexes()

    @classmethod
    def open(
        cls,
        directory: Path,
        tp: TopicPartition,
        config: TopicConfig,
        *,
        files: Files,
        clock: Clock,
        leader_epoch: int = 0,
        log_start_offset: int = 0,
        topic_id: UUID | None = None,
        descriptors: FileCache | None = None,
        registry: HealthRegistry | None = None,
        roll_authority: RollAuthority | None = None,
    ) -> Partition:
        """Create or recover the partition; raises ``CorruptionError`` and then truncates nothing.

        ``log_start_offset`` comes from the metadata. All partitions of a broker share
        ``descriptors`` and ``registry``.
        """
        descriptors = FileCache() if descriptors is None else descriptors
        if not directory.is_dir():
            files.mkdir(directory)
            files.sync_dir(directory.parent)
        if topic_id is not None:
            sidecars.write_metadata(files, directory, topic_id)
        return cls(
            directory, tp, config, files=files, clock=clock, leader_epoch=leader_epoch,
            log_start_offset=log_start_offset, descriptors=descriptors,
            registry=registry or HealthRegistry(),
            roll_authority=roll_authority or LocalRollAuthority(),
        )  # fmt: skip

    def _loader(self) -> Loader:
        return Loader(
            self.directory, files=self._files, descriptors=self._file_cache,
            interval_bytes=self.config.index_interval_bytes, now_ms=self._clock.now_ms(),
        )  # fmt: skip

    def _adopt(self, loaded: Loaded) -> None:
        """Start from the loaded files. All their records are durable, so all are published."""
        self._read_state.set_segments(loaded.segments)
        active = loaded.segments[-1]
        self._tail = Tail(active, self._files, self._published_offsets, self._file_cache.tails)
        self._epochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self.recovery: Recovery = loaded.recovery
        self.log_end_offset = active.end_offset
        self._clean = loaded.clean_end()
        start_offset = max(self._read_state.log_start_offset, loaded.segments[0].base_offset)
        self._read_state.log_start_offset = min(start_offset, self.log_end_offset)
        self.publish()

    def load(self) -> None:
        """Do nothing: an open partition is already loaded. Its unopened counterpart loads here."""

    # --- properties: any thread -------------------------------------------------------------

    @property
    def offline_reason(self) -> str:
        """Why the partition refuses writes; empty while it accepts them."""
        return self._health.reason

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """The latest leader epoch up to ``epoch`` and its end offset; None for a future epoch."""
        return epoch_end(self._epochs, epoch, self.high_watermark)

    # --- append: writer thread --------------------------------------------------------------

    def append_all(self, appends: Sequence[PendingBatches]) -> list[Outcome]:
        """Assign offsets to these appends in order and write them. They are not durable yet.

        Neighbouring appends share one write where possible. The active segment is rolled first when
        due. While that roll waits for its grant (``rolls.pending``), the outcomes end before the
        append that needs it. After the first append that fails because the disk is full, the rest
        are not tried, which keeps the order.
        """
        now_ms = self._clock.now_ms()
        outcomes: list[Outcome] = []
        group = AppendGroup()
        for member, batches in enumerate(appends):
            if group.members and not group.may_take(batches):
                failure = self._write(group, outcomes, now_ms)
                if isinstance(failure, DiskFull):
                    return outcomes + [failure] * (len(appends) - member)
                group = AppendGroup()
            try:
                outcomes.append(self._stage(group, member, batches, now_ms))
            except RollAwaited:
                return outcomes
            except DiskFull as error:
                return outcomes + [error] * (len(appends) - member)
            except CordwoodError as error:
                outcomes.append(error)
        if group.members:
            self._write(group, outcomes, now_ms)
        return outcomes

    def takes_at_once(self, appends: Sequence[PendingBatches]) -> bool:
        """Whether these appends write to the active ``.log`` only: no roll, no new leader epoch."""
        active = self._tail.segment
        is_term_known = with_epoch(self._epochs, self.leader_epoch, 0) is self._epochs
        if active.size_bytes == 0 or not is_term_known or self.rolls.pending is not None:
            return False  # the first append decides how much an empty segment may hold
        size_bytes = sum([len(batches.data) for batches in appends])
        span = offset_span([header for batches in appends for header in batches.headers])
        return plan_roll(active, size_bytes, span, self.config, self._clock.now_ms()) is None

    def append(
        self, data: bytearray | memoryview, headers: list[BatchHeader], *, strict: bool = True
    ) -> Appended:
        """Append one set of batches; raises the error if it fails."""
        for outcome in self.append_all([UnqueuedBatches(data, headers, strict)]):
            if isinstance(outcome, CordwoodError):
                raise outcome
            return outcome
        raise UnavailableError(f"{self.tp} waits for permission to open its next segment")

    def _stage(
        self, group: AppendGroup, member: int, batches: PendingBatches, now_ms: int
    ) -> Appended:
        """Check the batches and assign their offsets; they are written together with the group."""
        data, headers = batches.data, batches.headers
        assert headers, "an append has at least one batch"
        self._health.check()
        duplicate = self.producers.check(headers, strict=batches.strict)
        if duplicate is not None:
            return Appended(*duplicate, self._read_state.log_start_offset, is_duplicate=True)
        markers = parse_markers(data, headers)
        self.producers.check_markers(markers)
        span = offset_span(headers)
        if not group.members:
            reason = plan_roll(self._tail.segment, len(data), span, self.config, now_ms)
            if reason is not None or self.rolls.pending is not None:
                self.roll(reason or RollReason.DEMAND)
                if self.rolls.pending is not None:
                    raise RollAwaited
            self._begin_epoch()
            group.capacity = plan_capacity(self._tail.segment, self.config)
        base_offset = self.log_end_offset + group.span
        is_stamped = self.config.message_timestamp_type == "LogAppendTime"
        append_ms = now_ms if is_stamped else NO_TIMESTAMP
        stored = assign(data, headers, base_offset, self.leader_epoch, append_ms)
        group.add(member, data, stored, markers, span)
        log_start_offset = self._read_state.log_start_offset
        return Appended(base_offset, stored[-1].last_offset, append_ms, log_start_offset)

    def _write(
        self, group: AppendGroup, outcomes: list[Outcome], now_ms: int
    ) -> CordwoodError | None:
        """Write the whole group and account for it; a failure becomes each member's outcome."""
        try:
            if self.config.preallocate:
                self._tail.preallocate(self.config.segment_bytes)
            self._tail.write(group.data())
        except (CordwoodError, UnknownFileState) as error:
            failure = self._health.failure(error)
            for member in group.members:
                outcomes[member] = failure
            return failure
        self._account(group, now_ms)
        return None

    def _begin_epoch(self) -> None:
        """Record a new leader epoch before its first batch is written."""
        epochs = with_epoch(self._epochs, self.leader_epoch, self.log_end_offset)
        if epochs is not self._epochs:
            sidecars.write_epochs(self._files, self.directory, epochs)
            self._epochs = epochs

    def _account(self, group: AppendGroup, now_ms: int) -> None:
        active = self._tail.segment
        active.note(group.headers)
        self.log_end_offset = active.end_offset
        for header, marker in zip(group.headers, group.markers, strict=True):
            ended = self.producers.update(header, now_ms, marker)
            if ended is not None:
                active.aborted = (*active.aborted, ended)
                active.aborted_count += 1

    def sync(self) -> None:
        """Return once every append is on the device; raises ``PartitionOffline`` on failure."""
        self._health.check()
        if not (self._changes.are_names_durable or self._tail.is_synced):
            self._changes.sync_names("its name")
        try:
            self._tail.sync(self._read_state.published_bytes())
        except UnknownFileState as error:
            raise self._health.failure(error) from error

    def log_end(self) -> LogEnd:
        """The end of what is written; ``publish`` takes it once that much is durable."""
        active = self._tail.segment
        unstable = self.producers.first_unstable()
        return LogEnd(self.log_end_offset, active, active.size_bytes, active.newest_ms, unstable)

    def publish(self, end: LogEnd | None = None) -> None:
        """Move the high watermark to ``end``, by default to the log end."""
        self._read_state.publish(end or self.log_end())

    # --- roll and close: writer thread ------------------------------------------------------

    def roll(self, reason: RollReason) -> SegmentInfo | None:
        """Seal the active segment and open the next one in one step. None if it is empty.

        None also until the roll is granted (``rolls.pending``); the next call carries it out. The
        segment takes no appends meanwhile.
        """
        self._health.check()
        sealed = self._tail.segment
        if sealed.size_bytes == 0:
            return None
        granted_reason = self.rolls.ask(sealed, reason)
        if granted_reason is None:
            return None
        now_ms = self._clock.now_ms()
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)
        active = open_segment(
            self.directory, self.log_end_offset, self.config.index_interval_bytes, now_ms,
            self._file_cache,
        )  # fmt: skip
        self._tail.trim()
        self.sync()
        self._changes.write_sidecars(sealed, self.producers)
        self._changes.write_stats(self._read_state.segments, active, 0)
        file = self._files.create(active.path())
        self._changes.sync_names("the new segment's name")
        sealed.seal()
        self._tail = self._tail.succeed(active, file)
        self._read_state.set_segments((*self._read_state.segments, active))
        self._read_state.refresh()
        self._repair_indexes()
        self.rolls.finish()
        self.is_end_recorded = False
        self.cuts[granted_reason] += 1
        logger.info(
            "segment.sealed partition=%s base_offset=%d end_offset=%d records=%d reason=%s",
            self.tp, sealed.base_offset, sealed.end_offset, sealed.records, granted_reason,
        )  # fmt: skip
        return sealed.info()

    def _repair_indexes(self) -> None:
        """Write the indexes that were rebuilt in memory because their files were wrong."""
        for segment in self._changes.write_rebuilt_indexes(self._tail.synced_bytes):
            self.recovery.note_rebuilt(segment)

    def close(self) -> None:
        """Sync, and write indexes and producers. An offline partition only releases its files."""
        if self._is_closed:
            return
        marks = self._published_offsets
        end_marks = marks.unmap if self._health.reason else marks.close
        try:
            if not self._health.reason and not self._clean.holds(self._read_state.segments):
                self._repair_indexes()
                self.sync()
                self._changes.write_sidecars(self._tail.segment, self.producers)
                *sealed, active = self._read_state.segments
                self._changes.write_stats(sealed, active, self._tail.synced_bytes)
                self._files.sync_dir(self.directory)
        finally:
            self._is_closed = True
            self._health.end("it was closed")
            for segment in self._read_state.segments:
                segment.retire()
            self._release()
            end_marks()

    def abandon(self, reason: str) -> None:
        """Stop without writing: the files are about to be deleted or cannot be trusted."""
        self._health.end(reason)
        self.close()

    def _release(self) -> None:
        self._tail.close()
        self._changes.forget()

    # --- reclaim, truncate, replace: writer thread ------------------------------------------

    def advance_start(self, offset: int) -> None:
        """Move the log start to ``offset``; segments that end at or below it may then be dropped.

        Changes memory only: the caller has already stored the new log start.
        """
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.tp}: the log start can move to between {self.log_start_offset} and the "
                f"high watermark {self.high_watermark}, not to {offset}"
            )
        self._read_state.log_start_offset = offset
        self._read_state.refresh()
        self._health.end_damage(below=offset)

    def drop(self, base_offsets: Sequence[int]) -> tuple[SegmentInfo, ...]:
        """Drop the oldest sealed segments, given by their base offsets, oldest first.

        Their files are renamed to ``.deleted`` and kept for a while, for readers that have them
        open. The log start moves up to the first remaining segment.
        """
        self._health.check()
        count = len(base_offsets)
        assert tuple(base_offsets) == self._read_state.bases[:count], "only the oldest are dropped"
        dropped, left = self._read_state.segments[:count], self._read_state.segments[count:]
        assert left, "the active segment is never dropped"
        assert left[0].base_offset <= self.high_watermark, "nothing unpublished is dropped"
        self._read_state.log_start_offset = max(self.log_start_offset, left[0].base_offset)
        self._read_state.set_segments(left)
        self._read_state.refresh()
        self._health.end_damage(below=self.log_start_offset)
        self._changes.mark_deleted(dropped, "the removal of segments")
        return tuple(segment.info() for segment in dropped)

    @property
    def has_deleted(self) -> bool:
        """Whether ``purge_deleted`` will have something to remove."""
        return self._changes.has_deleted

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the ``.deleted`` files whose delay has passed; returns how many."""
        return self._changes.purge_deleted(now_ms, self.config.file_delete_delay_ms)

    def truncate_to(self, offset: int) -> None:
        """Remove every record from ``offset`` on, including the whole batch that holds ``offset``.

        After a crash on the way, more records than requested remain, in order; call it again.
        """
        self._health.check()
        if offset >= self.log_end_offset:
            return
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"{self.tp}: cannot truncate to {offset}, below the log start")
        keep = sum(base <= offset for base in self._read_state.bases)
        target, later = self._read_state.segments[keep - 1], self._read_state.segments[keep:]
        with target.reading() as fd:
            position = target.locate(fd, offset, target.size_bytes)
        with self._read_state.replacing, self._health.offline_after_errors("a truncation"):
            target.is_void = True
            size_bytes = target.size_bytes if position is None else position
            self._changes.truncate(target, later, size_bytes, self._epochs)
            loaded = self._loader().load(self._read_state.log_start_offset)
            assert loaded is not None, "the target is still there"
            self._release()
            self._adopt(loaded)

    def replace(
        self,
        old: Sequence[int],
        new: Sequence[int],
        surveys: Mapping[int, Survey] | None = None,
    ) -> None:
        """Replace sealed segments by new ones that stand in the directory as ``.swap`` files.

        ``old`` and ``new`` are base offsets; both cover the same offset range. These are the last
        two steps of a swap: old files become ``.deleted``, new ones lose their suffix. Readers that
        have an old file open keep reading it; others wait for the renames. Segments in ``surveys``
        are not walked again. On an error the partition goes offline; opening it again finishes the
        swap.
        """
        self._health.check()
        start = self._read_state.bases.index(old[0])
        end = start + len(old)
        assert tuple(old) == self._read_state.bases[start:end], "a run of segments is replaced"
        assert end < len(self._read_state.segments), "the active segment is never replaced"
        assert self._read_state.bases[end] <= self.high_watermark, "nothing unpublished is replaced"
        assert new[0] == old[0]
        known, interval_bytes = surveys or {}, self.config.index_interval_bytes
        now_ms = self._clock.now_ms()
        staged = [
            known.get(base) or survey_staged(self.directory, base, interval_bytes, now_ms)
            for base in new
        ]
        with self._read_state.replacing, self._health.offline_after_errors("a swap"):
            self._changes.swap_names(start, end, new, self._tail.synced_bytes)
            segments = self._read_state.segments
            fresh = live_segments(
                self.directory, staged, segments[end].base_offset, self._file_cache, interval_bytes
            )
            self._read_state.set_segments((*segments[:start], *fresh, *segments[end:]))
            self._read_state.refresh()
        self._health.replaced(old)
        self._repair_indexes()
