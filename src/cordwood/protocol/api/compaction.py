"""Compaction: what is due, the orders that the broker gives to jobs, and the jobs' reports.

The messages to ``POST /compaction`` are told apart by their field ``action``.
"""

from __future__ import annotations

import msgspec

from cordwood.decide.compaction import CleanerState
from cordwood.model import Aborted
from cordwood.protocol.api.call import Call, Count, Done, Text
from cordwood.protocol.api.status import DirectoryIdentity


class PartitionCompaction(msgspec.Struct, frozen=True):
    """A partition's compaction state, the plan, and the rule that applies."""

    topic: str
    partition: int
    is_due: bool
    rule: str | None
    wait: str | None
    explain: str
    next_due_ms: int | None
    dirty_ratio: float
    clean_bytes: int
    dirty_bytes: int
    clean_end: int
    held_by: tuple[str, ...]
    records: int
    state: CleanerState


class CompactionTimes(msgspec.Struct, frozen=True):
    """How often the embedded pipeline compacts, and how long after its start."""

    interval_ms: int
    delay_ms: int


class CompactionStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schedule and, unless the request was brief, the compacted partitions."""

    schedule: CompactionTimes
    partitions: tuple[PartitionCompaction, ...] = ()


class ListCompaction(Call[CompactionStatus], frozen=True):
    """List compacted partitions of one topic or of all; ``brief`` returns the schedule only."""

    route = "GET", "/compaction"
    topic: Text | None = None
    brief: Text | None = None


class OrderedSegment(msgspec.Struct, frozen=True):
    """A segment that the order covers; without a sha256 in a dry run."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    first_ms: int
    newest_ms: int
    created_ms: int
    state: str
    sha256: str | None = None


class CompactionOrder(PartitionCompaction, frozen=True, kw_only=True):
    """What one job may compact, and the facts it needs; in a dry run without a lease."""

    topic_id: str
    data: str
    identity: DirectoryIdentity
    config: dict[str, str]
    now_ms: int
    bound: int
    segments: tuple[OrderedSegment, ...]
    readers: dict[str, int]
    aborted: tuple[Aborted, ...]
    producers: tuple[tuple[int, int, int], ...]  # id, epoch, last offset (-1 if it sent none)
    lease: str = ""


class CompactionOrders(msgspec.Struct, frozen=True):
    """The orders, the dirtiest partition first."""

    orders: tuple[CompactionOrder, ...]


class BeginCompaction(Call[CompactionOrders], frozen=True, tag_field="action", tag="begin"):
    """Ask for orders; ``demand`` compacts everything, ``dry`` changes nothing."""

    route = "POST", "/compaction"
    topic: Text | None = None
    demand: bool = False
    dry: bool = False


class RenewLease(Call[Done], frozen=True, tag_field="action", tag="renew"):
    """Extend the lease of an order."""

    route = "POST", "/compaction"
    topic: Text
    partition: Count
    lease: Text = ""


class FinishCompaction(Call[Done], frozen=True, tag_field="action", tag="finish"):
    """Report a finished pass: the staged jobs to apply, and the partition's new state."""

    route = "POST", "/compaction"
    topic: Text
    partition: Count
    topic_id: Text
    jobs: tuple[Text, ...]
    state: CleanerState
    lease: Text = ""


class FailCompaction(Call[Done], frozen=True, tag_field="action", tag="fail"):
    """Report a failed pass."""

    route = "POST", "/compaction"
    topic: Text
    partition: Count
    error: Text
    lease: Text = ""


class ReleaseLease(Call[Done], frozen=True, tag_field="action", tag="release"):
    """End a lease without a result."""

    route = "POST", "/compaction"
    topic: Text
    partition: Count
    lease: Text = ""


CompactionCall = BeginCompaction | RenewLease | FinishCompaction | FailCompaction | ReleaseLease
