"""One compaction pass over one partition: four stages of tasks, then manifests.

1. *digest*: read every segment that has no digest and hash its keys (``digests``).
2. *survivors*: find the superseded records, one slice of the hash space per task (``superseded``).
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

import hashlib
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from cordwood.config import MIB, TopicConfig, changed
from cordwood.decide.compaction import (
    HORIZONS_MAX,
    Candidate,
    CleanerState,
    Horizon,
    Rule,
    encode_state,
    is_past,
    parse_state,
    plan_groups,
    plan_kept_bytes,
    plan_swaps,
    watermark,
)
from cordwood.errors import CorruptionError
from cordwood.log.files.modes import make_shared_directory, write_shared
from cordwood.log.format.layout import FileKind, file_path
from cordwood.log.format.manifest import (
    MANIFEST_NAME,
    STAGING_NAME,
    Manifest,
    Replaced,
    StagedSegment,
    encode_manifest,
)
from cordwood.log.format.producers import Aborted
from cordwood.model import Codec, TopicPartition
from cordwood.pipeline.compact.digests import (
    CLEANER_NAME,
    DigestSource,
    DigestTask,
    Summary,
    digest_name,
    fingerprint,
    make_digest,
    open_secret,
    open_source,
    read_digest,
)
from cordwood.pipeline.compact.rewrite import RewriteRules, RewriteTask, Rewritten, rewrite
from cordwood.pipeline.compact.superseded import (
    MarkerTask,
    RangeTask,
    SupersededOffsets,
    add_up,
    find_range,
    judge_markers,
    plan_ranges,
)

TASK_BYTES: Final = 128 * MIB  # memory budget of a task in stage 2 or 4

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[str, int, int], None]  # stage, bytes of the log done, total bytes


class RunTasks(Protocol):
    """Runs a function over items and returns the results in order: on Spark, or in process."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        """Return all results; raises what a task raised."""
        ...


class PassOutcome(NamedTuple):
    """The effect of a pass on a partition; of a dry run, the effect it would have."""

    tp: TopicPartition
    rule: str
    segments_before: int
    segments_rewritten: int
    segments_staged: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    tombstones_removed: int
    keyless_kept: int
    digests_made: int  # segments that had to be read for their keys
    seconds: float
    error: str = ""

    @property
    def freed_bytes(self) -> int:
        """Disk space the pass frees."""
        return self.bytes_before - self.bytes_after


# --- one pass -------------------------------------------------------------------------------


class CompactionPass:
    """One pass: ``prepare`` stages and verifies, ``commit`` writes manifests, ``tidy`` deletes."""

    def __init__(
        self,
        order: Mapping[str, Any],
        run: RunTasks,
        *,
        progress: Progress,
        task_bytes: int,
        tasks: int = 1,
    ) -> None:
        """Take the broker's order and touch no file yet; ``tasks`` run at the same time."""
        self.tp = TopicPartition(order["topic"], int(order["partition"]))
        self._order = order
        self._run_tasks = run
        self._progress = progress
        self._task_bytes = task_bytes
        self._tasks = tasks
        self._data = Path(order["data"])
        self._config = changed(TopicConfig(), order["config"])
        self._state = parse_state(order["state"])
        self._is_thorough = order["rule"] == Rule.DEMAND.value
        self._started = time.monotonic()
        topic = hashlib.sha256(str(order["topic_id"]).encode()).hexdigest()[:12]
        self._prefix = f"compact-{topic}-{self.tp.partition}-"
        self._name = f"{self._prefix}{uuid.uuid4().hex[:12]}"
        self._digests = self._data / CLEANER_NAME / str(self.tp)
        self._work = self._digests / f"{self._name}.work"
        self._hashes = {s["base_offset"]: s.get("sha256") for s in order["segments"]}
        self._sources: list[DigestSource] = []
        self._summaries: list[Summary] = []
        # Each swap with its groups of segments; a group is a range [start, end) of segment numbers.
        self._jobs: list[tuple[str, list[tuple[int, int]]]] = []
        self._staged: dict[int, Rewritten] = {}  # by the number of the group's first segment
        self._keys = self._newest_sum = 0

    # --- stages -------------------------------------------------------------------------------

    def prepare(self) -> PassOutcome:
        """Run stages 1 to 4; raises ``CorruptionError`` if the result fails verification."""
        self._remove_leftovers()
        make_shared_directory(self._work)
        self._secret = open_secret(self._data)
        self._sources = [self._open_source(segment) for segment in self._order["segments"]]
        made = self._digest()
        before, spent = self._find_survivors()
        self._plan_groups(before, spent)
        self._rewrite()
        self._verify(before)
        return self._outcome(made)

    def _open_source(self, segment: Mapping[str, Any]) -> DigestSource:
        base_offset = segment["base_offset"]
        path = file_path(self._data / str(self.tp), base_offset, FileKind.LOG)
        return open_source(path, base_offset, segment["end_offset"], segment["size_bytes"])

    def _digest(self) -> int:
        """Stage 1: make missing digests; returns the number of segments that were read."""
        found = [
            read_digest(self._digest_path(source), self._order["topic_id"], self._secret)
            for source in self._sources
        ]
        tasks = [
            DigestTask(
                source,
                str(self._digest_path(source)),
                self._order["topic_id"],
                self._aborted(source),
                self._secret.tobytes(),
            )
            for source, digest in zip(self._sources, found, strict=True)
            if digest is None
        ]
        made = iter(self._run("digest", make_digest, tasks))
        self._summaries = [next(made) if d is None else d.summary for d in found]
        return len(tasks)

    def _aborted(self, source: DigestSource) -> tuple[Aborted, ...]:
        return tuple(
            Aborted(*entry)
            for entry in self._order["aborted"]
            if entry[1] < source.end_offset and entry[2] >= source.base_offset
        )

    def _find_survivors(self) -> tuple[SupersededOffsets, SupersededOffsets]:
        """Stage 2: find superseded records, and markers of transactions without a batch left."""
        entries = sum(summary.entries for summary in self._summaries)
        digests = tuple(str(self._digest_path(source)) for source in self._sources)
        self._dead = []
        tasks: list[RangeTask | MarkerTask] = []
        for number, (low, high) in enumerate(plan_ranges(entries, self._task_bytes)):
            self._dead.append(str(self._work / f"dead-{number}"))
            tasks.append(self._range(low, high, digests, self._dead[-1]))
        secret, topic_id = self._secret.tobytes(), self._order["topic_id"]
        tasks.append(MarkerTask(digests, topic_id, secret, str(self._work / "spent")))
        *ranges, spent = self._run("survivors", _survivors, tasks)
        return add_up(ranges), spent

    def _range(self, low: int, high: int, digests: tuple[str, ...], out: str) -> RangeTask:
        return RangeTask(low, high, digests, self._order["topic_id"], self._secret.tobytes(), out)

    def _plan_groups(self, before: SupersededOffsets, spent: SupersededOffsets) -> None:
        candidates = [
            Candidate(
                source.base_offset,
                source.end_offset,
                source.size_bytes,
                self._is_changed(number, before.counts[number], spent.counts[number]),
                self._kept_bytes(number, before.counts[number]),
            )
            for number, source in enumerate(self._sources)
        ]
        groups, number = [], 0
        for group in plan_groups(
            candidates,
            self._config.segment_bytes,
            thorough=self._is_thorough,
            tasks=self._tasks,
        ):
            end = number + len(group)
            if len(group) > 1 or group[0].is_changed:
                groups.append((number, end))
            number = end
        self._jobs = [
            (f"{self._name}-{number}", list(run)) for number, run in enumerate(plan_swaps(groups))
        ]

    def _kept_bytes(self, number: int, superseded: int) -> int:
        """Estimate the segment's size after the pass."""
        records = self._order["segments"][number]["records"]
        return plan_kept_bytes(self._sources[number].size_bytes, records, superseded)

    def _is_changed(self, number: int, dead: int, spent: int) -> bool:
        """Return whether the pass removes anything from a segment or gives it a delete horizon.

        On demand, a removable marker, an empty batch or a configured codec is a change too.
        """
        summary = self._summaries[number]
        passed_end = watermark(self._order["readers"])
        if dead or summary.aborted_batches or summary.bare_tombstones:
            return True
        if any(
            is_past(due_ms, first, self._order["now_ms"], passed_end)
            for due_ms, first in summary.horizons
        ):
            return True
        return self._is_thorough and bool(spent or summary.empty_batches or self._codec())

    def _codec(self) -> Codec | None:
        asked = self._config.compression_type
        if asked == "producer":
            return None
        return Codec.NONE if asked == "uncompressed" else Codec[asked.upper()]

    def _rewrite(self) -> None:
        """Stage 3: rewrite the groups; a group that becomes too large is halved and tried again."""
        rules = RewriteRules(
            now_ms=self._order["now_ms"],
            delete_retention_ms=self._config.delete_retention_ms,
            passed_end=watermark(self._order["readers"]),
            codec=self._codec(),
            aborted=tuple(Aborted(*entry) for entry in self._order["aborted"]),
            producers=tuple(sorted((p[0], p[1], p[2]) for p in self._order["producers"])),
        )
        waiting = [(job, group) for job, groups in self._jobs for group in groups]
        while waiting:
            tasks = [self._rewrite_task(job, group, rules) for job, group in waiting]
            done = self._run("rewrite", rewrite, tasks)
            too_large = []
            for (job, group), rewritten in zip(waiting, done, strict=True):
                if rewritten is None:
                    too_large.append((job, group))
                else:
                    self._staged[group[0]] = rewritten
            waiting = [(job, half) for job, group in too_large for half in self._halve(job, group)]

    def _rewrite_task(self, job: str, group: tuple[int, int], rules: RewriteRules) -> RewriteTask:
        start, end = group
        return RewriteTask(
            sources=tuple(self._sources[start:end]),
            numbers=tuple(range(start, end)),
            segments=len(self._sources),
            dead=tuple(self._dead),
            spent=str(self._work / "spent"),
            rules=self._near(rules, self._sources[start:end]),
            staging=str(self._staging(job)),
            digests=str(self._digests),
            topic_id=self._order["topic_id"],
            secret=self._secret.tobytes(),
            bytes_max=self._config.segment_bytes,
        )

    def _halve(self, job: str, group: tuple[int, int]) -> list[tuple[int, int]]:
        """Replace a group that became larger than expected by its two halves."""
        start, end = group
        halves = [(start, (start + end) // 2), ((start + end) // 2, end)]
        groups = dict(self._jobs)[job]
        place = groups.index(group)
        groups[place : place + 1] = halves
        return halves

    def _near(self, rules: RewriteRules, sources: Sequence[DigestSource]) -> RewriteRules:
        start, end = sources[0].base_offset, sources[-1].end_offset
        aborted = tuple(e for e in rules.aborted if e[1] < end and e[2] >= start)
        return rules._replace(aborted=aborted)

    def _verify(self, before: SupersededOffsets) -> None:
        """Stage 4: check that each key occurs once and its newest record is the same as before."""
        staged = self._staged.values()
        digests = tuple(self._result_digests())
        entries = sum(summary.entries for summary in self._result_summaries())
        tasks = [
            self._range(low, high, digests, "")
            for low, high in plan_ranges(entries, self._task_bytes)
        ]
        after = add_up(self._run("verify", find_range, tasks))
        removed = sum(one.removed_keys for one in staged)
        expected = (before.newest_sum - sum(one.removed_sum for one in staged)) % 2**64
        if any(after.counts) or after.keys != before.keys - removed or after.newest_sum != expected:
            raise CorruptionError(
                f"compaction of {self.tp} would change the newest record of a key (keys before "
                f"{before.keys}, removed {removed}, after {after.keys}); nothing was replaced"
            )
        self._keys, self._newest_sum = after.keys, after.newest_sum

    def _result_digests(self) -> Iterable[str]:
        """Yield the digests of the partition's range as it is after the swap."""
        skipped = self._replaced_numbers()
        for number, source in enumerate(self._sources):
            if number in self._staged:
                yield self._staged[number].digest
            elif number not in skipped:
                yield str(self._digest_path(source))

    def _result_summaries(self) -> Iterable[Summary]:
        skipped = self._replaced_numbers()
        for number, summary in enumerate(self._summaries):
            if number in self._staged:
                yield self._staged[number].summary
            elif number not in skipped:
                yield summary

    def _replaced_numbers(self) -> set[int]:
        return {number for _, groups in self._jobs for group in groups for number in range(*group)}

    # --- commit and outcome -------------------------------------------------------------------

    def commit(self) -> tuple[list[str], CleanerState]:
        """Write each job's manifest, as its last file; returns the jobs and the new state."""
        state = self._next_state()
        jobs = self._jobs
        for number, (job, groups) in enumerate(jobs):
            verified: dict[str, Any] = {
                "keys": self._keys,
                "newest_per_key": f"{self._newest_sum:016x}",
                "hash": f"siphash-2-4-128, secret {fingerprint(self._secret):08x}",
                "high_offset": self._order["bound"] - 1,
                "values": [f"{self._staged[start].values_sum:016x}" for start, _ in groups],
            }
            if number == len(jobs) - 1:
                verified["cleaner"] = encode_state(state)
            manifest = self._manifest(job, groups, verified)
            write_shared(self._staging(job) / MANIFEST_NAME, encode_manifest(manifest))
        return [job for job, _ in jobs], state

    def _manifest(
        self, job: str, groups: Sequence[tuple[int, int]], verified: dict[str, Any]
    ) -> Manifest:
        replaced = self._sources[groups[0][0] : groups[-1][1]]
        staged = [self._staged[start] for start, _ in groups]
        for low, high in pairwise(staged):
            assert low.end_offset == high.base_offset, "groups of a job are neighbours"
        return Manifest(
            job=job,
            topic=self.tp.topic,
            topic_id=self._order["topic_id"],
            partition=self.tp.partition,
            replaces=tuple(
                Replaced(base_offset=s.base_offset, end_offset=s.end_offset,
                         size_bytes=s.size_bytes, sha256=self._hashes.get(s.base_offset))
                for s in replaced
            ),
            segments=tuple(
                StagedSegment(base_offset=s.base_offset, end_offset=s.end_offset,
                              records=s.records, files=s.files)
                for s in staged
            ),
            verified=verified,
        )  # fmt: skip

    def _next_state(self) -> CleanerState:
        freed_bytes = self._bytes_before() - self._bytes_after()
        found: dict[int, int] = {}
        for summary in self._result_summaries():
            for due_ms, first in summary.horizons:
                found[due_ms] = min(found.get(due_ms, first), first)
        horizons = [Horizon(*pair) for pair in sorted(found.items())[:HORIZONS_MAX]]
        return replace(
            self._state,
            clean_end=self._order["bound"],
            last_ms=self._order["now_ms"],
            duration_ms=int(1000 * (time.monotonic() - self._started)),
            passes=self._state.passes + 1,
            freed_bytes=self._state.freed_bytes + freed_bytes,
            last_freed_bytes=freed_bytes,
            live_records=self._keys,
            keyless_records=self._keyless(),
            horizons=tuple(horizons),
            failures=0,
            retry_ms=0,
            error="",
        )

    def _outcome(self, made: int) -> PassOutcome:
        segments = self._order["segments"]
        replaced = self._replaced_numbers()
        kept = [s["records"] for n, s in enumerate(segments) if n not in replaced]
        staged = self._staged.values()
        return PassOutcome(
            tp=self.tp,
            rule=str(self._order["rule"]),
            segments_before=len(segments),
            segments_rewritten=len(replaced),
            segments_staged=len(self._staged),
            bytes_before=self._bytes_before(),
            bytes_after=self._bytes_after(),
            records_before=sum(segment["records"] for segment in segments),
            records_after=sum(kept) + sum(one.records for one in staged),
            tombstones_removed=sum(one.removed_keys for one in staged),
            keyless_kept=self._keyless(),
            digests_made=made,
            seconds=time.monotonic() - self._started,
        )

    def _keyless(self) -> int:
        return sum(summary.keyless for summary in self._result_summaries())

    def _bytes_before(self) -> int:
        return sum(source.size_bytes for source in self._sources)

    def _bytes_after(self) -> int:
        replaced = self._replaced_numbers()
        kept = sum(s.size_bytes for n, s in enumerate(self._sources) if n not in replaced)
        return kept + sum(one.files[0].size_bytes for one in self._staged.values())

    # --- files --------------------------------------------------------------------------------

    def _staging(self, job: str) -> Path:
        return self._data / STAGING_NAME / job

    def _digest_path(self, source: DigestSource) -> Path:
        return self._digests / source.digest_name

    def _remove_leftovers(self) -> None:
        """Remove files that earlier passes over this partition left when they died."""
        staging = self._data / STAGING_NAME
        for path in staging.glob(f"{self._prefix}*") if staging.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True)
        for path in self._digests.glob("*.work") if self._digests.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True)

    def forget_digests(self) -> None:
        """Delete all digests of the partition, so that the next ``prepare`` makes them again."""
        shutil.rmtree(self._digests, ignore_errors=True)
        self._jobs, self._staged = [], {}

    def tidy(self) -> None:
        """Remove the pass's own files and the digests of segments that no longer exist."""
        shutil.rmtree(self._work, ignore_errors=True)
        for job, _ in self._jobs:
            shutil.rmtree(self._staging(job), ignore_errors=True)
        if not self._digests.is_dir():
            return
        live = self._data / str(self.tp)
        wanted = {digest_name(path) for path in live.glob(f"*{FileKind.LOG.value}")}
        for path in self._digests.iterdir():
            if path.is_file() and path.name not in wanted:
                path.unlink(missing_ok=True)

    def _run(self, stage: str, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        total_bytes = self._bytes_before()
        self._progress(stage, 0, total_bytes)
        answers = self._run_tasks(function, tasks)
        self._progress(stage, total_bytes, total_bytes)
        return answers


def _survivors(task: RangeTask | MarkerTask) -> SupersededOffsets:
    return find_range(task) if isinstance(task, RangeTask) else judge_markers(task)
