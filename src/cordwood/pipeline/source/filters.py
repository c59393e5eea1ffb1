"""Translate filters that Spark pushes down into partitions, offsets and a start time.

Filters on partition, topic and a range of offsets are applied exactly, so Spark does not check
them again. A lower bound on the timestamp moves the start to the first record at or after it.
Records before that one are older, but later records may be older too, so Spark still checks each
row. Spark evaluates all other filters itself.

Pure: Spark's filter classes are recognised by name, so the tests need no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cordwood.config import KEEP_ALL
from cordwood.model import TopicPartition
from cordwood.pipeline.source.offsets import Range

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Pushed:
    """What one query still has to read; each filter that can be pushed down narrows it."""

    start: int = 0
    end: int = KEEP_ALL
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    since_ms: int | None = None

    def take(self, condition: Any) -> bool:
        """Apply the filter; returns True if Spark does not have to check it again."""
        column = condition.attribute[0] if len(getattr(condition, "attribute", ())) == 1 else None
        kind = type(condition).__name__
        if column == "offset":
            return self._take_offset(kind, condition)
        if column == "timestamp":
            self._take_timestamp(kind, condition)
            return False
        if column in ("partition", "topic"):
            return self._take_names(column, kind, condition)
        return False

    def _take_offset(self, kind: str, condition: Any) -> bool:
        if kind == "IsNotNull":
            return True
        if kind == "In":
            known = [value for value in condition.value if value is not None]
            self.start = max(self.start, min(known, default=KEEP_ALL))
            self.end = min(self.end, max(known, default=-1) + 1)
            return False
        if kind not in _OFFSET_BOUNDS or condition.value is None:
            return False
        low, high = _OFFSET_BOUNDS[kind]
        if low is not None:
            self.start = max(self.start, condition.value + low)
        if high is not None:
            self.end = min(self.end, condition.value + high)
        return True

    def _take_timestamp(self, kind: str, condition: Any) -> None:
        if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual") and isinstance(
            condition.value, datetime
        ):
            since_ms = floor_ms(condition.value)
            self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)

    def _take_names(self, column: str, kind: str, condition: Any) -> bool:
        if kind == "IsNotNull":
            return True
        if kind not in ("EqualTo", "In"):
            return False
        values = condition.value if kind == "In" else (condition.value,)
        wanted = frozenset(value for value in values if value is not None)
        if column == "partition":
            self.partitions = wanted if self.partitions is None else self.partitions & wanted
        else:
            self.topics = wanted if self.topics is None else self.topics & wanted
        return True

    def is_wanted(self, tp: TopicPartition) -> bool:
        """Whether the partition and topic filters admit this partition."""
        if self.partitions is not None and tp.partition not in self.partitions:
            return False
        return self.topics is None or tp.topic in self.topics

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """The ranges that remain after filtering; does not apply ``since_ms``."""
        left = [
            Range(tp, max(start, self.start), min(end, self.end))
            for tp, start, end in ranges
            if self.is_wanted(tp)
        ]
        return [each for each in left if each.start < each.end]


_OFFSET_BOUNDS: Final[dict[str, tuple[int | None, int | None]]] = {
    "EqualTo": (0, 1),
    "EqualNullSafe": (0, 1),
    "GreaterThan": (1, None),
    "GreaterThanOrEqual": (0, None),
    "LessThan": (None, 0),
    "LessThanOrEqual": (None, 1),
}  # filter → added to its value for an inclusive start and an exclusive end; None: no bound


def floor_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded down; a naive datetime is UTC, like the session."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = aware - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def ceil_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded up: the first millisecond at or after the moment."""
    return floor_ms(moment) + (moment.microsecond % 1000 > 0)
