"""CUT: decides when to seal the active segment.

The first limit reached decides: size, entries, index size or age. The single writer checks at batch
boundaries, and the monitor checks between writes, so an idle topic is cut too. A cut never waits
for a reader, and an empty segment is never cut.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from cordwood.config import TopicConfig
from cordwood.model import NO_TIMESTAMP

OFFSETS_PER_SEGMENT_MAX: Final = 2**31 - 1  # an index entry holds its offset in a signed int32
INDEX_ENTRY_BYTES: Final = 12  # of a time index, the larger one


class RollReason(StrEnum):
    """Why the active segment is sealed."""

    SIZE = "size"  # the incoming batch would exceed segment.bytes
    AGE = "age"  # segment.ms, or max.compaction.lag.ms on a compacted topic
    ENTRIES = "entries"  # segment.entries
    OFFSETS = "offsets"  # the index cannot represent the next offset
    INDEX = "index"  # segment.index.bytes
    EXPIRED = "expired"  # every record in it is past retention: sealed to be deleted
    DEMAND = "demand"  # an operator asked for it


class Active(Protocol):
    """The properties read of the active segment, from a ``SegmentInfo`` or the writer's segment."""

    @property
    def base_offset(self) -> int: ...  # noqa: D102 - documented by ``SegmentInfo``, all eight

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

    @property
    def index_bytes(self) -> int: ...  # noqa: D102

    @property
    def spread(self) -> int: ...  # noqa: D102


def plan_roll(
    active: Active,
    incoming_bytes: int,
    incoming_records: int,
    config: TopicConfig,
    now_ms: int,
) -> RollReason | None:
    """Why to seal ``active`` before writing the incoming batch; None to keep appending.

    The monitor passes zero incoming bytes and records. A batch larger than ``segment.bytes`` gets a
    segment of its own, because an empty segment is never cut.
    """
    size_bytes = active.size_bytes
    if size_bytes == 0:
        return None
    if size_bytes + incoming_bytes > config.segment_bytes:
        return RollReason.SIZE
    if active.records + (incoming_records or 1) > config.segment_entries:  # full, or would be
        return RollReason.ENTRIES
    if active.end_offset + incoming_records - active.base_offset > OFFSETS_PER_SEGMENT_MAX:
        return RollReason.OFFSETS
    # An index is always smaller than its log, and its size takes longer to look up.
    if size_bytes > config.segment_index_bytes and _is_index_full(active, config):
        return RollReason.INDEX
    limit_ms = roll_ms(config)
    if config.segment_jitter_ms:
        limit_ms -= jitter_ms(active, config)
    if now_ms - born_ms(active, now_ms) >= limit_ms:
        return RollReason.AGE
    return None


class SegmentCapacity(NamedTuple):
    """The remaining capacity of a segment."""

    size_bytes: int
    records: int


def plan_capacity(active: Active, config: TopicConfig) -> SegmentCapacity:
    """What fits before ``plan_roll`` returns a reason other than age; (0, 0) for an empty segment.

    It lets a caller with many small appends check once.
    """
    if active.size_bytes == 0:
        return SegmentCapacity(0, 0)
    offsets = OFFSETS_PER_SEGMENT_MAX - (active.end_offset - active.base_offset)
    return SegmentCapacity(
        config.segment_bytes - active.size_bytes,
        min(config.segment_entries - active.records, offsets),
    )


def _is_index_full(active: Active, config: TopicConfig) -> bool:
    """Whether another entry would exceed ``segment.index.bytes``; an empty index is not full."""
    index_bytes = active.index_bytes
    return index_bytes > 0 and index_bytes + INDEX_ENTRY_BYTES > config.segment_index_bytes


def jitter_ms(active: Active, config: TopicConfig) -> int:
    """How much earlier than others this segment reaches its maximum age."""
    return active.spread % min(config.segment_jitter_ms, config.segment_ms)


def roll_ms(config: TopicConfig) -> int:
    """The maximum age of an active segment; a compacted topic must also seal in time to compact."""
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def born_ms(active: Active, now_ms: int) -> int:
    """The age reference of a segment in ms: its first timestamp, as far as it is plausible.

    Producers choose timestamps. A record cannot have arrived before its segment was opened;
    otherwise a backfill of old records would cut at every append. It cannot have arrived in the
    future either; otherwise one wrong clock would keep the segment open for ever.
    """
    if active.first_ms == NO_TIMESTAMP or active.first_ms > now_ms:
        return active.created_ms
    return max(active.first_ms, active.created_ms)
