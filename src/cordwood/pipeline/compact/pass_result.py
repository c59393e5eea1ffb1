"""The result of a compaction pass: the partition after the swap, manifests, and what to report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from cordwood.decide.compaction import HORIZONS_MAX, CleanerState, Horizon, encode_state
from cordwood.log.format.manifest import Manifest, Replaced, StagedSegment
from cordwood.model import TopicPartition
from cordwood.pipeline.compact.digests import Summary
from cordwood.pipeline.compact.rewrite import Rewritten
from cordwood.protocol.api.compaction import CompactionOrder

Group = tuple[int, int]  # a range [start, end) of segment numbers


class PassOutcome(NamedTuple):
    """The effect of a pass on a partition; of a dry run, the effect it would have."""

    tp: TopicPartition
    rule: str
    segments_before: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    segments_rewritten: int = 0
    segments_staged: int = 0
    tombstones_removed: int = 0
    keyless_kept: int = 0
    digests_made: int = 0  # segments that had to be read for their keys
    seconds: float = 0.0
    error: str = ""

    @property
    def freed_bytes(self) -> int:
        """Disk space the pass frees."""
        return self.bytes_before - self.bytes_after


class SegmentAfter(NamedTuple):
    """A segment of the partition as it is after the swap."""

    digest: str
    summary: Summary
    size_bytes: int
    records: int


@dataclass(slots=True)
class PassResult:
    """What a pass stages; filled in stage by stage."""

    order: CompactionOrder
    digests: list[str] = field(default_factory=list)  # of the live segments
    summaries: list[Summary] = field(default_factory=list)
    jobs: list[tuple[str, list[Group]]] = field(default_factory=list)  # swaps and their groups
    staged: dict[int, Rewritten] = field(default_factory=dict)  # by its group's first segment
    keys: int = 0
    newest_sum: int = 0

    def after(self) -> Iterator[SegmentAfter]:
        """Yield the partition's segments as they are after the swap."""
        replaced = self.replaced()
        for number, segment in enumerate(self.order.segments):
            if number in self.staged:
                one = self.staged[number]
                yield SegmentAfter(one.digest, one.summary, one.files[0].size_bytes, one.records)
            elif number not in replaced:
                yield SegmentAfter(
                    self.digests[number], self.summaries[number],
                    segment.size_bytes, segment.records,
                )  # fmt: skip

    def replaced(self) -> set[int]:
        """Return the numbers of the live segments that staged ones replace."""
        return {number for _, groups in self.jobs for group in groups for number in range(*group)}

    def outcome(self, digests_made: int, seconds: float) -> PassOutcome:
        """Return the effect of the pass."""
        after = list(self.after())
        return outcome_before(self.order)._replace(
            segments_rewritten=len(self.replaced()),
            segments_staged=len(self.staged),
            bytes_after=sum(segment.size_bytes for segment in after),
            records_after=sum(segment.records for segment in after),
            tombstones_removed=sum(one.removed_keys for one in self.staged.values()),
            keyless_kept=sum(segment.summary.keyless for segment in after),
            digests_made=digests_made,
            seconds=seconds,
        )

    def next_state(self, outcome: PassOutcome, seconds: float) -> CleanerState:
        """Return the partition's state after the swap."""
        firsts: dict[int, int] = {}
        for segment in self.after():
            for due_ms, first in segment.summary.horizons:
                firsts[due_ms] = min(firsts.get(due_ms, first), first)
        state = self.order.state
        return replace(
            state,
            clean_end=self.order.bound,
            last_ms=self.order.now_ms,
            duration_ms=int(1000 * seconds),
            passes=state.passes + 1,
            freed_bytes=state.freed_bytes + outcome.freed_bytes,
            last_freed_bytes=outcome.freed_bytes,
            live_records=self.keys,
            keyless_records=outcome.keyless_kept,
            horizons=tuple(Horizon(*pair) for pair in sorted(firsts.items())[:HORIZONS_MAX]),
            failures=0,
            retry_ms=0,
            error="",
        )

    def manifests(self, state: CleanerState, fingerprint: int) -> Iterator[Manifest]:
        """Yield the manifest of each swap; the last one carries the new state."""
        for number, (job, groups) in enumerate(self.jobs):
            verified: dict[str, Any] = {
                "keys": self.keys,
                "newest_per_key": f"{self.newest_sum:016x}",
                "hash": f"siphash-2-4-128, secret {fingerprint:08x}",
                "high_offset": self.order.bound - 1,
                "values": [f"{self.staged[start].values_sum:016x}" for start, _ in groups],
            }
            if number == len(self.jobs) - 1:
                verified["cleaner"] = encode_state(state)
            yield self._manifest(job, groups, verified)

    def _manifest(self, job: str, groups: Sequence[Group], verified: dict[str, Any]) -> Manifest:
        replaced = self.order.segments[groups[0][0] : groups[-1][1]]
        staged = [self.staged[start] for start, _ in groups]
        for low, high in pairwise(staged):
            assert low.end_offset == high.base_offset, "groups of a job are neighbours"
        return Manifest(
            job=job,
            topic=self.order.topic,
            topic_id=self.order.topic_id,
            partition=self.order.partition,
            replaces=tuple(
                Replaced(base_offset=s.base_offset, end_offset=s.end_offset,
                         size_bytes=s.size_bytes, sha256=s.sha256)
                for s in replaced
            ),
            segments=tuple(
                StagedSegment(base_offset=s.base_offset, end_offset=s.end_offset,
                              records=s.records, files=s.files)
                for s in staged
            ),
            verified=verified,
        )  # fmt: skip


def outcome_before(order: CompactionOrder, error: str = "") -> PassOutcome:
    """Return the outcome of a pass that has changed nothing, or failed with this error."""
    size_bytes = sum(segment.size_bytes for segment in order.segments)
    records = sum(segment.records for segment in order.segments)
    return PassOutcome(
        TopicPartition(order.topic, order.partition), str(order.rule), len(order.segments),
        size_bytes, size_bytes, records, records, error=error,
    )  # fmt: skip
