"""The current metadata in memory, updated key by key after the store confirms each change.

Reads are plain lookups from any thread and never wait for the store. Only ``catalog`` updates the
cache, and only with durable values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from cordwood.decide.compaction import CleanerState, parse_state
from cordwood.errors import CorruptionError
from cordwood.metadata.bundle_index import BundleIndex, parse_bundle
from cordwood.metadata.keys import (
    OF_TOPICS,
    Cursor,
    LineProducer,
    ReaderPartition,
    Topic,
    decode,
    parse_key,
    parse_segment,
    parse_topic,
)
from cordwood.metadata.segment_index import SegmentIndex
from cordwood.model import TopicPartition


class _Table(NamedTuple):
    """One kind of key: the dictionary for its values, and how to derive names and parse values."""

    rows: dict[Any, Any]
    name: Callable[[list[str]], Any]
    parse: Callable[[list[str], Any], Any]


class MetadataCache:
    """Typed dictionaries of everything under ``now/``."""

    def __init__(self) -> None:
        """Start empty, like a new data directory."""
        self.mods: dict[str, int] = {}
        self.keys_of_topics: dict[str, set[str]] = {}  # topic → all keys that belong to it
        self.cursors_of: dict[str, set[ReaderPartition]] = {}  # reader → where it has cursors
        self.topics: dict[str, Topic] = {}
        self.deleting: dict[str, Topic] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.recovery_points: dict[TopicPartition, int] = {}
        self.segments: defaultdict[TopicPartition, SegmentIndex] = defaultdict(SegmentIndex)
        self.bundles: defaultdict[TopicPartition, BundleIndex] = defaultdict(BundleIndex)
        self.swaps: dict[TopicPartition, Any] = {}
        self.cleaners: dict[TopicPartition, CleanerState] = {}
        self.registered: defaultdict[str, dict[str, int]] = defaultdict(dict)  # topic → reader
        self.cursors: dict[ReaderPartition, Cursor] = {}
        self.groups: dict[str, str] = {}  # consumer group → protocol type
        self.cluster_id: dict[str, str] = {}  # one row, named ""
        self.next_producer_id: dict[str, int] = {}  # one row, named ""
        self.line_producers: dict[str, LineProducer] = {}
        self.transactions: dict[str, Any] = {}
        self.routes: dict[tuple[str, str], str] = {}  # (exact or prefix, key) → topic
        self.replays: dict[str, Any] = {}
        self.sinks: dict[str, Any] = {}
        self._tables = {
            "topic": _Table(self.topics, _first, lambda names, found: parse_topic(names[0], found)),
            "deleting": _Table(
                self.deleting, _first, lambda names, found: parse_topic(names[0], found)
            ),
            "start": _Table(self.log_starts, _partition, lambda _, found: int(found)),
            "epoch": _Table(self.epochs, _partition, lambda _, found: int(found)),
            "recovery-point": _Table(self.recovery_points, _partition, lambda _, found: int(found)),
            "swap": _Table(self.swaps, _partition, lambda _, found: found),
            "cleaner": _Table(self.cleaners, _partition, lambda _, found: parse_state(found)),
            "cursor": _Table(self.cursors, _reader, lambda _, found: Cursor(**found).bounded()),
            "group": _Table(self.groups, _first, lambda _, found: str(found)),
            "cluster-id": _Table(self.cluster_id, _only, lambda _, found: str(found)),
            "producer-ids": _Table(self.next_producer_id, _only, lambda _, found: int(found)),
            "line-producer": _Table(
                self.line_producers, _first, lambda _, found: LineProducer(**found)
            ),
            "transaction": _Table(self.transactions, _first, lambda _, found: found),
            "route": _Table(self.routes, tuple, lambda _, found: str(found)),
            "replay": _Table(self.replays, _first, lambda _, found: found),
            "sink": _Table(self.sinks, _first, lambda _, found: found),
        }

    def put(self, key: str, value: bytes, mod: int) -> None:
        """Store the confirmed value of a key."""
        kind, names = parse_key(key)
        try:
            self._put(kind, names, decode(key, value))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptionError(
                f"metadata at {key} does not parse ({error!r}); restore meta.db from a backup"
            ) from None
        self.mods[key] = mod
        if kind in OF_TOPICS:
            self.keys_of_topics.setdefault(names[0], set()).add(key)
        if kind == "cursor":
            where = _reader(names)
            self.cursors_of.setdefault(where.reader, set()).add(where)

    def delete(self, key: str) -> None:
        """Remove a key that was deleted from the store."""
        if self.mods.pop(key, None) is None:
            return
        kind, names = parse_key(key)
        if kind == "segment":
            self.segments[_partition(names)].remove(int(names[2]))
        elif kind == "bundle":
            self.bundles[_partition(names)].remove(int(names[2]))
        elif kind == "reader":
            del self.registered[names[0]][names[1]]
        else:
            table = self._tables[kind]
            del table.rows[table.name(names)]
        if kind in OF_TOPICS:
            _discard(self.keys_of_topics, names[0], key)
        if kind == "cursor":
            _discard(self.cursors_of, names[2], _reader(names))

    def _put(self, kind: str, names: list[str], found: Any) -> None:
        if kind == "segment":
            self.segments[_partition(names)].put(parse_segment(found))
        elif kind == "bundle":
            self.bundles[_partition(names)].put(parse_bundle(found))
        elif kind == "reader":
            self.registered[names[0]][names[1]] = int(found)
        else:
            table = self._tables[kind]
            table.rows[table.name(names)] = table.parse(names, found)


def _discard(index: dict[str, set[Any]], name: str, member: object) -> None:
    """Remove a member from an index; drop the name with its last member."""
    members = index[name]
    members.discard(member)
    if not members:
        del index[name]


def _only(_: list[str]) -> str:
    return ""


def _first(names: list[str]) -> str:
    return names[0]


def _partition(names: list[str]) -> TopicPartition:
    return TopicPartition(names[0], int(names[1]))


def _reader(names: list[str]) -> ReaderPartition:
    topic, partition, reader = names
    return ReaderPartition(reader, topic, int(partition))
