"""The key layout and JSON format of the metadata.

Keys under ``now/`` are cached in memory; keys under ``past/`` are only looked up:

====================================================  =========================================
``now/topic/<topic>``                                 id, partitions, config overrides, creation
``now/deleting/<topic>``                              a deletion in progress
``now/start/<topic>/<partition>``                     log start offset
``now/epoch/<topic>/<partition>``                     current leader epoch
``now/recovery-point/<topic>/<partition>``            offsets below it are synced to the device
``now/segment/<topic>/<partition>/<base, 20 digits>`` segment index entry
``now/bundle/<topic>/<partition>/<start, 20 digits>`` archive bundle that starts at this offset
``now/swap/<topic>/<partition>``                      the swap in progress
``now/cleaner/<topic>/<partition>``                   state of compaction
``now/reader/<topic>/<reader>``                       registration time of a reader
``now/cursor/<topic>/<partition>/<reader>``           next offset of a reader
``now/config/<kind>/<name>``                          what was set at run time for a broker or group
``now/group/<group>``                                 protocol type of a consumer group
``now/consumer-group/<group>``                        JSON of a KIP-848 group: epochs and topics
``now/consumer-member/<group>/<member>``              JSON of its member: epoch and assignments
``now/cluster-id``                                    cluster id that Kafka clients see
``now/producer-ids``                                  the first producer id not reserved yet
``now/line-producer/<name>``                          producer id and epoch of a HELLO name
``now/transaction/<id>``                              JSON of the transaction coordinator
``now/route/<exact|prefix>/<key>``                    topic
``now/replay/<id>``                                   JSON of the replay
``now/sink/<query>``                                  the last batch a query delivered
``past/segment/<topic>/<partition>/<job>/<base>``     an entry that a swap replaced
``past/sink/<query>``                                 last batch of a query idle for long
====================================================  =========================================

Names are percent-encoded, so a reader's name may contain a slash. Pure: no store access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from cordwood.decide.compression import CompressionResult
from cordwood.errors import CorruptionError, OffsetOutOfRange
from cordwood.model import OFFSET_MAX, SegmentInfo, SegmentState, TopicPartition

NOW: Final = "now/"
CLUSTER_ID: Final = "now/cluster-id"
PRODUCER_IDS: Final = "now/producer-ids"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as stored: with its config overrides, not the inherited settings."""

    name: str
    id: str  # a UUID: a recreated topic has a new id
    partitions: int
    config: dict[str, str]
    created_ms: int

    def partition_list(self) -> list[TopicPartition]:
        """The topic's partitions in order."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's position: ``offset`` is the next one it will read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    commit_ms: int = 0

    def bounded(self) -> Cursor:
        """This cursor with its offset clamped to int64, the type of an offset in every protocol."""
        offset = max(-OFFSET_MAX - 1, min(self.offset, OFFSET_MAX))
        return self if offset == self.offset else replace(self, offset=offset)


class ReaderPartition(NamedTuple):
    """A reader on one partition: identifies a cursor."""

    reader: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer id and epoch of a HELLO name."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """When the scrub last read a segment, and the damage it found as (start, end, problem).

    ``accepted`` is the damage that an operator has accepted, as it was reported then.
    """

    at_ms: int
    damage: tuple[tuple[int, int, str], ...] = ()
    accepted: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """An entry of the segment index; it outlives the segment's file."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    first_ms: int
    newest_ms: int
    state: SegmentState
    sha256: str | None = None  # of the .log file; None until the file has been read
    scrub: ScrubResult | None = None  # None until the first scrub
    compression: CompressionResult | None = None  # None until the broker tried to compress it


def entry_of(info: SegmentInfo, sha256: str | None = None) -> SegmentEntry:
    """The index entry of a sealed segment."""
    return SegmentEntry(
        base_offset=info.base_offset,
        end_offset=info.end_offset,
        size_bytes=info.size_bytes,
        records=info.records,
        first_ms=info.first_ms,
        newest_ms=info.newest_ms,
        state=SegmentState.SEALED,
        sha256=sha256,
    )


