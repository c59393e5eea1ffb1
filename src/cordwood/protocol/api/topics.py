"""Topics, partitions and segments: list, seal, reclaim, scrub, and accept what is lost."""

from __future__ import annotations

from typing import Literal

import msgspec

from cordwood.protocol.api.call import Call, Count, Text


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic without its partitions."""

    name: str
    id: str
    partition_count: int
    max_message_bytes: int


class SegmentDetail(msgspec.Struct, frozen=True):
    """One segment; offsets are half-open, times are milliseconds, -1 for none."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    first_ms: int
    newest_ms: int
    state: str
    scrubbed_ms: int | None  # when it was last read completely
    damaged_ranges: int
    accepted_ranges: int
    codec: str | None  # that the broker compressed it with
    bytes_before: int  # before the broker compressed it


class PartitionDetail(msgspec.Struct, frozen=True):
    """An online partition and its segments."""

    partition: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    segments: tuple[SegmentDetail, ...]


class DamageDetail(msgspec.Struct, frozen=True):
    """Offsets of a segment that cannot be read, and why."""

    segment: int  # its base offset
    start_offset: int
    end_offset: int
    problem: str
    accepted: bool = False


class PartitionProblem(msgspec.Struct, frozen=True):
    """A partition with a problem; an offline one is listed only here."""

    partition: int
    state: str  # online, damaged, read-only or offline
    problems: dict[str, str]  # the reason of each condition
    damage: tuple[DamageDetail, ...]


class TopicDetail(TopicSummary, frozen=True):
    """A topic; a brief listing has only the fields of ``TopicSummary``."""

    config: dict[str, str] = {}  # that the topic or a broker-wide default sets
    sources: dict[str, str] = {}  # of each: topic, or broker
    partitions: tuple[PartitionDetail, ...] = ()
    problems: tuple[PartitionProblem, ...] = ()


class TopicList(msgspec.Struct, frozen=True):
    """The topics, by name."""

    topics: tuple[TopicDetail, ...]


class ListTopics(Call[TopicList], frozen=True):
    """List topics: ``name`` selects one; ``brief`` = 1 omits partitions."""

    route = "GET", "/topics"
    name: Text | None = None
    brief: Text | None = None


class SegmentsSealed(msgspec.Struct, frozen=True):
    """How many segments were sealed."""

    sealed: int


class CutTopic(Call[SegmentsSealed], frozen=True):
    """Seal the active segments of a topic."""

    route = "POST", "/cut"
    topic: Text


class SegmentsReclaimed(msgspec.Struct, frozen=True):
    """How many segments were deleted."""

    dropped: int


class ReclaimTopics(Call[SegmentsReclaimed], frozen=True):
    """Delete the segments that RECLAIM allows, in one topic or in all."""

    route = "POST", "/reclaim"
    topic: Text | None = None


class HeldSegments(msgspec.Struct, frozen=True):
    """Sealed segments of one partition that are due for deletion, and what holds them."""

    topic: str
    partition: int
    holder: Literal["readers", "no_reader", "archive"]
    readers: tuple[str, ...]  # that have not passed them
    segments: int
    size_bytes: int


class HeldList(msgspec.Struct, frozen=True):
    """What RECLAIM waits for."""

    held: tuple[HeldSegments, ...]


class ListHeld(Call[HeldList], frozen=True):
    """List the segments that RECLAIM would delete but for a reader or the archive."""

    route = "GET", "/held"
    topic: Text | None = None


class LossAccepted(msgspec.Struct, frozen=True):
    """The remaining offsets of a partition and the offset where it continues."""

    log_start_offset: int
    kept_end: int
    next_offset: int


class AcceptLoss(Call[LossAccepted], frozen=True):
    """Serve an offline partition without its lost records."""

    route = "POST", "/accept-loss"
    topic: Text
    partition: Count


class DamageAccepted(msgspec.Struct, frozen=True):
    """The ranges that no longer count as a problem."""

    accepted: tuple[DamageDetail, ...]


class AcceptDamage(Call[DamageAccepted], frozen=True):
    """Accept the damaged records of a segment as lost."""

    route = "POST", "/accept-damage"
    topic: Text
    partition: Count
    segment: Count  # the base offset of the segment


class ScrubDamage(DamageDetail, frozen=True, kw_only=True):
    """A damaged range that a scrub found."""

    partition: str


class ScrubStatus(msgspec.Struct, frozen=True):
    """Progress of the last scrub on demand; all zero before the first."""

    topic: str | None = None
    running: bool = False
    segments: int = 0
    total_segments: int = 0
    bytes: int = 0
    total_bytes: int = 0
    damaged: tuple[ScrubDamage, ...] = ()
    failed: dict[str, str] = {}


class GetScrub(Call[ScrubStatus], frozen=True):
    """Ask for the progress of the last scrub on demand."""

    route = "GET", "/scrub"


class StartScrub(Call[ScrubStatus], frozen=True):
    """Scrub one topic or all."""

    route = "POST", "/scrub"
    topic: Text | None = None
