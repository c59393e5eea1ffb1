"""File names and the small text files of a partition directory. Pure: no file is touched.

    <topic>-<partition>/
      00000000000000000000.log         record batches and nothing else; the name is the base offset
      00000000000000000000.index       sparse offset index         (``index``)
      00000000000000000000.timeindex   sparse time index           (``index``)
      00000000000000000000.txnindex    aborted transactions, if any (``producers``)
      00000000000000004711.snapshot    producer state at that offset (``producers``)
      leader-epoch-checkpoint          the first offset of each leader epoch (``epochs``)
      partition.metadata               the topic's id
      segment-facts-checkpoint         stats of each segment (``segment_stats``)

All but the last are Kafka's; Kafka ignores unknown files. A suffix after the kind marks a file that
is not live: ``.cleaned`` and ``.swap`` (an incoming replacement), ``.deleted`` (to be removed),
``.tmp`` (being written), ``.torn-<ms>`` (a torn tail, copied before it was truncated).
"""

from __future__ import annotations

import base64
import re
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from cordwood.errors import CorruptionError, UnknownFormat
from cordwood.model import TopicPartition, is_topic_name

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
SEGMENT_FACTS: Final = "segment-facts-checkpoint"

DELETED: Final = ".deleted"
SWAP: Final = ".swap"
CLEANED: Final = ".cleaned"
TMP: Final = ".tmp"
TORN: Final = ".torn-"


class FileKind(StrEnum):
    """The kinds of segment files; the value is the suffix."""

    LOG = ".log"
    INDEX = ".index"
    TIMEINDEX = ".timeindex"
    TXNINDEX = ".txnindex"
    SNAPSHOT = ".snapshot"


SEGMENT_KINDS: Final = (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX, FileKind.TXNINDEX)

_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)(\.[a-z]+(?:-\d+)?)")
_KINDS = {kind.value: kind for kind in FileKind}


class SegmentFile(NamedTuple):
    """A parsed file name; ``suffix`` is empty for a live file."""

    base_offset: int
    kind: FileKind
    suffix: str


def file_name(base_offset: int, kind: FileKind, suffix: str = "") -> str:
    """The name of a segment's file."""
    assert base_offset >= 0
    return f"{base_offset:020d}{kind.value}{suffix}"


def file_path(directory: Path, base_offset: int, kind: FileKind, suffix: str = "") -> Path:
    """The path of a segment's file."""
    return directory / file_name(base_offset, kind, suffix)


def parse_file_name(name: str) -> SegmentFile | None:
    """Parse the name of a segment file; None if it is not one."""
    digits, kind = name[:20], _KINDS.get(name[20:])
    if kind is not None and len(digits) == 20 and digits.isascii() and digits.isdigit():
        return SegmentFile(int(digits), kind, "")  # a live file: the usual case
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or match[2] not in _KINDS:
        return None
    return SegmentFile(int(match[1]), _KINDS[match[2]], match[3])


def torn_suffix(now_ms: int) -> str:
    """The suffix of the copy of a torn tail."""
    return f"{TORN}{now_ms}"


# --- partition.metadata ----------------------------------------------------------------------


def encode_metadata(topic_id: UUID) -> bytes:
    """The text of the file, with the id in URL-safe base64 without padding, as in Kafka."""
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"version: 0\ntopic_id: {text}".encode()


def parse_metadata(text: bytes) -> UUID:
    """The topic's id; raises ``CorruptionError`` if the text is invalid."""
    match = re.fullmatch(rb"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n?", text)
    if match is None:
        raise CorruptionError(f"{PARTITION_METADATA} has no topic id: {text[:80]!r}")
    return UUID(bytes=base64.urlsafe_b64decode(match[1] + b"=="))


# --- the data directory ----------------------------------------------------------------------

FORMAT: Final = "format-version"  # version of everything beside and below it, in digits
FORMAT_VERSION: Final = 1
LOCK: Final = "lock"  # held (flock, exclusive) by the process that may write


def encode_format() -> bytes:
    """The text of the format file."""
    return f"{FORMAT_VERSION}\n".encode()


def check_format(text: bytes, where: Path) -> None:
    """Refuse a directory that another version wrote; raises ``UnknownFormat``."""
    version = text.strip().decode("ascii", "replace")
    if version != str(FORMAT_VERSION):
        raise UnknownFormat(
            f"{where} has format {version[:20]!r}, but this cordwood reads {FORMAT_VERSION}; use "
            "the cordwood release that wrote it, or a newer one"
        )


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory holds; None if the name is not a partition's."""
    topic, _, number = name.rpartition("-")
    if not is_topic_name(topic) or not number.isdecimal() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number))
