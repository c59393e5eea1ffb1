"""COMPACT: plans which logs to compact and why, which range to take, and which records to keep.

A range consists of whole sealed segments. *Clean* segments end at or below ``clean_end``: an
earlier pass has processed them. *Dirty* segments follow, up to the first one that must not be
touched because it reaches past the last stable offset or holds a record younger than
``min.compaction.lag.ms``. The dirty ratio counts neither the segments held back like this nor the
active segment.

A pass is due for one of four rules (``Rule``); otherwise ``Wait`` says what it waits for, and
``explain`` puts either into words. Nothing here reads a record or touches a file.

Which records stay follows Kafka: the newest record of a key stays. A tombstone stays until the
delete horizon, which its batch gets from the first pass that reads it, and until every registered
reader has passed it. Records of aborted transactions are removed. A marker stays while a batch of
its transaction exists, then gets a delete horizon like a tombstone.

Unlike in Kafka, a record without a key stays: it was acknowledged before the topic was compacted,
no other record supersedes it, and no policy of its topic allows its removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from cordwood.config import HOUR_MS, KEEP_ALL, MINUTE_MS, TopicConfig
from cordwood.decide.roll import OFFSETS_PER_SEGMENT_MAX, born_ms, roll_ms
from cordwood.model import NO_TIMESTAMP, SegmentInfo

HORIZONS_MAX: Final = 100  # only the earliest are stored; a later pass finds the rest
SEGMENTS_PER_SWAP_MAX: Final = 64  # limits how long one swap blocks the partition
RETRY_FIRST_MS: Final = MINUTE_MS
RETRY_LAST_MS: Final = HOUR_MS


class Rule(StrEnum):
    """Why a pass is due."""

    RATIO = "ratio"  # more than min.cleanable.dirty.ratio is dirty
    MAX_LAG = "max_lag"  # a dirty record is older than max.compaction.lag.ms
    HORIZON = "horizon"  # a tombstone or marker may be removed now
    DEMAND = "demand"  # an operator asked for it


class Wait(StrEnum):
    """Why no pass is due."""

    POLICY = "policy"  # cleanup.policy does not include compact
    RUNNING = "running"  # a pass is in progress
    QUARANTINED = "quarantined"  # the last pass failed; it is retried later
    ACTIVE = "active"  # everything dirty is in the active segment
    UNDECIDED = "undecided"  # the first dirty segment reaches into an open transaction
    YOUNG = "young"  # the first dirty segment is younger than min.compaction.lag.ms
    RATIO = "ratio"  # the dirty ratio is too low
    CLEAN = "clean"  # nothing is dirty


class Horizon(NamedTuple):
    """From ``due_ms`` on, tombstones and markers from ``first_offset`` on may be removed."""

    due_ms: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerState:
    """The state of a partition that is stored between passes; all zero before the first."""

    clean_end: int = 0
    last_ms: int = NO_TIMESTAMP
    duration_ms: int = 0
    passes: int = 0
    freed_bytes: int = 0  # total of all passes
    last_freed_bytes: int = 0
    live_records: int = 0
    keyless_records: int = 0  # records without a key: nothing supersedes them
    horizons: tuple[Horizon, ...] = ()
    failures: int = 0  # consecutive
    retry_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionInputs:
    """The input of a plan; ``readers`` maps each registered reader to its next offset."""

    sealed: tuple[SegmentInfo, ...]
    active: SegmentInfo
    log_start: int
    last_stable: int
    state: CleanerState
    readers: Mapping[str, int]
    config: TopicConfig
    now_ms: int
    is_running: bool = False


class CompactionPlan(NamedTuple):
    """The range that a pass would take, whether the pass is due, and when it may be."""

    rule: Rule | None
    wait: Wait | None
    clean_end: int  # where the dirty part starts, after any reset
    bound: int  # one past the last offset of the range
    clean: tuple[SegmentInfo, ...]
    dirty: tuple[SegmentInfo, ...]
    next_due_ms: int | None  # when time alone may make it due; None: it waits for an event
    held_by: tuple[str, ...] = ()  # readers that have not passed a tombstone that is due
    is_reset: bool = False  # the stored clean end was outside the log

    @property
    def clean_bytes(self) -> int:
        """The size of the segments that earlier passes have processed."""
        return sum(segment.size_bytes for segment in self.clean)

    @property
    def dirty_bytes(self) -> int:
        """The size of the segments that no pass has processed yet."""
        return sum(segment.size_bytes for segment in self.dirty)

    @property
    def ratio(self) -> float:
        """The dirty share of the range; 0 for an empty range."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


# --- when a pass is due ---------------------------------------------------------------------


