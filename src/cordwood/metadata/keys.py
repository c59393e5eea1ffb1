"""Where metadata lies and how it is written: the one place for key layout and JSON.

``now/`` is the state that is mirrored in memory, ``past/`` what is only looked up:

====================================================  =========================================
``now/topic/<topic>``                                 id, partitions, config overrides, birth
``now/deleting/<topic>``                              a deletion begun: its partitions must go
``now/start/<topic>/<partition>``                     log start offset
``now/epoch/<topic>/<partition>``                     leader epoch of the current term
``now/recovery-point/<topic>/<partition>``            offsets below it are on the device
``now/segment/<topic>/<partition>/<base, 20 digits>`` segment index entry
``now/bundle/<topic>/<partition>/<start, 20 digits>`` archive bundle of offsets from there on
``now/swap/<topic>/<partition>``                      the job whose segments are being swapped in
``now/cleaner/<topic>/<partition>``                   how far compaction has come
``now/reader/<topic>/<reader>``                       a registered reader, and since when
``now/cursor/<topic>/<partition>/<reader>``           how far it has come
``now/group/<group>``                                 protocol type of a consumer group
``now/cluster-id``                                    what Kafka clients know this store by
``now/producer-ids``                                  the first producer id not yet handed out
``now/line-producer/<name>``                          producer id and epoch of a HELLO name
``now/transaction/<id>``                              the coordinator's own JSON
``now/route/<exact|prefix>/<key>``                    topic
``now/replay/<id>``                                   the replay's own JSON
``now/sink/<query>``                                  the last batch a Spark query delivered
``past/segment/<topic>/<partition>/<job>/<base>``     an entry that a swap replaced
``past/sink/<query>``                                 last batch of a query idle for long
====================================================  =========================================

Names are percent-encoded, so a slash in a reader's name stays in its place. Pure: no store here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from cordwood.errors import CorruptionError, OffsetOutOfRange
from cordwood.metadata.bundle_index import BundleEntry
from cordwood.model import OFFSET_MAX, SegmentInfo, SegmentState, TopicPartition

NOW: Final = "now/"
CLUSTER_ID: Final = "now/cluster-id"
PRODUCER_IDS: Final = "now/producer-ids"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as stored: what it overrides, not what it inherits."""

    name: str
    id: str  # a UUID: a recreated topic is another topic
    partitions: int
    config: dict[str, str]
    created_ms: int

    def partition_list(self) -> list[TopicPartition]:
        """Its partitions in order."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come: ``offset`` is the next it will read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    commit_ms: int = 0

    def bounded(self) -> Cursor:
        """The same, or the nearest that fits in the 64 bits every protocol has for an offset."""
        offset = max(-OFFSET_MAX - 1, min(self.offset, OFFSET_MAX))
        return self if offset == self.offset else replace(self, offset=offset)


class ReaderPartition(NamedTuple):
    """Whose cursor, and where."""

    reader: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LineProducer:
    """What a HELLO name stands for in batch headers."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """When a segment was last read through, and what was damaged in it: start, end, problem.

    ``accepted`` is the damage an operator has accepted, as it was told then.
    """

    at_ms: int
    damage: tuple[tuple[int, int, str], ...] = ()
    accepted: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """What the segment index remembers, also after the segment is gone."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    first_ms: int
    newest_ms: int
    state: SegmentState
    sha256: str | None = None  # of the .log file; None until it has been read through
    scrub: ScrubResult | None = None  # None until the scrub has come to it


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
    """Bases sort as numbers, so a range comes in offset order."""
    return key("segment", tp.topic, tp.partition, f"{base_offset:020d}")


def bundle_key(tp: TopicPartition, start_offset: int) -> str:
    """Starts sort as numbers, as segments' bases do."""
    return key("bundle", tp.topic, tp.partition, f"{start_offset:020d}")


def cursor_key(where: ReaderPartition) -> str:
    """Topic first: a topic's cursors go with the topic."""
    return key("cursor", where.topic, where.partition, where.reader)


