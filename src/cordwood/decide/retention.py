"""RECLAIM: plans which sealed segments to delete and why, which stay, and what holds them.

A plan takes the oldest segments and stops at the first one that must stay, so the rest is always
one contiguous log. ``cleanup.policy`` is a set with these rules:

=================  ================================================================
contains           a segment is due when
=================  ================================================================
delete             its newest record is past ``retention.ms``, or the rest of the log
                   still holds ``retention.bytes`` without it (Kafka's rule)
consume            every registered reader has passed it
delete, consume    (age or size) and consumed
neither            never; ``compact`` removes records, not segments
=================  ================================================================

Under any policy, a segment entirely below the log start is deleted, and so is the oldest segment
while the log exceeds ``retention.hard.bytes`` or its newest record is past ``retention.hard.ms``,
even if readers lose data; the plan then names them. Nothing here deletes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from cordwood.config import KEEP_ALL, TopicConfig
from cordwood.model import NO_TIMESTAMP, SegmentInfo

ARCHIVE_READER: Final = "archive"  # the name reported in ``loses`` for an unarchived segment


class Reason(StrEnum):
    """Why a segment is deleted."""

    LOG_START = "log_start"  # its records were deleted before
    AGE = "age"
    SIZE = "size"
    CONSUMED = "consumed"
    HARD_CAP = "hard_cap"  # retention.hard.bytes: data loss, if a reader still needed it
    HARD_AGE = "hard_age"  # retention.hard.ms: likewise


class Holder(StrEnum):
    """What holds a segment that is otherwise due."""

    READERS = "readers"  # registered readers that have not passed it
    NO_READER = "no_reader"  # policy consume, but no reader is registered
    ARCHIVE = "archive"  # its bundle has not been verified yet


class Drop(NamedTuple):
    """One segment to delete; ``loses`` names the readers that have not passed it."""

    segment: SegmentInfo
    reason: Reason
    loses: tuple[str, ...] = ()


class Hold(NamedTuple):
    """One segment that is due for ``reason`` but held by ``holder``."""

    segment: SegmentInfo
    reason: Reason
    holder: Holder
    readers: tuple[str, ...] = ()


class RetentionPlan(NamedTuple):
    """The oldest segments to delete, those that are held, and whether to seal the active segment.

    With ``roll_active`` every record of the active segment is due: seal it and plan again, and the
    next plan deletes it. (It may grow in between, so this plan does not include it.)
    """

    drops: tuple[Drop, ...]
    holds: tuple[Hold, ...]
    roll_active: bool = False

    def log_start(self, current: int) -> int:
        """The log start after the plan is applied."""
        return max([current, *(drop.segment.end_offset for drop in self.drops)])


class _Inputs(NamedTuple):
    """The inputs of a plan for one partition."""

    readers: Mapping[str, int]
    log_start: int
    config: TopicConfig
    now_ms: int
    archived_end: int


def plan_retention(
    sealed: Sequence[SegmentInfo],
    active: SegmentInfo,
    readers: Mapping[str, int],
    *,
    log_start: int,
    config: TopicConfig,
    now_ms: int,
    archived_end: int = KEEP_ALL,
) -> RetentionPlan:
    """Plan for one partition; ``readers`` maps each registered reader to its next offset.

    ``archived_end`` is the offset up to which bundles are verified, for topics that must be
    archived before RECLAIM.
    """
    inputs = _Inputs(readers, log_start, config, now_ms, archived_end)
    drops: list[Drop] = []
    total_bytes = active.size_bytes + sum(segment.size_bytes for segment in sealed)
    for segment in sealed:
        drop = _plan_segment(segment, total_bytes, inputs)
        if drop is None:
            break
        drops.append(drop)
        total_bytes -= segment.size_bytes
    kept = sealed[len(drops) :]
    holds = _plan_holds([*kept, active], total_bytes, inputs)
    roll_active = not kept and _is_active_due(active, total_bytes, inputs)
    return RetentionPlan(tuple(drops), holds, roll_active)


def watermark(readers: Mapping[str, int], log_start: int) -> int:
    """The lowest cursor of the registered readers; the log start when there is none."""
    return min(readers.values(), default=log_start)


def _plan_segment(segment: SegmentInfo, total_bytes: int, inputs: _Inputs) -> Drop | None:
    """What to do with the oldest remaining segment; ``total_bytes`` includes it."""
    if segment.end_offset <= inputs.log_start:
        return Drop(segment, Reason.LOG_START)
    behind = _behind(segment, inputs)
    due = _due(segment, total_bytes, inputs)
    if due and not _holders(segment, inputs):
        return Drop(segment, due, behind)
    if limit := _exceeded(segment, total_bytes, inputs):
        unarchived = () if segment.end_offset <= inputs.archived_end else (ARCHIVE_READER,)
        return Drop(segment, limit, behind + unarchived)
    return None


def _exceeded(segment: SegmentInfo, total_bytes: int, inputs: _Inputs) -> Reason | None:
    """The hard limit that drops the oldest segment regardless of readers and archive."""
    if total_bytes > inputs.config.retention_hard_bytes:
        return Reason.HARD_CAP
    return Reason.HARD_AGE if _is_hard_aged(segment, inputs) else None


def _is_hard_aged(segment: SegmentInfo, inputs: _Inputs) -> bool:
    return _age_ms(segment, inputs) > inputs.config.retention_hard_ms


def _age_ms(segment: SegmentInfo, inputs: _Inputs) -> int:
    """The age of the newest record, or of the segment where no record has a timestamp."""
    newest_ms = segment.newest_ms
    return inputs.now_ms - (segment.created_ms if newest_ms == NO_TIMESTAMP else newest_ms)


def _due(segment: SegmentInfo, total_bytes: int, inputs: _Inputs) -> Reason | None:
    """Why the policy wants to delete the segment, regardless of readers and archive."""
    config = inputs.config
    if "delete" in config.cleanup_policy:
        if _age_ms(segment, inputs) > config.retention_ms:
            return Reason.AGE
        if total_bytes - segment.size_bytes >= config.retention_bytes:
            return Reason.SIZE
        return None
    return Reason.CONSUMED if "consume" in config.cleanup_policy else None


def _holders(segment: SegmentInfo, inputs: _Inputs) -> list[tuple[Holder, tuple[str, ...]]]:
    """Everything that holds a due segment, with the readers concerned."""
    holders: list[tuple[Holder, tuple[str, ...]]] = []
    if "consume" in inputs.config.cleanup_policy:
        behind = _behind(segment, inputs)
        if behind:
            holders.append((Holder.READERS, behind))
        elif not inputs.readers:
            holders.append((Holder.NO_READER, ()))
    if segment.end_offset > inputs.archived_end:
        holders.append((Holder.ARCHIVE, ()))
    return holders


def _plan_holds(
    segments: Sequence[SegmentInfo], total_bytes: int, inputs: _Inputs
) -> tuple[Hold, ...]:
    """The segments that are due but held; the last of ``segments`` is the active one."""
    holds: list[Hold] = []
    for segment in segments:
        due = _due(segment, total_bytes, inputs)
        if due is None or (segment is segments[-1] and not _may_roll(segment, due)):
            break
        holds += [Hold(segment, due, holder, who) for holder, who in _holders(segment, inputs)]
        total_bytes -= segment.size_bytes
    return tuple(holds)


def _is_active_due(active: SegmentInfo, total_bytes: int, inputs: _Inputs) -> bool:
    """Whether sealing the active segment would allow its immediate deletion."""
    if active.size_bytes > 0 and active.end_offset <= inputs.log_start:
        return True
    if active.size_bytes > 0 and _is_hard_aged(active, inputs):
        return True
    due = _due(active, total_bytes, inputs)
    if due is None or not _may_roll(active, due):
        return False
    return not _holders(active, inputs)


def _may_roll(active: SegmentInfo, due: Reason) -> bool:
    """Whether to seal: never because it is consumed, or each batch would get its own segment."""
    return active.size_bytes > 0 and due is not Reason.CONSUMED


def _behind(segment: SegmentInfo, inputs: _Inputs) -> tuple[str, ...]:
    """Registered readers that have not passed the segment, sorted by name."""
    return tuple(
        sorted(name for name, next_ in inputs.readers.items() if next_ < segment.end_offset)
    )