def plan_compaction(inputs: CompactionInputs, *, demand: bool = False) -> CompactionPlan:
    """The plan for one partition now; with ``demand`` any range that is not empty is due."""
    clean_end, is_reset = _clean_end(inputs)
    clean = tuple(s for s in inputs.sealed if s.end_offset <= clean_end)
    after = [s for s in inputs.sealed if s.end_offset > clean_end]
    dirty = tuple(after[: _cleanable(after, inputs)])
    taken = clean + dirty
    plan = CompactionPlan(
        rule=None,
        wait=None,
        clean_end=clean_end,
        bound=taken[-1].end_offset if taken else clean_end,
        clean=clean,
        dirty=dirty,
        next_due_ms=None,
        held_by=_held_by(inputs),
        is_reset=is_reset,
    )
    rule = _rule(plan, inputs, demand)
    if rule is not None:
        return plan._replace(rule=rule, next_due_ms=inputs.now_ms)
    wait = _wait(plan, inputs, after)
    return plan._replace(wait=wait, next_due_ms=_next_due(wait, plan, inputs, after))


def due_first(plans: Mapping[Any, CompactionPlan]) -> list[Any]:
    """The keys of the due plans, highest dirty ratio first."""
    due = [key for key, plan in plans.items() if plan.rule is not None]
    return sorted(due, key=lambda key: (-plans[key].ratio, str(key)))


def plan_retry(failures: int, now_ms: int) -> int:
    """When to retry a partition after this many consecutive failures, in ms."""
    assert failures > 0
    return now_ms + min(RETRY_FIRST_MS << min(failures - 1, 20), RETRY_LAST_MS)


def _clean_end(inputs: CompactionInputs) -> tuple[int, bool]:
    """Where the dirty part starts, and whether it was reset to the log start."""
    remembered = inputs.state.clean_end
    if inputs.log_start <= remembered <= inputs.active.end_offset:
        return remembered, False
    return inputs.log_start, remembered != 0 or inputs.state.passes > 0


def _cleanable(after: Sequence[SegmentInfo], inputs: CompactionInputs) -> int:
    """How many of the segments after the clean part may be compacted."""
    return next((i for i, s in enumerate(after) if _hold_reason(s, inputs)), len(after))


def _hold_reason(segment: SegmentInfo, inputs: CompactionInputs) -> Wait | None:
    """Why this segment, and therefore every later one, must not be touched yet."""
    if segment.end_offset > inputs.last_stable:
        return Wait.UNDECIDED
    lag_ms = inputs.config.min_compaction_lag_ms
    if lag_ms > 0 and segment.newest_ms > inputs.now_ms - lag_ms:
        return Wait.YOUNG
    return None


def _rule(plan: CompactionPlan, inputs: CompactionInputs, demand: bool) -> Rule | None:
    if "compact" not in inputs.config.cleanup_policy or inputs.is_running:
        return None
    if demand:
        return Rule.DEMAND if plan.clean or plan.dirty else None
    if inputs.now_ms < inputs.state.retry_ms:
        return None
    if plan.dirty_bytes and plan.ratio > inputs.config.min_cleanable_dirty_ratio:
        return Rule.RATIO
    if plan.dirty_bytes and _max_lag_due(plan.dirty, inputs) <= inputs.now_ms:
        return Rule.MAX_LAG
    if plan.clean and any(_is_due(horizon, inputs) for horizon in inputs.state.horizons):
        return Rule.HORIZON
    return None


def _max_lag_due(dirty: Iterable[SegmentInfo], inputs: CompactionInputs) -> int:
    """When the oldest dirty record becomes older than ``max.compaction.lag.ms``.

    A timestamp in the future is replaced by the segment's creation time, so one wrong clock cannot
    delay compaction for ever.
    """
    lag_ms = inputs.config.max_compaction_lag_ms
    firsts = [
        s.first_ms if s.first_ms <= inputs.now_ms else s.created_ms
        for s in dirty
        if s.first_ms != NO_TIMESTAMP
    ]
    return min(firsts) + lag_ms + 1 if firsts and lag_ms < KEEP_ALL else KEEP_ALL


def _is_due(horizon: Horizon, inputs: CompactionInputs) -> bool:
    return horizon.due_ms <= inputs.now_ms and horizon.first_offset < watermark(inputs.readers)


def _held_by(inputs: CompactionInputs) -> tuple[str, ...]:
    """The readers that have not passed a tombstone whose horizon has passed."""
    due = [h.first_offset for h in inputs.state.horizons if h.due_ms <= inputs.now_ms]
    if not due:
        return ()
    return tuple(sorted(name for name, next_ in inputs.readers.items() if next_ <= min(due)))


