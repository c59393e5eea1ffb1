"""CUT: when the active segment must be sealed.

Size, age or entries, whichever comes first, asked by the single writer at a batch boundary and by
the monitor between writes, so an idle topic is cut too. It never waits for a reader, and never
cuts an empty segment.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from cordwood.config import TopicConfig
from cordwood.model import NO_TIMESTAMP

OFFSETS_PER_SEGMENT_MAX: Final = 2**31 - 1  # an index entry holds its offset in a signed int32


class RollReason(StrEnum):
    """Why the active segment is sealed."""

    SIZE = "size"  # the incoming batch would pass segment.bytes
    AGE = "age"  # segment.ms, or max.compaction.lag.ms on a compacted topic
    ENTRIES = "entries"  # segment.entries
    OFFSETS = "offsets"  # the index cannot express the next offset
    EXPIRED = "expired"  # every record in it is past retention: sealed to be dropped
    DEMAND = "demand"  # somebody asked


class Active(Protocol):
    """What is asked of the active segment: of a ``SegmentInfo``, or of itself by the writer."""

    @property
    def base_offset(self) -> int: ...  # noqa: D102 - as ``SegmentInfo`` says, all six

    @property
    def end_offset(self) -> int: ...  # noqa: D102

    @property
    def size_bytes(self) -> int: ...  # noqa: D102

    @property
    def records(self) -> int: ...  # noqa: D102

    @property
    def first_ms(self) -> int: ...  # noqa: D102

    @property
    def created_ms(self) -> int: ...  # noqa: D102


def plan_roll(
    active: Active,
    incoming_bytes: int,
    incoming_records: int,
    config: TopicConfig,
    now_ms: int,
) -> RollReason | None:
    """Why to seal ``active`` before the incoming batch is written; None to go on with it.

    The monitor asks with nothing incoming. A batch larger than ``segment.bytes`` gets a segment of
    its own: an empty segment is never cut.
    """
    if active.size_bytes == 0:
        return None
    if active.size_bytes + incoming_bytes > config.segment_bytes:
        return RollReason.SIZE
    is_full = active.records >= config.segment_entries
    if is_full or active.records + incoming_records > config.segment_entries:
        return RollReason.ENTRIES
    if active.end_offset + incoming_records - active.base_offset > OFFSETS_PER_SEGMENT_MAX:
        return RollReason.OFFSETS
    if now_ms - born_ms(active, now_ms) >= roll_ms(config):
        return RollReason.AGE
    return None


class SegmentCapacity(NamedTuple):
    """What fits into a segment."""

    size_bytes: int
    records: int


def plan_capacity(active: Active, config: TopicConfig) -> SegmentCapacity:
    """What fits before ``plan_roll`` has a reason other than age; nothing is said of an empty one.

    For who has many small appends at hand, and asks once.
    """
    if active.size_bytes == 0:
        return SegmentCapacity(0, 0)
    offsets = OFFSETS_PER_SEGMENT_MAX - (active.end_offset - active.base_offset)
    return SegmentCapacity(
        config.segment_bytes - active.size_bytes,
        min(config.segment_entries - active.records, offsets),
    )


def roll_ms(config: TopicConfig) -> int:
    """How old an active segment may grow: a compacted topic must also seal in time to compact."""
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def born_ms(active: Active, now_ms: int) -> int:
    """Since when the segment has held a record, as far as its timestamps can be believed.

    Producers choose timestamps. A record cannot have arrived before its segment was opened, or a
    backfill of old records would cut at every append; nor in the future, or one wrong clock would
    keep the segment open for ever.
    """
    if active.first_ms == NO_TIMESTAMP or active.first_ms > now_ms:
        return active.created_ms
    return max(active.first_ms, active.created_ms)
