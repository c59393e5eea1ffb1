"""One compaction pass over one partition: four stages of tasks, then manifests.

1. *digest*: read every segment that has no digest and hash its keys (``digests``).
2. *superseded*: find the superseded records, one slice of the hash space per task (``superseded``).
3. *rewrite*: rewrite each group of neighbouring segments that changes, into staging (``rewrite``).
4. *verify*: repeat stage 2 over the digests of the staged and the unchanged segments. No key may
   occur twice, and the newest record of each key must be the same as before.

Manifests are written only after stage 4 succeeds. Tasks receive file names and return counts. The
driver holds a few numbers per segment and a task stays within its memory budget, however many keys
or records there are.

This module knows neither Spark nor the broker; ``job`` connects both. It never renames or removes
a live file. A pass that dies leaves files under ``staging`` and ``cleaner``; the next pass removes
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from cordwood.config import MIB, TopicConfig, changed
from cordwood.decide.compaction import (
    Candidate,
    CleanerState,
    Rule,
    is_past,
    plan_groups,
    plan_kept_bytes,
    plan_swaps,
    watermark,
)
from cordwood.decide.compression import codec_levels, topic_codec
from cordwood.errors import CorruptionError
from cordwood.log.files.modes import write_shared
from cordwood.log.format.manifest import MANIFEST_NAME, encode_manifest
from cordwood.model import Aborted, TopicPartition
from cordwood.pipeline.compact.batch_cleaner import RewriteRules
from cordwood.pipeline.compact.digests import (
    DigestTask,
    fingerprint,
    make_digest,
    open_secret,
    read_digest,
)
from cordwood.pipeline.compact.pass_files import PassFiles
from cordwood.pipeline.compact.pass_result import Group, PassOutcome, PassResult
from cordwood.pipeline.compact.rewrite import RewriteTask, rewrite
from cordwood.pipeline.compact.sources import CHUNK_BYTES, DigestSource, open_source
from cordwood.pipeline.compact.superseded import (
    MarkerTask,
    RangeTask,
    SupersededOffsets,
    add_up,
    find_range,
    find_removable_markers,
    plan_ranges,
)
from cordwood.protocol.api.compaction import CompactionOrder

TASK_BYTES: Final = 128 * MIB  # memory budget of a task in stage 2 or 4

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[str, int, int], None]  # stage, bytes of the log done, total bytes


class RunTasks(Protocol):
    """Runs a function over items and returns the results in order: on Spark, or in process."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        """Return all results; raises what a task raised."""
        ...


class PassLimits(NamedTuple):
    """How large tasks may be, how many run at the same time, and how often a lease is renewed."""

    tasks: int = 1
    task_bytes: int = TASK_BYTES
    chunk_bytes: int = CHUNK_BYTES  # of a segment, read at once
    renew_s: float = 60.0  # well within the broker's lease


class CompactionPass:
    """One pass: ``prepare`` stages and verifies, ``commit`` writes manifests, ``tidy`` deletes."""

    def __init__(
        self,
        order: CompactionOrder,
        run: RunTasks,
        *,
        progress: Progress,
        limits: PassLimits = PassLimits(),  # noqa: B008 - it is a value
    ) -> None:
        """Take the broker's order and touch no file yet."""
        self.tp = TopicPartition(order.topic, order.partition)
        self._order = order
        self._run_tasks = run
        self._progress = progress
        self._limits = limits
        self._data = Path(order.data)
        self._config = changed(TopicConfig(), order.config)
        self._passed_end = watermark(order.readers)
        self._codec = topic_codec(self._config)
        self._is_thorough = order.rule == Rule.DEMAND.value
        self._started = time.monotonic()
        self._files = PassFiles(self._data, self.tp, order.topic_id)
        self._result = PassResult(order)

    def prepare(self) -> PassOutcome:
        """Run stages 1 to 4; raises ``CorruptionError`` if the result fails verification."""
        self._files.prepare()
        self._result = PassResult(self._order)
        self._secret = open_secret(self._data)
        self._sources = [
            open_source(self._files.log(s.base_offset), s.base_offset, s.end_offset, s.size_bytes)
            for s in self._order.segments
        ]
        digests_made = self._digest()
        before, markers = self._find_superseded()
        self._plan_groups(before, markers)
        self._rewrite()
        self._verify(before)
        self._outcome = self._result.outcome(digests_made, self._seconds())
        return self._outcome

    def commit(self) -> tuple[list[str], CleanerState]:
        """Write each job's manifest, as its last file; returns the jobs and the new state."""
        state = self._result.next_state(self._outcome, self._seconds())
        jobs = []
        for manifest in self._result.manifests(state, fingerprint(self._secret)):
            path = self._files.staging(manifest.job) / MANIFEST_NAME
            write_shared(path, encode_manifest(manifest))
            jobs.append(manifest.job)
        return jobs, state

    def forget_digests(self) -> None:
        """Delete all digests of the partition, so that the next ``prepare`` makes them again."""
        self._files.remove_digests()

    def tidy(self) -> None:
        """Remove the pass's own files and the digests of segments that no longer exist."""
        self._files.tidy(job for job, _ in self._result.jobs)

    # --- stages -------------------------------------------------------------------------------

    def _digest(self) -> int:
        """Stage 1: make missing digests; returns the number of segments that were read."""
        topic_id, result = self._order.topic_id, self._result
        paths = [self._files.digest(source) for source in self._sources]
        known = [read_digest(path, topic_id, self._secret) for path in paths]
        tasks = [
            DigestTask(
                source, str(path), topic_id, self._aborted_in([source]), self._secret.tobytes(),
                self._limits.chunk_bytes,
            )
            for source, path, digest in zip(self._sources, paths, known, strict=True)
            if digest is None
        ]  # fmt: skip
        made = iter(self._run("digest", make_digest, tasks))
        result.digests = list(map(str, paths))
        result.summaries = [next(made) if each is None else each.summary for each in known]
        return len(tasks)

    def _aborted_in(self, sources: Sequence[DigestSource]) -> tuple[Aborted, ...]:
        """Return the aborted transactions whose offsets overlap these neighbouring segments."""
        start, end = sources[0].base_offset, sources[-1].end_offset
        return tuple(
            entry
            for entry in self._order.aborted
            if entry.first_offset < end and entry.last_offset >= start
        )

    def _find_superseded(self) -> tuple[SupersededOffsets, SupersededOffsets]:
        """Stage 2: find superseded records, and markers of transactions without a batch left."""
        digests = tuple(self._result.digests)
        entries = sum(summary.entries for summary in self._result.summaries)
        ranges = self._range_tasks(entries, digests, self._files.superseded)
        self._superseded = tuple(task.out for task in ranges)
        markers = MarkerTask(
            digests, self._order.topic_id, self._secret.tobytes(), self._files.removable_markers
        )
        tasks: list[RangeTask | MarkerTask] = [*ranges, markers]
        *superseded, removable = self._run("superseded", _find, tasks)
        return add_up(superseded), removable

    def _range_tasks(
        self, entries: int, digests: tuple[str, ...], out: Callable[[int], str]
    ) -> list[RangeTask]:
        topic_id, secret = self._order.topic_id, self._secret.tobytes()
        return [
            RangeTask(low, high, digests, topic_id, secret, out(number))
            for number, (low, high) in enumerate(plan_ranges(entries, self._limits.task_bytes))
        ]

    def _plan_groups(self, before: SupersededOffsets, markers: SupersededOffsets) -> None:
        candidates = [
            Candidate(
                segment.base_offset,
                segment.end_offset,
                segment.size_bytes,
                self._is_changed(number, superseded, removable),
                plan_kept_bytes(segment.size_bytes, segment.records, superseded),
            )
            for number, (segment, superseded, removable) in enumerate(
                zip(self._order.segments, before.counts, markers.counts, strict=True)
            )
        ]
        groups, start = [], 0
        for group in plan_groups(
            candidates,
            self._config.segment_bytes,
            thorough=self._is_thorough,
            tasks=self._limits.tasks,
        ):
            end = start + len(group)
            if len(group) > 1 or group[0].is_changed:
                groups.append((start, end))
            start = end
        self._result.jobs = [
            (f"{self._files.name}-{number}", swap) for number, swap in enumerate(plan_swaps(groups))
        ]

    def _is_changed(self, number: int, superseded: int, removable_markers: int) -> bool:
        """Return whether the pass removes anything from a segment or gives it a delete horizon.

        On demand, a removable marker, an empty batch or a configured codec is a change too.
        """
        summary = self._result.summaries[number]
        if superseded or summary.aborted_batches or summary.bare_tombstones:
            return True
        if any(
            is_past(due_ms, first, self._order.now_ms, self._passed_end)
            for due_ms, first in summary.horizons
        ):
            return True
        is_untidy = bool(removable_markers or summary.empty_batches or self._codec)
        return self._is_thorough and is_untidy

    def _rewrite(self) -> None:
        """Stage 3: rewrite the groups; a group that becomes too large is halved and tried again."""
        waiting = [(job, group) for job, groups in self._result.jobs for group in groups]
        while waiting:
            tasks = [self._rewrite_task(job, group) for job, group in waiting]
            done = self._run("rewrite", rewrite, tasks)
            too_large = []
            for (job, group), rewritten in zip(waiting, done, strict=True):
                if rewritten is None:
                    too_large.append((job, group))
                else:
                    self._result.staged[group[0]] = rewritten
            waiting = [(job, half) for job, group in too_large for half in self._halve(job, group)]

    def _rewrite_task(self, job: str, group: Group) -> RewriteTask:
        start, end = group
        sources = tuple(self._sources[start:end])
        return RewriteTask(
            sources=sources,
            numbers=tuple(range(start, end)),
            segments=len(self._sources),
            superseded=self._superseded,
            removable_markers=self._files.removable_markers,
            rules=RewriteRules(
                now_ms=self._order.now_ms,
                delete_retention_ms=self._config.delete_retention_ms,
                passed_end=self._passed_end,
                codec=self._codec,
                levels=codec_levels(self._config),
                aborted=self._aborted_in(sources),
                producers=self._order.producers,
            ),
            staging=str(self._files.staging(job)),
            digests=str(self._files.digests),
            topic_id=self._order.topic_id,
            secret=self._secret.tobytes(),
            bytes_max=self._config.segment_bytes,
            chunk_bytes=self._limits.chunk_bytes,
        )

    def _halve(self, job: str, group: Group) -> list[Group]:
        """Replace a group that became larger than expected by its two halves."""
        start, end = group
        halves = [(start, (start + end) // 2), ((start + end) // 2, end)]
        groups = dict(self._result.jobs)[job]
        place = groups.index(group)
        groups[place : place + 1] = halves
        return halves

    def _verify(self, before: SupersededOffsets) -> None:
        """Stage 4: check that each key occurs once and its newest record is the same as before."""
        segments, staged = list(self._result.after()), self._result.staged.values()
        digests = tuple(segment.digest for segment in segments)
        entries = sum(segment.summary.entries for segment in segments)
        tasks = self._range_tasks(entries, digests, lambda _: "")
        after = add_up(self._run("verify", find_range, tasks))
        removed = sum(one.removed_keys for one in staged)
        expected = (before.newest_sum - sum(one.removed_sum for one in staged)) % 2**64
        if any(after.counts) or after.keys != before.keys - removed or after.newest_sum != expected:
            raise CorruptionError(
                f"compaction of {self.tp} would change the newest record of a key (keys before "
                f"{before.keys}, removed {removed}, after {after.keys}); nothing was replaced"
            )
        self._result.keys, self._result.newest_sum = after.keys, after.newest_sum

    def _run(self, stage: str, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        total_bytes = sum(segment.size_bytes for segment in self._order.segments)
        self._progress(stage, 0, total_bytes)
        results = self._run_tasks(function, tasks)
        self._progress(stage, total_bytes, total_bytes)
        return results

    def _seconds(self) -> float:
        return time.monotonic() - self._started


def _find(task: RangeTask | MarkerTask) -> SupersededOffsets:
    return find_range(task) if isinstance(task, RangeTask) else find_removable_markers(task)