def _wait(plan: CompactionPlan, inputs: CompactionInputs, after: Sequence[SegmentInfo]) -> Wait:
    if "compact" not in inputs.config.cleanup_policy:
        return Wait.POLICY
    if inputs.is_running:
        return Wait.RUNNING
    if inputs.now_ms < inputs.state.retry_ms:
        return Wait.QUARANTINED
    if plan.dirty_bytes:
        return Wait.RATIO
    if after and (reason := _hold_reason(after[0], inputs)):
        return reason
    return Wait.ACTIVE if inputs.active.size_bytes else Wait.CLEAN


def _next_due(
    wait: Wait, plan: CompactionPlan, inputs: CompactionInputs, after: Sequence[SegmentInfo]
) -> int | None:
    """The earliest time at which a rule may apply without further appends."""
    if wait in {Wait.POLICY, Wait.RUNNING}:
        return None
    config = inputs.config
    moments = [_max_lag_due(plan.dirty, inputs)]
    moments += [
        horizon.due_ms
        for horizon in inputs.state.horizons
        if plan.clean and horizon.first_offset < watermark(inputs.readers)
    ]
    held = after[len(plan.dirty) :]
    if held and _hold_reason(held[0], inputs) is Wait.YOUNG:
        moments.append(held[0].newest_ms + config.min_compaction_lag_ms)
    if inputs.active.size_bytes and roll_ms(config) < KEEP_ALL:
        moments.append(born_ms(inputs.active, inputs.now_ms) + roll_ms(config))
    earliest = max(min(moments), inputs.state.retry_ms)
    return None if earliest >= KEEP_ALL else earliest


# --- explanations ---------------------------------------------------------------------------


