"""Compute where a query starts and ends, and which offsets one micro-batch reads.

The rules are those of Spark's Kafka source. A limit is divided among partitions in proportion to
their backlog, and no partition starves. Records that disappear before they are read are reported
as a loss, never skipped silently.

Pure: takes the bounds of the log as values and performs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cordwood.config import nearest
from cordwood.errors import InvalidOption, OffsetOutOfRange, UnknownTopic
from cordwood.model import TopicPartition
from cordwood.pipeline.source.options import AtOffsets, AtTimes, Edge, Position, TopicSelection
from cordwood.pipeline.source.topic_ids import IDS

Offsets = Mapping[TopicPartition, int]


class Bounds(NamedTuple):
    """The readable offsets of a partition: log start to high watermark or last stable offset."""

    start: int
    end: int


class Range(NamedTuple):
    """A half-open range of offsets of one partition that a query has yet to read."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets in the range, gaps included."""
        return self.end - self.start


class Loss(NamedTuple):
    """Offsets of a partition that a query can no longer read, and the reason."""

    tp: TopicPartition
    reason: str


def plan_partitions(
    subscription: TopicSelection, topics: Mapping[str, Iterable[int]]
) -> list[TopicPartition]:
    """The partitions that a subscription selects; raises ``UnknownTopic`` for missing ones."""
    if subscription.pattern is not None:
        matches = re.compile(subscription.pattern).fullmatch
        names = [topic for topic in topics if matches(topic)]
    else:
        names = list(subscription.topics or {tp.topic for tp in subscription.partitions})
    for name in names:
        if name not in topics:
            raise UnknownTopic(f"there is no topic {name}{nearest(name, topics)} ({subscription})")
    if subscription.partitions:
        for tp in subscription.partitions:
            if tp.partition not in set(topics[tp.topic]):
                raise UnknownTopic(f"topic {tp.topic} has no partition {tp.partition}")
        return sorted(subscription.partitions)
    return sorted(TopicPartition(name, number) for name in names for number in topics[name])


def still_there(
    subscription: TopicSelection, topics: Mapping[str, Iterable[int]]
) -> TopicSelection:
    """The subscription without topics and partitions that no longer exist."""
    return replace(
        subscription,
        topics=tuple(name for name in subscription.topics if name in topics),
        partitions=tuple(
            tp for tp in subscription.partitions if tp.partition in set(topics.get(tp.topic, ()))
        ),
    )


def resolve(
    position: Position,
    bounds: Mapping[TopicPartition, Bounds],
    find_time: Callable[[TopicPartition, int], int | None],
    *,
    starting: bool,
    no_match_is_latest: bool,
    losses: list[Loss] | None = None,
) -> dict[TopicPartition, int]:
    """Resolve a position to an offset in each partition; calls ``find_time`` only for timestamps.

    Raises ``OffsetOutOfRange`` for an offset outside the log. With ``losses``, such an offset is
    replaced by the nearest end of the log instead, and the loss is appended to the list.
    """
    side = "starting" if starting else "ending"
    if isinstance(position, Edge):
        return {tp: _edge(position, of) for tp, of in bounds.items()}
    if isinstance(position, AtOffsets):
        _check_all_named(f"{side}Offsets", position.offsets, bounds)
        return {tp: _exact(side, tp, position.offsets[tp], of, losses) for tp, of in bounds.items()}
    times = position.times_ms
    if isinstance(times, Mapping):
        _check_all_named(f"{side}OffsetsByTimestamp", times, bounds)
    resolved: dict[TopicPartition, int] = {}
    for tp, of in bounds.items():
        time_ms = times[tp] if isinstance(times, Mapping) else times
        offset = find_time(tp, time_ms)
        if offset is None and starting and not no_match_is_latest:
            raise OffsetOutOfRange(
                f"{tp} has no record at or after {time_ms} ms; set an earlier time, or "
                "startingOffsetsByTimestampStrategy to latest"
            )
        resolved[tp] = of.end if offset is None else offset
    return resolved


def is_volatile(position: Position, *, no_match_is_latest: bool) -> bool:
    """Whether the position may resolve to a different offset after more appends."""
    if isinstance(position, AtOffsets):
        return Edge.LATEST.value in position.offsets.values()
    if isinstance(position, AtTimes):
        return no_match_is_latest
    return position is Edge.LATEST


