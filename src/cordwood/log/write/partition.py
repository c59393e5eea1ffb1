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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple
from uuid import UUID

from cordwood.batch.header import BatchHeader
from cordwood.clock import Clock
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason, plan_capacity, plan_roll
from cordwood.errors import CordwoodError, DiskFull, OffsetOutOfRange
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.epochs import EpochEnd, epoch_end, with_epoch, without_epochs_from
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.layout import SEGMENT_KINDS
from cordwood.log.format.producers import Aborted, Producers
from cordwood.log.health.partition_health import PartitionHealth
from cordwood.log.health.registry import HealthRegistry
from cordwood.log.read.published_offsets import PublishedOffsets
from cordwood.log.read.read_state import ReadState
from cordwood.log.read.segment import Segment
from cordwood.log.read.snapshot import ReadSlice, ReadSnapshot, TimedOffset
from cordwood.log.read.survey import Survey
from cordwood.log.recovery.loader import Loaded, Loader, Recovery, open_segment
from cordwood.log.swap.replace_segments import live_segments, survey_staged, take_live_names
from cordwood.log.write import sidecars
from cordwood.log.write.pending_deletes import PendingDeletes
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


class Partition:
    """One partition of one topic. The section comments say which thread may call a method."""

    is_open: ClassVar[bool] = True  # False for an ``UnopenedPartition``

    def __init__(
        self, directory: Path, tp: TopicPartition, config: TopicConfig, *, files: Files,
        clock: Clock, leader_epoch: int, log_start_offset: int, descriptors: FileCache,
        registry: HealthRegistry,
    ) -> None:  # fmt: skip
        """Load the partition from its existing directory. Callers use ``open``."""
        self.tp = tp
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self._files = files
        self._clock = clock
        self._file_cache = descriptors
        self._pending_deletes = PendingDeletes(files)
        self._health = PartitionHealth(tp, registry)
        self._is_closed = False
        self._are_names_durable = False  # a crash may have preceded the sync
        self.is_end_noted = True  # ``recovery_points`` has the active segment
        self.cuts: Counter[RollReason] = Counter()  # since opening, for the metrics
        loader = self._loader()
        loader.settle()
        loaded = loader.load(log_start_offset) or loader.create(log_start_offset)
        self._published_offsets = PublishedOffsets(directory, files)
        self._read_state = ReadState(self._published_offsets, self._health)
        self._read_state.log_start_offset = log_start_offset
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
    ) -> Partition:
        """Create or recover the partition; raises ``CorruptionError`` and then truncates nothing.

        ``log_start_offset`` comes from the catalog. All partitions of a broker share
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
        )  # fmt: skip

    def _loader(self) -> Loader:
        return Loader(
            self.directory, files=self._files, descriptors=self._file_cache,
            interval_bytes=self.config.index_interval_bytes, now_ms=self._clock.now_ms(),
        )  # fmt: skip

    def _adopt(self, loaded: Loaded) -> None:
        """Start from the loaded files. All their records are durable, so all are published."""
        self._read_state.set_segments(loaded.segments)
        self._tail = Tail(
            self._active, self._files, self._published_offsets, self._file_cache.tails
        )
        self._epochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self.recovery: Recovery = loaded.recovery
        self.next_offset = self._active.end_offset
        self._clean = loaded.clean_end()
        start_offset = max(self._read_state.log_start_offset, loaded.segments[0].base_offset)
        self._read_state.log_start_offset = min(start_offset, self.next_offset)
        self.publish()

    def load(self) -> None:
        """Do nothing: an open partition is already loaded. Its unopened counterpart loads here."""

    # --- properties: any thread -------------------------------------------------------------

    @property
    def _active(self) -> Segment:
        return self._read_state.active

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that can be read."""
        return self._read_state.view.log_start_offset

    @property
    def high_watermark(self) -> int:
        """One past the last published record."""
        return self._read_state.view.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The start of the first open transaction, or the high watermark if there is none."""
        return self._read_state.view.last_stable_offset

    @property
    def size_bytes(self) -> int:
        """Total size of all ``.log`` files."""
        return sum(segment.size_bytes for segment in self._read_state.segments)

    @property
    def offline_reason(self) -> str:
        """Why the partition refuses writes; empty while it accepts them."""
        return self._health.reason

    def segments(self) -> tuple[SegmentInfo, ...]:
        """All segments, oldest first; the last one is active."""
        return tuple(segment.info() for segment in self._read_state.segments)

    def sealed_segment(self, base_offset: int) -> Segment | None:
        """The live sealed segment with this base offset, if any. Safe on any thread."""
        sealed = self._read_state.view.segments[:-1]
        return next((each for each in sealed if each.base_offset == base_offset), None)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """The latest leader epoch up to ``epoch`` and its end offset; None for a future epoch."""
        return epoch_end(self._epochs, epoch, self.high_watermark)

    # --- reads: any thread ------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int | None = None) -> ReadSlice:
        """Return whole batches from the one that holds ``offset``, or the next one after it.

        Returns at least one batch, whatever its size. Returns none only if no batch lies below
        ``end_offset`` and the high watermark; ``next_offset`` then says where to read next. Raises
        ``OffsetOutOfRange``.
        """

        def ask(view: ReadSnapshot) -> ReadSlice:
            if not view.log_start_offset <= offset <= max(view.high_watermark, self.next_offset):
                raise OffsetOutOfRange(
                    f"{self.tp}: offset {offset} is not between the log start "
                    f"{view.log_start_offset} and the high watermark {view.high_watermark}"
                )
            return view.read(
                offset, max_bytes, view.high_watermark if end_offset is None else end_offset
            )

        return self._read_state.look(ask)

    def is_resident(self, offset: int, max_bytes: int) -> bool:
        """Whether this ``read`` is expected to be served from memory, without disk access."""
        return self._read_state.look(lambda view: view.is_resident(offset, max_bytes))

    def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        """The first record whose timestamp is at or after ``timestamp_ms``."""
        return self._read_state.look(lambda view: view.find_time(timestamp_ms))

    def find_max_time(self) -> TimedOffset | None:
        """The first record that has the largest timestamp in the partition."""
        return self._read_state.look(ReadSnapshot.find_max_time)

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that have records in ``[start, end)``."""
        return self._read_state.look(lambda view: view.aborted(start, end))

    # --- append: writer thread --------------------------------------------------------------

    def append_all(self, appends: Sequence[PendingBatches]) -> list[Outcome]:
        """Assign offsets to these appends in order and write them. They are not durable yet.

        Neighbouring appends share one write where possible. The active segment is rolled first when
        due. After the first append that fails because the disk is full, the rest are not tried,
        which keeps the order.
        """
        now_ms = self._clock.now_ms()
        outcomes: list[Outcome] = []
        group = AppendGroup()
        for member, batches in enumerate(appends):
            if group.members and not group.may_take(batches):
                self._write(group, outcomes, now_ms)
                group = AppendGroup()
            if outcomes and isinstance(outcomes[-1], DiskFull):
                return outcomes + [outcomes[-1]] * (len(appends) - member)
            try:
                outcomes.append(self._stage(group, member, batches, now_ms))
            except CordwoodError as error:
                outcomes.append(error)
        if group.members:
            self._write(group, outcomes, now_ms)
        return outcomes

    def takes_at_once(self, appends: Sequence[PendingBatches]) -> bool:
        """Whether these appends write to the active ``.log`` only: no roll, no new leader epoch."""
        is_term_known = with_epoch(self._epochs, self.leader_epoch, 0) is self._epochs
        if self._active.size_bytes == 0 or not is_term_known:
            return False  # the first append decides how much an empty segment may hold
        size_bytes = sum([len(batches.data) for batches in appends])
        span = offset_span([header for batches in appends for header in batches.headers])
        return plan_roll(self._active, size_bytes, span, self.config, self._clock.now_ms()) is None

    def append(
        self, data: bytearray | memoryview, headers: list[BatchHeader], *, strict: bool = True
    ) -> Appended:
        """Append one set of batches; raises the error if it fails."""
        (outcome,) = self.append_all([UnqueuedBatches(data, headers, strict)])
        if isinstance(outcome, CordwoodError):
            raise outcome
        return outcome

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
        if not group.members:
            reason = plan_roll(self._active, len(data), offset_span(headers), self.config, now_ms)
            if reason is not None:
                self.roll(reason)
            self._begin_epoch()
            group.room = plan_capacity(self._active, self.config)
        base_offset = self.next_offset + group.span
        is_stamped = self.config.message_timestamp_type == "LogAppendTime"
        append_ms = now_ms if is_stamped else NO_TIMESTAMP
        stored = assign(data, headers, base_offset, self.leader_epoch, append_ms)
        group.add(member, data, stored, markers)
        log_start_offset = self._read_state.log_start_offset
        return Appended(base_offset, stored[-1].last_offset, append_ms, log_start_offset)

    def _write(self, group: AppendGroup, outcomes: list[Outcome], now_ms: int) -> None:
        """Write the whole group and account for it; a failure becomes each member's outcome."""
        try:
            self._health.check()
            self._health.unless_broken(lambda: self._tail.write(group.data()))
        except CordwoodError as error:
            for member in group.members:
                outcomes[member] = error
        else:
            self._note(group, now_ms)

    def _begin_epoch(self) -> None:
        """Record a new leader epoch before its first batch is written."""
        epochs = with_epoch(self._epochs, self.leader_epoch, self.next_offset)
        if epochs is not self._epochs:
            sidecars.write_epochs(self._files, self.directory, epochs)
            self._epochs = epochs

    def _note(self, group: AppendGroup, now_ms: int) -> None:
        active = self._active
        active.note(group.headers)
        self.next_offset = active.end_offset
        for header, marker in zip(group.headers, group.markers, strict=True):
            ended = self.producers.update(header, now_ms, marker)
            if ended is not None:
                active.aborted = (*active.aborted, ended)
                active.aborted_count += 1

    def sync(self) -> None:
        """Return once every append is on the device; raises ``PartitionOffline`` on failure."""
        self._health.check()
        if not (self._are_names_durable or self._tail.is_synced):
            self._sync_names("its name")
        self._health.unless_broken(lambda: self._tail.sync(self._read_state.published_bytes()))

    def publish(self) -> None:
        """Make every append so far visible to readers."""
        self._read_state.publish(self.producers.first_unstable())

    # --- roll and close: writer thread ------------------------------------------------------

    def roll(self, reason: RollReason) -> SegmentInfo | None:
        """Seal the active segment and open the next one in one step. None if it is empty."""
        self._health.check()
        sealed = self._active
        if sealed.size_bytes == 0:
            return None
        now_ms = self._clock.now_ms()
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)
        active = open_segment(
            self.directory, self.next_offset, self.config.index_interval_bytes, now_ms,
            self._file_cache,
        )  # fmt: skip
        self.sync()
        self._write_sidecars(sealed)
        facts = [segment.facts() for segment in self._read_state.segments]
        sidecars.write_facts(self._files, self.directory, [*facts, active.open_facts(0)])
        file = self._files.create(active.path())
        self._sync_names("the new segment's name")
        sealed.seal()
        self._tail = self._tail.succeed(active, file)
        self._read_state.set_segments((*self._read_state.segments, active))
        self._read_state.refresh()
        self._repair_indexes()
        self.is_end_noted = False
        self.cuts[reason] += 1
        logger.info(
            "segment.sealed partition=%s base_offset=%d end_offset=%d records=%d reason=%s",
            self.tp, sealed.base_offset, sealed.end_offset, sealed.records, reason,
        )  # fmt: skip
        return sealed.info()

    def _write_sidecars(self, segment: Segment) -> None:
        """Write the active segment's index files and a snapshot of the producers at its end."""
        assert isinstance(segment.index, MemoryIndex)
        segment.index.seal()
        sidecars.write_index(self._files, segment)
        sidecars.write_snapshot(self._files, self.directory, self.next_offset, self.producers)

    def _write_facts(self, sealed: Iterable[Segment]) -> None:
        """Write the stats of these segments and, with its synced bytes only, of the active one."""
        facts = [segment.facts() for segment in sealed]
        facts.append(self._active.open_facts(self._tail.synced_bytes))
        sidecars.write_facts(self._files, self.directory, facts)

    def _sync_names(self, what: str) -> None:
        try:
            self._files.sync_dir(self.directory)
            self._are_names_durable = True
        except CordwoodError as error:
            self._health.go_offline(f"{what} could not be made durable ({error})")
            self._health.check()

    def _repair_indexes(self) -> None:
        """Write the indexes that were rebuilt in memory because their files were wrong."""
        wrong = [s for s in self._read_state.segments if s.is_sealed and s.is_index_wrong]
        if not wrong:
            return
        try:
            for segment in wrong:
                sidecars.write_index(self._files, segment)
            self._write_facts(self._read_state.segments[:-1])
            self._files.sync_dir(self.directory)
        except CordwoodError as error:
            logger.warning("index.not_written partition=%s: %s", self.tp, error)
            return
        for segment in wrong:
            logger.info("index.rebuilt partition=%s base=%d", self.tp, segment.base_offset)
            self.recovery.note_rebuilt(segment)
            segment.forget()
            segment.seal()

    def close(self) -> None:
        """Sync, and write indexes and producers. An offline partition only releases its files."""
        if self._is_closed:
            return
        end_marks = (
            self._published_offsets.unmap if self._health.reason else self._published_offsets.close
        )
        try:
            if not self._health.reason and not self._clean.holds(self._read_state.segments):
                self._repair_indexes()
                self.sync()
                self._write_sidecars(self._active)
                self._write_facts(self._read_state.segments[:-1])
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
        for segment in (*self._read_state.segments, *self._pending_deletes.segments()):
            segment.forget()

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
        self._mark_deleted(dropped)
        return tuple(segment.info() for segment in dropped)

    def _mark_deleted(self, segments: Iterable[Segment]) -> None:
        self._pending_deletes.mark_deleted(segments, self._clock.now_ms())
        self._sync_names("the removal of segments")

    @property
    def has_deleted(self) -> bool:
        """Whether ``purge_deleted`` will have something to remove."""
        return not self._pending_deletes.is_empty

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the ``.deleted`` files whose delay has passed; returns how many."""
        return self._pending_deletes.purge(now_ms, self.config.file_delete_delay_ms)

    def truncate_to(self, offset: int) -> None:
        """Remove every record from ``offset`` on, including the whole batch that holds ``offset``.

        After a crash on the way, more records than requested remain, in order; call it again.
        """
        self._health.check()
        if offset >= self.next_offset:
            return
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"{self.tp}: cannot truncate to {offset}, below the log start")
        keep = sum(base <= offset for base in self._read_state.bases)
        target, later = self._read_state.segments[keep - 1], self._read_state.segments[keep:]
        with target.reading() as fd:
            position = target.locate(fd, offset, target.size_bytes)
        with self._read_state.replacing, self._health.offline_after_errors("a truncation"):
            target.is_void = True
            self._cut(target, later, target.size_bytes if position is None else position)
            loaded = self._loader().load(self._read_state.log_start_offset)
            assert loaded is not None, "the target is still there"
            self._release()
            self._adopt(loaded)

    def _cut(self, target: Segment, later: Sequence[Segment], size_bytes: int) -> None:
        """Truncate the files, newest first, so that a crash leaves a shorter log without gaps."""
        kept = tuple(s for s in self._read_state.segments if s.base_offset < target.base_offset)
        # The stats go first: a stale line would make the truncated file look damaged.
        sidecars.write_facts(self._files, self.directory, [segment.facts() for segment in kept])
        self._sync_names("the truncation")
        self._mark_deleted(reversed(later))
        epochs = without_epochs_from(self._epochs, target.base_offset)
        sidecars.write_epochs(self._files, self.directory, epochs)
        self._sync_names("the truncation")
        file = self._files.open_existing(target.path())
        try:
            self._files.truncate(file, size_bytes)
            self._files.sync_data(file)
        finally:
            self._files.close(file)

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
        told, interval_bytes = surveys or {}, self.config.index_interval_bytes
        now_ms = self._clock.now_ms()
        found = [
            told.get(base) or survey_staged(self.directory, base, interval_bytes, now_ms)
            for base in new
        ]
        with self._read_state.replacing, self._health.offline_after_errors("a swap"):
            fresh = self._swap_names(start, end, found)
            self._read_state.set_segments(
                (*self._read_state.segments[:start], *fresh, *self._read_state.segments[end:])
            )
            self._read_state.refresh()
        self._health.replaced(old)
        self._repair_indexes()

    def _swap_names(self, start: int, end: int, found: Sequence[Survey]) -> list[Segment]:
        replaced = self._read_state.segments[start:end]
        # The stats go first: an old file's line must not be applied to the new file of that name.
        self._write_facts((*self._read_state.segments[:start], *self._read_state.segments[end:-1]))
        self._sync_names("the swap")
        self._pending_deletes.mark_deleted(replaced, self._clock.now_ms(), SEGMENT_KINDS)
        self._sync_names("the swap")
        take_live_names(self._files, self.directory, [s.facts.base_offset for s in found])
        self._sync_names("the swap")
        return live_segments(
            self.directory, found, self._read_state.bases[end], self._file_cache,
            self.config.index_interval_bytes,
        )  # fmt: skip