def explain(plan: CompactionPlan, inputs: CompactionInputs) -> str:
    """The deciding rule with its numbers, and when the next pass is due."""
    state = f"dirty {plan.dirty_bytes} of {plan.clean_bytes + plan.dirty_bytes} cleanable bytes"
    if plan.rule is not None:
        return f"due: {_RULES[plan.rule].format(**_numbers(plan, inputs))}; {state}"
    assert plan.wait is not None
    words = _WAITS[plan.wait].format(**_numbers(plan, inputs))
    held = f"; due tombstones wait for {', '.join(plan.held_by)}" if plan.held_by else ""
    if plan.next_due_ms is None:
        when = "it will not become due without new records"
    else:
        left_s = -(-max(0, plan.next_due_ms - inputs.now_ms) // 1000)
        when = f"may be due in {timedelta(seconds=left_s)}"
    return f"not due: {words}; {state}{held}; {when}"


_RULES: Final = {
    Rule.RATIO: "the dirty ratio {ratio:.3f} is above min.cleanable.dirty.ratio {limit}",
    Rule.MAX_LAG: "a dirty record is older than max.compaction.lag.ms {max_lag}",
    Rule.HORIZON: "tombstones or markers have passed delete.retention.ms",
    Rule.DEMAND: "asked for",
}
_WAITS: Final = {
    Wait.POLICY: "cleanup.policy does not include compact",
    Wait.RUNNING: "a job is replacing its segments",
    Wait.QUARANTINED: "the last {failures} passes failed ({error})",
    Wait.ACTIVE: "everything dirty is in the active segment, which is never compacted",
    Wait.UNDECIDED: "the first dirty segment reaches into an open transaction",
    Wait.YOUNG: "the first dirty segment is younger than min.compaction.lag.ms {min_lag}",
    Wait.RATIO: "the dirty ratio {ratio:.3f} is not above min.cleanable.dirty.ratio {limit}",
    Wait.CLEAN: "there are no dirty records",
}


def _numbers(plan: CompactionPlan, inputs: CompactionInputs) -> dict[str, Any]:
    return {
        "ratio": plan.ratio,
        "limit": inputs.config.min_cleanable_dirty_ratio,
        "min_lag": inputs.config.min_compaction_lag_ms,
        "max_lag": inputs.config.max_compaction_lag_ms,
        "failures": inputs.state.failures,
        "error": inputs.state.error,
    }


# --- grouping segments ----------------------------------------------------------------------


class Candidate(NamedTuple):
    """A segment of the range, its expected size after the pass, and whether the pass changes it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    is_changed: bool
    kept_bytes: int


def plan_kept_bytes(size_bytes: int, records: int, removed: int) -> int:
    """The expected size of a segment after removals, in proportion to the records that stay."""
    if removed <= 0 or records <= 0:
        return size_bytes
    return -(-size_bytes * max(0, records - removed) // records)


def plan_groups(
    candidates: Sequence[Candidate],
    segment_bytes: int,
    *,
    thorough: bool = False,
    tasks: int = 1,
) -> list[tuple[Candidate, ...]]:
    """Neighbours to merge into one segment, in order; a group of one unchanged segment stays as is.

    The expected output of a group fits in ``segment_bytes``, and its offsets fit in an index.
    (Kafka uses the sizes before the pass, and therefore leaves as many small segments as it found
    large ones.) An unchanged segment that is at least half full is left alone unless ``thorough``:
    it is not worth copying repeatedly for the sake of a small neighbour.

    One task processes each group. No group reads more than an equal share of the input, or
    ``segment_bytes`` if that is more, when ``tasks`` run in parallel. Within that limit there are
    as few groups as possible, and the largest is as small as that number allows, so tasks end
    together.
    """
    settled = frozenset(
        number
        for number, candidate in enumerate(candidates)
        if not thorough and _is_settled(candidate, segment_bytes)
    )
    total_bytes = sum(candidate.size_bytes for candidate in candidates)
    high = max(segment_bytes, -(-total_bytes // tasks))
    low = max((candidate.size_bytes for candidate in candidates), default=0)
    groups = _grouped(candidates, high, segment_bytes, settled)
    while low < high:
        middle = (low + high) // 2
        narrower = _grouped(candidates, middle, segment_bytes, settled)
        if len(narrower) > len(groups):
            low = middle + 1
        else:
            groups, high = narrower, middle
    return groups


def _grouped(
    candidates: Sequence[Candidate], read_bytes: int, kept_bytes: int, settled: AbstractSet[int]
) -> list[tuple[Candidate, ...]]:
    """Add each segment to the last group if its sizes fit; ``settled`` segments stay alone."""
    starts, read, kept = [0] if candidates else [], 0, 0
    for number, candidate in enumerate(candidates):
        read += candidate.size_bytes
        kept += candidate.kept_bytes
        span = candidate.end_offset - candidates[starts[-1]].base_offset
        fits = read <= read_bytes and kept <= kept_bytes and span <= OFFSETS_PER_SEGMENT_MAX
        if number and not (fits and settled.isdisjoint((number - 1, number))):
            starts.append(number)
            read, kept = candidate.size_bytes, candidate.kept_bytes
    return [tuple(candidates[start:end]) for start, end in pairwise([*starts, len(candidates)])]


def plan_swaps(groups: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Batch adjacent groups (segment ranges) into swaps of at most ``SEGMENTS_PER_SWAP_MAX``."""
    swaps: list[list[tuple[int, int]]] = []
    for group in groups:
        if swaps and swaps[-1][-1][1] == group[0] and len(swaps[-1]) < SEGMENTS_PER_SWAP_MAX:
            swaps[-1].append(group)
        else:
            swaps.append([group])
    return swaps


def _is_settled(candidate: Candidate, segment_bytes: int) -> bool:
    return not candidate.is_changed and candidate.size_bytes * 2 >= segment_bytes


# --- records and batches to keep ------------------------------------------------------------


def watermark(readers: Mapping[str, int]) -> int:
    """The offset below which every registered reader has read."""
    return min(readers.values(), default=KEEP_ALL)


def is_past(horizon_ms: int | None, offset: int, now_ms: int, passed_end: int) -> bool:
    """Whether a tombstone or marker may be removed: its horizon and all readers have passed it."""
    return horizon_ms is not None and horizon_ms <= now_ms and offset < passed_end


def is_kept(
    *, is_aborted: bool, has_key: bool, is_newest: bool, is_tombstone: bool, is_past: bool
) -> bool:
    """Whether a record stays; ``is_newest`` compares with the committed records of its key."""
    if is_aborted or not has_key:
        return not is_aborted
    return is_newest and not (is_tombstone and is_past)


class BatchAction(StrEnum):
    """What a pass does with a batch."""

    DROP = "drop"
    EMPTY = "empty"  # keep only the header: it has a needed sequence or the end of the range
    KEEP = "keep"
    HORIZON = "horizon"  # keep it and set a delete horizon


def plan_batch(
    *, kept: int, is_needed: bool, has_horizon: bool, wants_horizon: bool
) -> BatchAction:
    """What to do with a batch of which ``kept`` records stay.

    ``is_needed``: the header holds the last sequence or epoch of an active producer, or the last
    offset of the range. ``wants_horizon``: a tombstone is among the records that stay, or the batch
    is a marker whose transaction has no batch left.
    """
    if kept == 0:
        return BatchAction.EMPTY if is_needed else BatchAction.DROP
    return BatchAction.HORIZON if wants_horizon and not has_horizon else BatchAction.KEEP


# --- the state as JSON ----------------------------------------------------------------------


def encode_state(state: CleanerState) -> dict[str, Any]:
    """Plain values for the metadata and the HTTP API."""
    return asdict(state)


def parse_state(found: Mapping[str, Any]) -> CleanerState:
    """Inverse of ``encode_state``; raises ``ValueError`` for anything else."""
    return msgspec.convert(found, CleanerState)
