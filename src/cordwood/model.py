"""Value types shared by all packages: frozen, without behaviour beyond reading their own fields.

``offset`` counts records and ``position`` counts bytes; ``start``/``end`` are half-open,
``first``/``last`` inclusive. The line protocol's ``seq`` is ``offset + 1``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

NO_PRODUCER = -1  # producer id, epoch and sequence of a batch without a producer id
NO_TIMESTAMP = -1
OFFSET_MAX = 2**63 - 1  # an int64 on the wire, in files and in kernels

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka's rule allows this topic name; the name becomes part of a directory name."""
    return bool(_TOPIC_NAME.fullmatch(name)) and name not in {".", ".."}


class TopicPartition(NamedTuple):
    """One partition of a topic; its text form is the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """The partition's directory name, ``<topic>-<partition>``."""
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
    """Who set a record's timestamp: the producer (CREATE) or the broker (APPEND)."""

    CREATE = 0
    APPEND = 1


class Codec(Enum):
    """How a batch's records are compressed; the value is the codec number in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Aborted(NamedTuple):
    """An aborted transaction, whose records ``read_committed`` readers must skip."""

    producer_id: int
    first_offset: int
    last_offset: int  # of its marker
    last_stable_offset: int = -1  # at the time it ended; -1 where nobody needs it


class SegmentState(StrEnum):
    """The life cycle state of a segment, as stored in the segment index."""

    ACTIVE = "active"
    SEALED = "sealed"
    RECLAIMED = "reclaimed"  # its records were deleted from this disk
    REPLACED = "replaced"  # a swap replaced it by another file


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """What policies need to know about one segment; an immutable copy that is safe to keep."""

    base_offset: int
    end_offset: int  # one past the last offset the segment covers, gaps included
    size_bytes: int
    records: int  # records stored: after compaction fewer than the offsets covered
    first_ms: int  # timestamp of the first batch; NO_TIMESTAMP when empty
    newest_ms: int  # largest timestamp; NO_TIMESTAMP when empty
    created_ms: int  # when the segment was opened for appends
    state: SegmentState
    # Of the active segment only:
    index_bytes: int = 0  # size of the larger of its two indexes
    spread: int = 0  # a number that differs between segments, for segment.jitter.ms