def _edge(edge: Edge, bounds: Bounds) -> int:
    return bounds.start if edge is Edge.EARLIEST else bounds.end


def _exact(
    side: str, tp: TopicPartition, offset: int, bounds: Bounds, losses: list[Loss] | None
) -> int:
    if offset in (Edge.EARLIEST.value, Edge.LATEST.value):
        return _edge(Edge(offset), bounds)
    if bounds.start <= offset <= bounds.end:
        return offset
    held = f"the log holds offsets {bounds.start} to {bounds.end} (end not included)"
    if losses is None:
        raise OffsetOutOfRange(
            f"{side}Offsets of {tp} is {offset}, but {held}; use -2 for the earliest, -1 for the "
            "latest, or set failOnDataLoss to false to read what is there"
        )
    losses.append(Loss(tp, f"{side}Offsets is {offset}, and {held}"))
    return min(max(offset, bounds.start), bounds.end)


def _check_all_named(option: str, named: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> None:
    missing = sorted(str(tp) for tp in bounds.keys() - named.keys())
    strange = sorted(str(tp) for tp in named.keys() - bounds.keys())
    if missing:
        raise InvalidOption(
            f"option {option} must name every partition read; {', '.join(missing)} missing "
            "(use -2 for the earliest, -1 for the latest)"
        )
    if strange:
        raise InvalidOption(f"option {option} names {', '.join(strange)}, not subscribed")


def plan_limit(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """End offsets for about ``limit`` records, divided in proportion to each partition's backlog.

    A partition with a backlog gets at least one offset, so the sum may exceed the limit by the
    number of partitions, as in Spark's Kafka source.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = sum(sizes.values())
    limited = dict(end)
    for tp, size in sizes.items():
        share = limit * size // total
        limited[tp] = min(end[tp], start[tp] + max(share, 1))
    return limited


def is_too_few(start: Offsets, end: Offsets, low: int) -> bool:
    """Whether the backlog is smaller than ``minOffsetsPerTrigger``."""
    return sum(max(0, end[tp] - start.get(tp, 0)) for tp in end) < low


def plan_ranges(
    start: Offsets, end: Offsets, bounds: Mapping[TopicPartition, Bounds]
) -> tuple[list[Range], list[Loss]]:
    """The ranges a micro-batch reads between two offsets, and the losses among them.

    A partition that is new since ``start`` is read from its log start.
    """
    ranges: list[Range] = []
    losses = [
        Loss(tp, "the partition no longer exists") for tp in sorted(start.keys() - end.keys())
    ]
    for tp in sorted(end):
        if tp not in bounds:
            losses.append(Loss(tp, "the partition no longer exists"))
            continue
        first = start.get(tp, 0)
        if first > end[tp]:
            losses.append(Loss(tp, f"its end offset decreased from {first} to {end[tp]}"))
        elif end[tp] > bounds[tp].end:
            losses.append(Loss(tp, f"the log ends at {bounds[tp].end}, before {end[tp]}"))
        elif first < min(bounds[tp].start, end[tp]):
            losses.append(Loss(tp, f"offsets {first} to {bounds[tp].start} were reclaimed"))
        first = max(first, bounds[tp].start)
        last = min(end[tp], bounds[tp].end)
        if first < last:
            ranges.append(Range(tp, first, last))
    return ranges, losses


def begin_of_recreated(
    begin: Offsets,
    bounds: Mapping[TopicPartition, Bounds],
    other: Collection[str],
    gone: Collection[str],
) -> dict[TopicPartition, int]:
    """Start offsets of a batch: topics in ``other`` at their log start, without those in ``gone``.

    ``other`` were recreated between the batch's start and end offsets, ``gone`` after its end
    offsets were chosen.
    """
    kept = {tp: at for tp, at in begin.items() if tp.topic not in {*other, *gone}}
    fresh = {tp: of.start for tp, of in bounds.items() if tp.topic in set(other) - set(gone)}
    return kept | fresh


def encode_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Encode offsets as Spark's Kafka source does in a checkpoint: topic → partition → offset."""
    encoded: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        encoded.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return encoded


def parse_offsets(encoded: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The inverse of ``encode_offsets``; ignores the topic ids (``topic_ids``)."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in encoded.items()
        if topic != IDS
        for partition, offset in partitions.items()
    }