def key(kind: str, *names: str | int) -> str:
    """``now/<kind>/<name>/…``, every name percent-encoded."""
    return "/".join([f"now/{kind}", *(quote(str(name), safe="") for name in names)])


def segment_key(tp: TopicPartition, base_offset: int) -> str:
    """The key of a segment; zero-padded, so keys sort in offset order."""
    return key("segment", tp.topic, tp.partition, f"{base_offset:020d}")


def bundle_key(tp: TopicPartition, start_offset: int) -> str:
    """The key of a bundle; zero-padded, so keys sort in offset order."""
    return key("bundle", tp.topic, tp.partition, f"{start_offset:020d}")


def cursor_key(where: ReaderPartition) -> str:
    """The key of a cursor; the topic comes first because cursors are deleted with it."""
    return key("cursor", where.topic, where.partition, where.reader)


def topic_prefixes(topic: str) -> list[str]:
    """The prefixes of everything that is deleted with a topic, besides the topic itself."""
    kinds = ("start", "epoch", "recovery-point", "segment", "bundle", "swap", "cleaner")
    owned = [key(kind, topic) + "/" for kind in (*kinds, "reader", "cursor")]
    return [*owned, f"past/segment/{quote(topic, safe='')}/"]


def past_segment_prefix(tp: TopicPartition) -> str:
    """The prefix of all entries of a partition that swaps replaced."""
    return f"past/segment/{quote(tp.topic, safe='')}/{tp.partition}/"


def past_segment_key(tp: TopicPartition, job: str, base_offset: int) -> str:
    """The key of an entry that the swap of ``job`` replaced."""
    return f"{past_segment_prefix(tp)}{quote(job, safe='')}/{base_offset:020d}"


def past_delivery_key(query: str) -> str:
    """The key of the last batch of a forgotten query."""
    return f"past/sink/{quote(query, safe='')}"


def parse_key(text: str) -> tuple[str, list[str]]:
    """The kind and names of a ``now/`` key; inverse of ``key``."""
    assert text.startswith(NOW), f"{text} is not a key of the current state"
    kind, *names = text.removeprefix(NOW).split("/")
    return kind, [unquote(name) for name in names]


def encode(value: object) -> bytes:
    """Encode as compact JSON; equal values give equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def decode(where: str, value: bytes) -> Any:
    """Decode the JSON at a key; raises ``CorruptionError`` naming the key."""
    try:
        return msgspec.json.decode(value)
    except ValueError as error:
        raise CorruptionError(f"metadata at {where} is not JSON: {error}") from None


def encode_topic(topic: Topic) -> bytes:
    """Encode a topic without its name, which is in the key."""
    fields = msgspec.to_builtins(topic)
    del fields["name"]
    return encode(fields)


def encode_cursors(cursors: Mapping[ReaderPartition, Cursor]) -> dict[str, bytes]:
    """The values to put for these cursors; raises ``OffsetOutOfRange`` beyond int64."""
    for at in cursors.values():
        if at != at.bounded():
            raise OffsetOutOfRange(f"{at.offset} is not an offset; the largest is {OFFSET_MAX}")
    return {cursor_key(where): encode(at) for where, at in cursors.items()}


# --- rows to put -----------------------------------------------------------------------------


def next_epochs(
    topic: Topic, start: int, current: Mapping[TopicPartition, int]
) -> dict[str, bytes]:
    """The next leader epoch of a topic's partitions from ``start`` on."""
    return {
        key("epoch", *tp): encode(current.get(tp, -1) + 1) for tp in topic.partition_list()[start:]
    }


def start_row(tp: TopicPartition, offset: int) -> dict[str, bytes]:
    """The log start of a partition, to put."""
    return {key("start", *tp): encode(offset)}


def segment_rows(tp: TopicPartition, entries: Iterable[SegmentEntry]) -> dict[str, bytes]:
    """Segment index entries, to put."""
    return {segment_key(tp, entry.base_offset): encode(entry) for entry in entries}