def past_segment_prefix(tp: TopicPartition) -> str:
    """All entries of a partition that swaps replaced."""
    return f"past/segment/{quote(tp.topic, safe='')}/{tp.partition}/"


def past_segment_key(tp: TopicPartition, job: str, base_offset: int) -> str:
    """An entry that the swap of ``job`` replaced."""
    return f"{past_segment_prefix(tp)}{quote(job, safe='')}/{base_offset:020d}"


def past_delivery_key(query: str) -> str:
    """The last batch of a query that was forgotten."""
    return f"past/sink/{quote(query, safe='')}"


def parse_key(text: str) -> tuple[str, list[str]]:
    """The kind and the names of a ``now/`` key; inverse of ``key``."""
    assert text.startswith(NOW), f"{text} is not a key of the current state"
    kind, *names = text.removeprefix(NOW).split("/")
    return kind, [unquote(name) for name in names]


def encode(value: object) -> bytes:
    """One JSON text per value; the same value gives the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decode(where: str, value: bytes) -> Any:
    """The JSON at a key; raises ``CorruptionError`` naming the key."""
    try:
        return json.loads(value)
    except ValueError as error:
        raise CorruptionError(f"metadata at {where} is not JSON: {error}") from None


def encode_topic(topic: Topic) -> bytes:
    """The name is in the key."""
    return encode(
        {
            "id": topic.id,
            "partitions": topic.partitions,
            "config": topic.config,
            "created_ms": topic.created_ms,
        }
    )


def encode_fields(value: Cursor | LineProducer | SegmentEntry | BundleEntry) -> bytes:
    """A flat value as a JSON object of its fields."""
    return encode(asdict(value))


def encode_cursors(cursors: Mapping[ReaderPartition, Cursor]) -> dict[str, bytes]:
    """What to put for these cursors; raises ``OffsetOutOfRange`` for what is no 64-bit offset."""
    for at in cursors.values():
        if at != at.bounded():
            raise OffsetOutOfRange(f"{at.offset} is no offset; the largest is {OFFSET_MAX}")
    return {cursor_key(where): encode_fields(at) for where, at in cursors.items()}


def parse_topic(name: str, found: dict[str, Any]) -> Topic:
    """Inverse of ``encode_topic``."""
    return Topic(name, **found)


def parse_segment(found: dict[str, Any]) -> SegmentEntry:
    """Inverse of ``encode_fields`` for an index entry."""
    scrub = found.get("scrub")
    if scrub is not None:
        damage, accepted = (
            tuple((start, end, text) for start, end, text in scrub.get(name, ()))
            for name in ("damage", "accepted")
        )
        scrub = ScrubResult(scrub["at_ms"], damage, accepted)
    return SegmentEntry(**{**found, "state": SegmentState(found["state"]), "scrub": scrub})


# --- what to put -----------------------------------------------------------------------------


def next_epochs(
    topic: Topic, start: int, current: Mapping[TopicPartition, int]
) -> dict[str, bytes]:
    """The next leader epoch of a topic's partitions from ``start`` on."""
    return {
        key("epoch", *tp): encode(current.get(tp, -1) + 1) for tp in topic.partition_list()[start:]
    }


def start_row(tp: TopicPartition, offset: int) -> dict[str, bytes]:
    """The log start of a partition."""
    return {key("start", *tp): encode(offset)}


def segment_rows(tp: TopicPartition, entries: Iterable[SegmentEntry]) -> dict[str, bytes]:
    """Segment index entries."""
    return {segment_key(tp, entry.base_offset): encode_fields(entry) for entry in entries}


def in_state(entry: SegmentEntry, state: SegmentState) -> SegmentEntry:
    """The entry of a segment that something became of."""
    return replace(entry, state=state)


OF_TOPICS: Final = frozenset(
    {"topic", "start", "epoch", "recovery-point", "segment", "bundle", "swap", "cleaner"}
    | {"reader", "cursor"}
)
"""Kinds of keys whose first name is a topic's: they go with it."""
