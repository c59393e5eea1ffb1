"""The nouns every room shares: frozen values, no behaviour beyond reading themselves.

``offset`` counts records and ``position`` counts bytes; ``start``/``end`` are half-open,
``first``/``last`` inclusive. The line protocol's ``seq`` is ``offset + 1``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

NO_PRODUCER = -1  # producer id, epoch and sequence of a batch nobody numbered
NO_TIMESTAMP = -1
OFFSET_MAX = 2**63 - 1  # an int64 on the wire, in files and in kernels

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called this: Kafka's rule, as its name becomes a directory's."""
    return bool(_TOPIC_NAME.fullmatch(name)) and name not in {".", ".."}


class TopicPartition(NamedTuple):
    """One ordered part of a topic; also the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """As its directory is called."""
        return f"{self.topic}-{self.partition}"


class Header(NamedTuple):
    """A record header; the value may be null."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Record:
    """One message. A null value is a tombstone; empty bytes are a value."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class TimestampType(Enum):
    """Whose clock a record's timestamp is from."""

    CREATE = 0
    APPEND = 1


class Codec(Enum):
    """How a batch's records are compressed; the number is in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class SegmentState(StrEnum):
    """Where a segment is in its life, as the segment index remembers it."""

    ACTIVE = "active"
    SEALED = "sealed"
    RECLAIMED = "reclaimed"  # its records are gone from this disk
    REPLACED = "replaced"  # a swap put another file in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """What decisions need to know of one segment; a plain copy, safe to keep."""

    base_offset: int
    end_offset: int  # one past the last offset the segment covers, gaps included
    size_bytes: int
    records: int  # records really there: fewer than the span after compaction
    first_ms: int  # timestamp of the first batch; NO_TIMESTAMP when empty
    newest_ms: int  # largest timestamp; NO_TIMESTAMP when empty
    created_ms: int  # when the segment was opened for appends
    state: SegmentState
