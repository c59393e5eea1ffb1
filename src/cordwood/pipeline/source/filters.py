"""Pushed-down filters → which partitions, from which offset, from which time.

What offset, partition and topic filters say is carried out exactly, and Spark need not look again.
A lower bound on the timestamp moves the start to the first record at or after it (everything
before is older); Spark still checks each row, as later records may be older. Whatever else is
asked stays with Spark.

Pure: Spark's filter classes are told apart by name, so this room's tests need no Spark.
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
    """What the filters of one query leave to read; narrowed by each that can be carried out."""

    start: int = 0
    end: int = KEEP_ALL
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    since_ms: int | None = None

    def take(self, condition: Any) -> bool:
        """Narrow by the filter; True when Spark need not check it again."""
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
        """Whether any of the partition's records may pass."""
        if self.partitions is not None and tp.partition not in self.partitions:
            return False
        return self.topics is None or tp.topic in self.topics

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """What is left of the ranges; times are not looked up here."""
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
}  # filter → what to add to its value for an inclusive start and an exclusive end


def floor_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded down; a bare datetime is UTC, as the session is."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = aware - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def ceil_ms(moment: datetime) -> int:
    """As ``floor_ms``, rounded up: what is at or after the moment is at or after this."""
    return floor_ms(moment) + (moment.microsecond % 1000 > 0)
