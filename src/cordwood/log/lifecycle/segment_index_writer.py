"""Write the segment index and keep it consistent with the segment files.

Files change on the writer thread, sha256 sums are computed in the background, and both update the
index. One lock orders them, so that data read from a file is never recorded for its successor. At
start-up the index also detects that a sealed file is missing. The directory alone cannot show that,
because gaps between offsets are normal.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from cordwood.decide.compaction import encode_state, parse_state
from cordwood.decide.compression import CompressionResult
from cordwood.errors import CorruptionError, InvalidManifest, UnknownSegment
from cordwood.log.format.layout import FileKind, file_path
from cordwood.log.format.manifest import StagedSegment
from cordwood.log.health.registry import DamagedRange
from cordwood.log.recovery.missing import remedy
from cordwood.log.swap.ladder import Verified
from cordwood.log.write.partition import Partition
from cordwood.metadata.cluster_catalog import ClusterCatalog
from cordwood.metadata.keys import ScrubResult, SegmentEntry, entry_of
from cordwood.model import SegmentInfo, SegmentState, TopicPartition

IsLive = Callable[[Partition], bool]  # whether the store still serves this very partition


class SegmentIndexWriter:
    """Writes segment index entries; ``changing`` is held while files and index change together."""

    def __init__(self, cluster: ClusterCatalog) -> None:
        """Use the cluster stats that name this data directory's partitions."""
        self.changing = threading.RLock()
        self.cluster = cluster

    def record(self, tp: TopicPartition, sealed: Iterable[SegmentInfo]) -> None:
        """Add segments that were just sealed."""
        with self.changing:
            self.cluster.put_segments(tp, [entry_of(info) for info in sealed])

    def reclaim(self, tp: TopicPartition, segments: Sequence[SegmentInfo]) -> None:
        """Mark these segments reclaimed and move the log start; the caller then drops the files."""
        with self.changing:
            index = self.cluster.segments(tp)
            entries = [index.get(info.base_offset) or entry_of(info) for info in segments]
            self.cluster.reclaim_segments(tp, entries, segments[-1].end_offset)

    # --- sums -------------------------------------------------------------------------------

    def hashes(self, tp: TopicPartition) -> dict[int, str]:
        """Base offset → sha256, where known."""
        entries = self.cluster.segments(tp).entries()
        return {entry.base_offset: entry.sha256 for entry in entries if entry.sha256}

    def unhashed(self, tp: TopicPartition) -> list[SegmentEntry]:
        """Sealed segments whose sha256 is not known yet."""
        return [
            entry
            for entry in self.cluster.segments(tp).entries()
            if entry.sha256 is None
            and entry.state is SegmentState.SEALED
            and not (entry.scrub and entry.scrub.damage)  # the sum of damaged bytes is useless
        ]

    def index(self, partition: Partition, is_live: IsLive) -> None:
        """Add segments that were sealed without being indexed."""
        with self.changing:
            if is_live(partition):
                self.settle_swap(partition)
                index = self.cluster.segments(partition.tp)
                sealed = partition.segments()[:-1]
                self.record(partition.tp, [i for i in sealed if index.get(i.base_offset) is None])

    def index_and_hash(
        self, partition: Partition, is_live: IsLive, should_stop: Callable[[], bool]
    ) -> int:
        """Bring one partition's index up to date; returns how many sums were computed."""
        self.index(partition, is_live)
        hashed = 0
        for entry in self.unhashed(partition.tp):
            if should_stop():
                break
            hashed += self.hash(partition, entry, is_live)
        return hashed

    def hash(self, partition: Partition, entry: SegmentEntry, is_live: IsLive) -> bool:
        """Compute and store a segment's sha256, unless it is replaced or dropped meanwhile."""
        path = file_path(partition.directory, entry.base_offset, FileKind.LOG)
        try:
            with path.open("rb") as reading:
                sha256 = hashlib.file_digest(reading, "sha256").hexdigest()
        except FileNotFoundError:  # being dropped; otherwise the scrub reports it
            return False
        with self.changing:
            index = self.cluster.segments(partition.tp)
            if not is_live(partition) or index.get(entry.base_offset) is not entry:
                return False
            self.cluster.put_segments(partition.tp, [replace(entry, sha256=sha256)])
        return True

    def record_scrub(
        self, tp: TopicPartition, entry: SegmentEntry, scrub: ScrubResult, file_sha256: str
    ) -> None:
        """Store the result of a scrub, unless the segment was replaced or dropped meanwhile."""
        with self.changing:
            now = self.cluster.segments(tp).get(entry.base_offset)
            if now is None or now.state is not SegmentState.SEALED:
                return
            is_same = now.size_bytes == entry.size_bytes and entry.sha256 in {None, now.sha256}
            if is_same and tp.topic in self.cluster.topics:
                # The sum of damaged bytes would make a restored file look wrong.
                sha256 = None if scrub.damage and now.sha256 == file_sha256 else now.sha256
                scrub = replace(scrub, accepted=_still_accepted(now, scrub, file_sha256))
                self.cluster.put_segments(tp, [replace(now, scrub=scrub, sha256=sha256)])

    def record_compression(self, tp: TopicPartition, base: int, result: CompressionResult) -> None:
        """Store that a segment was not worth compressing, unless it is gone meanwhile."""
        with self.changing:
            now = self.cluster.segments(tp).get(base)
            if (
                now is not None
                and now.state is SegmentState.SEALED
                and tp.topic in self.cluster.topics
            ):
                self.cluster.put_segments(tp, [replace(now, compression=result)])

    def accept_damage(
        self, tp: TopicPartition, base_offset: int, ranges: Sequence[DamagedRange], now_ms: int
    ) -> None:
        """Record that an operator accepted these ranges; raises ``UnknownSegment``."""
        damage = tuple((r.start_offset, r.end_offset, r.problem) for r in ranges)
        with self.changing:
            entry = self.cluster.segments(tp).get(base_offset)
            if entry is None or entry.state is not SegmentState.SEALED:
                raise UnknownSegment(f"{tp} has no sealed segment {base_offset}")
            scrub = entry.scrub or ScrubResult(now_ms, damage)
            accepted = replace(entry, scrub=replace(scrub, accepted=damage))
            self.cluster.put_segments(tp, [accepted])

    # --- swaps ------------------------------------------------------------------------------

    def begin_swap(self, job: Verified) -> None:
        """Record which segments a job is about to replace, and by which."""
        record = {
            "job": job.manifest.job,
            "replaces": [replaced.base_offset for replaced in job.manifest.replaces],
            "segments": [_entry_of_staged(s, job) for s in job.manifest.segments],
            "cleaner": _cleaner_of(job),
        }
        self.cluster.begin_swap(job.manifest.topic_partition, record)

    def settle_swap(self, partition: Partition) -> None:
        """Finish or cancel a recorded swap in the index; the files show whether it happened."""
        record = self.cluster.swaps.get(partition.tp)
        if record is None:
            return
        new = msgspec.convert(record["segments"], list[SegmentEntry])
        sizes = {info.base_offset: info.size_bytes for info in partition.segments()[:-1]}
        left = set(record["replaces"]) & set(sizes) - {entry.base_offset for entry in new}
        if not left and all(sizes.get(entry.base_offset) == entry.size_bytes for entry in new):
            cleaner = record.get("cleaner")
            self.cluster.finish_swap(
                partition.tp,
                record["job"],
                record["replaces"],
                new,
                parse_state(cleaner) if cleaner else None,
            )
        else:
            self.cluster.cancel_swap(partition.tp)

    # --- start-up ---------------------------------------------------------------------------

    def reconcile(self, partition: Partition) -> None:
        """Drop reclaimed files, index new segments, and detect missing sealed files."""
        *sealed, active = partition.segments()
        live = {info.base_offset: info for info in sealed}
        entries = self.cluster.segments(partition.tp).entries()
        reclaimed = {e.base_offset for e in entries if e.state is SegmentState.RECLAIMED}
        if dropped := [base for base in live if base in reclaimed]:
            partition.drop(dropped)
        for entry in entries:
            if entry.state is SegmentState.SEALED:
                _check_sealed(partition, entry, live.get(entry.base_offset), active)
        indexed = {entry.base_offset for entry in entries}
        self.record(partition.tp, [info for base, info in live.items() if base not in indexed])


