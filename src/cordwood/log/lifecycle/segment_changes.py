"""Changes of sealed segments: roll, reclaim, swap, and their entries in the segment index.

Each change has one commit point, a metadata transaction:

* *reclaim*: mark the segments reclaimed and move the log start, then drop the files.
* *swap*: record it, swap the files (``ladder``), then update the segment index.

A crash between the two leaves nothing half done: start-up finishes or cancels it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from cordwood.batch.recoding import Recoding
from cordwood.clock import Clock
from cordwood.decide.compression import CompressionResult
from cordwood.decide.retention import RetentionPlan
from cordwood.decide.roll import RollReason
from cordwood.errors import (
    CordwoodError,
    OffsetOutOfRange,
    PartitionOffline,
    UnavailableError,
    UnknownSegment,
)
from cordwood.log.files.disk import Files
from cordwood.log.health.registry import Condition, DamagedRange
from cordwood.log.lifecycle.live_topics import LiveTopics, attempt
from cordwood.log.lifecycle.segment_compression import Original, compress_segment
from cordwood.log.lifecycle.segment_index_writer import SegmentIndexWriter
from cordwood.log.read.scrub import Pace
from cordwood.log.staging.area import StagingArea
from cordwood.log.staging.claim import claim_job, release_claim
from cordwood.log.swap.ladder import Verified, apply_swap, verify_staged
from cordwood.log.write.partition import Partition
from cordwood.model import SegmentInfo, TopicPartition

logger = logging.getLogger("cordwood.log")


class SegmentChanges:
    """Changes the segments of the topics that are served.

    Files change on the writer thread; what only reads files or the index is safe on any thread.
    """

    def __init__(
        self, data: Path, live: LiveTopics, index: SegmentIndexWriter, clock: Clock, files: Files
    ) -> None:
        """Change segments under ``data``, of the topics in ``live``."""
        self._data = data
        self._live = live
        self.index = index
        self._clock = clock
        self._files = files

    def roll(self, partition: Partition, reason: RollReason) -> SegmentInfo | None:
        """Seal the active segment and index it; None if it is empty."""
        sealed = partition.roll(reason)
        if sealed is not None:
            try:
                self.index.record(partition.tp, [sealed])
            except UnavailableError as error:  # hash_sealed indexes it later
                logger.warning("segment.index_failed partition=%s error=%s", partition.tp, error)
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
        self.index.reclaim(partition.tp, drops)
        partition.drop([segment.base_offset for segment in drops])

    def advance_start(self, tp: TopicPartition, offset: int) -> int:
        """Delete the records below an offset (DeleteRecords); returns the new log start."""
        partition = self._live.partition(tp)
        if offset > partition.high_watermark:
            raise OffsetOutOfRange(
                f"{tp}: cannot delete up to {offset}, the log ends at {partition.high_watermark}"
            )
        if offset > partition.log_start_offset:
            self.index.cluster.set_log_start(tp, offset)
            partition.advance_start(offset)
        return partition.log_start_offset

    # --- jobs: verify and swap --------------------------------------------------------------

    def verify_job(self, job: str) -> Verified:
        """Claim a finished job's files and check every byte of them. Safe on any thread.

        The caller applies the result or passes it to ``release_jobs``.
        """
        claim = claim_job(self._data, job, self._files)
        try:
            return verify_staged(
                claim, self._files, now_ms=self._clock.now_ms(),
                interval_bytes=self._live.topic(claim.manifest.topic).config.index_interval_bytes,
            )  # fmt: skip
        except BaseException:
            self.release(claim.directory)
            raise

    def release_jobs(self, jobs: Iterable[Verified]) -> None:
        """Remove the files of jobs that were verified but not applied. Safe on any thread."""
        for job in jobs:
            self.release(job.directory)

    def release(self, claimed: Path) -> None:
        """Remove claimed files; no error if there are none."""
        release = partial(release_claim, claimed, self._files)
        attempt("directory.remove_failed", claimed.name, release)

    def apply_job(self, job: Verified) -> None:
        """Swap in a verified job and remove its staged files. Runs on the writer thread."""
        tp = job.manifest.topic_partition
        partition, live = self._live.partition(tp), self._live.topic(tp.topic)
        staging = StagingArea(self._data)
        with self.index.changing:
            self.index.settle_swap(partition)
            hashes = self.index.hashes(tp)
            self.index.begin_swap(job)
            try:
                apply_swap(partition, job, files=self._files, topic_id=live.id, hashes=hashes)
            except PartitionOffline as error:
                self._live.take_offline(partition, error)
                raise
            except CordwoodError:
                self.index.cluster.cancel_swap(tp)
                raise
            self.index.settle_swap(partition)
        self.release(job.directory)
        name = job.manifest.job
        self._files.name_effect("rmtree", staging.directory / name, lambda: staging.remove(name))

    # --- compression: any thread ------------------------------------------------------------

    def compress(
        self, partition: Partition, info: SegmentInfo, recoding: Recoding, pace: Pace
    ) -> Verified | None:
        """Write and prove a sealed segment in another codec; None if it stays as it is.

        The caller applies the result or passes it to ``release_jobs``. That a segment stays as it
        is, is stored in the index.
        """
        tp, base = partition.tp, info.base_offset
        live = self._live.topic(tp.topic)
        entry = self.index.cluster.segments(tp).get(base)
        known = entry.compression if entry else None
        original = Original(
            tp=tp,
            topic_id=live.id,
            directory=partition.directory,
            info=info,
            sha256=entry.sha256 if entry else None,
            interval_bytes=live.config.index_interval_bytes,
        )
        verified = compress_segment(original, recoding, self._data, self._files, pace)
        result = CompressionResult(
            codec=recoding.codec.name.lower(),
            at_ms=self._clock.now_ms(),
            bytes_before=known.bytes_before if known else info.size_bytes,
            is_kept=verified is None,
        )
        if verified is None:
            self.index.record_compression(tp, base, result)
            return None
        return verified._replace(compression=result)

    # --- the segment index: any thread ------------------------------------------------------

    def hash_sealed(self, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Index newly sealed segments and compute missing sha256 sums; returns how many.

        Reads whole files, so it runs on a background thread.
        """
        hashed = 0
        for topic in list(self._live.topics.values()):
            for partition in topic.online():
                with self._live.guard(partition, Condition.INDEXING_FAILED):
                    hashed += self.index.index_and_hash(partition, self._live.is_live, should_stop)
        return hashed

    def hash_partition(self, partition: Partition) -> dict[int, str]:
        """The sha256 of every sealed segment of a partition, computed now where unknown."""
        self.index.index_and_hash(partition, self._live.is_live, lambda: False)
        return self.index.hashes(partition.tp)

    def accept_damage(self, tp: TopicPartition, base_offset: int) -> list[DamagedRange]:
        """Accept the known damage of a segment; its records stay refused. Safe on any thread.

        Only the damage known now is accepted; damage found later is reported again.
        """
        self._live.partition(tp)
        ranges = [each for each in self._live.health.damage(tp) if each.segment == base_offset]
        if not ranges:
            raise UnknownSegment(
                f"{tp} has no known damage in segment {base_offset}; `cordwood topic describe "
                f"{tp.topic}` lists the damage"
            )
        self.index.accept_damage(tp, base_offset, ranges, self._clock.now_ms())
        self._live.health.accept_damage(tp, base_offset, ranges)
        for damaged in ranges:
            logger.warning("partition.damage_accepted partition=%s %s", tp, damaged)
        return ranges