def _check_sealed(
    partition: Partition, entry: SegmentEntry, live: SegmentInfo | None, active: SegmentInfo
) -> None:
    """Raise ``CorruptionError`` if an indexed file is missing or has another size."""
    path = file_path(partition.directory, entry.base_offset, FileKind.LOG)
    if entry.base_offset == active.base_offset:
        path = file_path(partition.directory, entry.end_offset, FileKind.LOG)  # the one after it
        raise CorruptionError(f"{path} is missing, with its records; {remedy(str(partition.tp))}")
    if live is None:
        raise CorruptionError(f"{path} is missing, with its records; {remedy(str(partition.tp))}")
    if live.size_bytes != entry.size_bytes:
        raise CorruptionError(
            f"{path} has {live.size_bytes} bytes, but had {entry.size_bytes} when it was sealed: "
            f"records are missing; {remedy(str(partition.tp))}"
        )


def _cleaner_of(job: Verified) -> dict[str, Any] | None:
    """The compaction state stored with a pass's last swap; raises ``InvalidManifest``."""
    state = job.manifest.verified.get("cleaner")
    if state is None:
        return None
    try:
        return encode_state(parse_state(state))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidManifest(
            f"job {job.manifest.job}: invalid compaction state: {error}"
        ) from None


def _entry_of_staged(segment: StagedSegment, job: Verified) -> SegmentEntry:
    stats = job.surveys[segment.base_offset].stats
    return SegmentEntry(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=stats.size_bytes,
        records=stats.records,
        first_ms=stats.first_ms,
        newest_ms=stats.newest_ms,
        state=SegmentState.SEALED,
        sha256=segment.log.sha256,
        compression=job.compression,
    )


def _still_accepted(
    entry: SegmentEntry, scrub: ScrubResult, file_sha256: str
) -> tuple[tuple[int, int, str], ...]:
    """The accepted ranges that are still damaged; all of them if the segment was unreadable."""
    accepted = () if entry.scrub is None else entry.scrub.accepted
    if not file_sha256:
        return accepted
    damaged = [DamagedRange(entry.base_offset, *each) for each in scrub.damage]
    return tuple(
        each for each in accepted
        if any(r.is_same(DamagedRange(entry.base_offset, *each)) for r in damaged)
    )  # fmt: skip
