"""Cluster facts: topics and settings, segments, bundles, leader epochs, bindings, cluster id.

Every change is one durable transaction, every read a lookup in memory. These facts are few and
change rarely; every node of a cluster needs them. How far readers and producers are is
``reader_state``. Nothing here touches files: ``log.lifecycle`` decides the order in which the
metadata and the directories of a topic are created and deleted.
"""

from __future__ import annotations

import base64
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from cordwood.decide.compaction import CleanerState, encode_state, parse_state
from cordwood.decide.routing import Bindings
from cordwood.errors import TopicExists, UnknownTopic
from cordwood.metadata.bundle_index import BundleEntry, BundleIndex, decode_bundle
from cordwood.metadata.cached_store import CachedStore
from cordwood.metadata.keys import (
    CLUSTER_ID,
    SegmentEntry,
    Topic,
    bundle_key,
    decode,
    encode,
    encode_topic,
    key,
    next_epochs,
    past_segment_key,
    past_segment_prefix,
    segment_key,
    segment_rows,
    start_row,
)
from cordwood.metadata.offset_index import OffsetIndex
from cordwood.metadata.tables import decoder, only, partition_of, ranges_of, rows_of, topics_of
from cordwood.model import SegmentState, TopicPartition

REPLACED_KEPT: Final = 1000  # replaced segments kept per partition, besides those of the last swap

SegmentIndex = OffsetIndex[SegmentEntry]


class ClusterTables:
    """The cluster facts in memory."""

    def __init__(self) -> None:
        """Start empty, like a new data directory."""
        self.topics: dict[str, Topic] = {}
        self.deleting: dict[str, Topic] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.recovery_points: dict[TopicPartition, int] = {}
        self.segments: defaultdict[TopicPartition, SegmentIndex] = defaultdict(OffsetIndex)
        self.bundles: defaultdict[TopicPartition, BundleIndex] = defaultdict(BundleIndex)
        self.swaps: dict[TopicPartition, Any] = {}
        self.cleaners: dict[TopicPartition, CleanerState] = {}
        self.cluster_id: dict[str, str] = {}  # one row
        self.configs: dict[tuple[str, ...], dict[str, str]] = {}  # (kind, name) → settings
        self.routes: dict[tuple[str, ...], str] = {}  # (exact or prefix, key) → topic
        self.by_kind = {
            "topic": topics_of(self.topics),
            "deleting": topics_of(self.deleting),
            "start": rows_of(self.log_starts, partition_of, decoder(int)),
            "epoch": rows_of(self.epochs, partition_of, decoder(int)),
            "recovery-point": rows_of(self.recovery_points, partition_of, decoder(int)),
            "segment": ranges_of(self.segments, decoder(SegmentEntry)),
            "bundle": ranges_of(self.bundles, decode_bundle),
            "swap": rows_of(self.swaps, partition_of, decoder(Any)),
            "cleaner": rows_of(self.cleaners, partition_of, _decode_cleaner),
            "cluster-id": rows_of(self.cluster_id, only, decoder(str)),
            "config": rows_of(self.configs, tuple, decoder(dict[str, str])),
            "route": rows_of(self.routes, tuple, decoder(str)),
        }


class ClusterCatalog:
    """The cluster facts. Safe to call from any thread.

    The mappings it returns are live: look up freely, but copy a mapping before iterating over it
    while another thread may change it.
    """

    def __init__(self, store: CachedStore, tables: ClusterTables, replaced_kept: int) -> None:
        """Read from the tables, which ``store`` keeps up to date."""
        self._store = store
        self._tables = tables
        self._replaced_kept = replaced_kept

    def cluster_id(self) -> str:
        """The cluster id that Kafka clients see, in Kafka's form; generated once and then fixed."""
        with self._store.writing:
            if not self._tables.cluster_id:
                made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
                self._store.put({CLUSTER_ID: encode(made)})
            return self._tables.cluster_id[""]

    def revision(self) -> int:
        """The number of the last change of the metadata; reads the store."""
        return self._store.revision()

    # --- topics ----------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name."""
        return self._tables.topics

    @property
    def deleting(self) -> Mapping[str, Topic]:
        """Topics that are being deleted and whose files may still exist."""
        return self._tables.deleting

    def topic(self, name: str) -> Topic:
        """One topic; raises ``UnknownTopic``."""
        try:
            return self._tables.topics[name]
        except KeyError:
            raise UnknownTopic(
                f"there is no topic {name}; `cordwood topic list` shows all topics"
            ) from None

    def create_topics(self, topics: Iterable[Topic]) -> None:
        """Store topics and the first leader epochs, all or none; raises ``TopicExists``."""
        with self._store.writing:
            put: dict[str, bytes] = {}
            for topic in topics:
                if topic.name in self.topics or topic.name in self.deleting:
                    raise TopicExists(f"topic {topic.name} already exists")
                put |= {key("topic", topic.name): encode_topic(topic), **next_epochs(topic, 0, {})}
            self._store.put(put)

    def alter_topic(self, topic: Topic) -> None:
        """Replace the topic that has the same name and id."""
        with self._store.writing:
            old = self.topic(topic.name)
            assert old.id == topic.id, "another topic of the same name"
            assert topic.partitions >= old.partitions, "partitions are never taken away"
            put = {key("topic", topic.name): encode_topic(topic)}
            self._store.put(put | next_epochs(topic, old.partitions, {}))

    def finish_delete(self, name: str) -> None:
        """The files are deleted: the topic name is free again."""
        self._store.delete(key("deleting", name))

    # --- partitions ------------------------------------------------------------------------------

    def begin_terms(self) -> None:
        """Increment the leader epoch of every partition: no epoch survives a restart."""
        with self._store.writing:
            put: dict[str, bytes] = {}
            for topic in self.topics.values():
                put |= next_epochs(topic, 0, self._tables.epochs)
            self._store.put(put)

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The current leader epoch."""
        return self._tables.epochs[tp]

    def log_start(self, tp: TopicPartition) -> int:
        """The lowest offset that can be read."""
        return self._tables.log_starts.get(tp, 0)

    def set_log_start(self, tp: TopicPartition, offset: int) -> None:
        """Move the log start forward; a lower offset is ignored."""
        with self._store.writing:
            if offset > self.log_start(tp):
                self._store.put(start_row(tp, offset))

    def recovery_point(self, tp: TopicPartition) -> int:
        """The offset below which everything was synced to the device; 0 if unknown."""
        return self._tables.recovery_points.get(tp, 0)

    def put_recovery_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Store how far these partitions are synced, if they still exist."""
        with self._store.writing:
            live = {tp: at for tp, at in points.items() if tp in self._tables.epochs}
            self._store.put({key("recovery-point", *tp): encode(at) for tp, at in live.items()})

    def accept_loss(
        self, tp: TopicPartition, log_start: int, end: int, gone: Iterable[SegmentEntry]
    ) -> None:
        """Remove lost segments; the log starts at ``log_start`` and continues at ``end``."""
        put = start_row(tp, log_start) | {key("recovery-point", *tp): encode(end)}
        self._store.write(put, [segment_key(tp, entry.base_offset) for entry in gone])

    # --- segment index ---------------------------------------------------------------------------

    def segments(self, tp: TopicPartition) -> SegmentIndex:
        """The segment index of a partition, covering every offset below the active segment."""
        return self._tables.segments[tp]

    def put_segments(self, tp: TopicPartition, entries: Iterable[SegmentEntry]) -> None:
        """Store the entries of sealed segments, new or updated."""
        with self._store.writing:
            self.topic(tp.topic)
            self._store.put(segment_rows(tp, entries))

    def reclaim_segments(
        self, tp: TopicPartition, entries: Iterable[SegmentEntry], log_start: int
    ) -> None:
        """Mark segments as reclaimed and move the log start, in one transaction."""
        with self._store.writing:
            self.topic(tp.topic)
            gone = [replace(entry, state=SegmentState.RECLAIMED) for entry in entries]
            put = segment_rows(tp, gone)
            if log_start > self.log_start(tp):
                put |= start_row(tp, log_start)
            self._store.put(put)

    # --- archive ---------------------------------------------------------------------------------

    def bundles(self, tp: TopicPartition) -> BundleIndex:
        """The archive bundles of a partition."""
        return self._tables.bundles[tp]

    def put_bundles(self, tp: TopicPartition, entries: Iterable[BundleEntry]) -> None:
        """Store bundles that were verified by reading them back, all or none."""
        self._store.put({bundle_key(tp, e.start_offset): encode(e) for e in entries})

    # --- swaps -----------------------------------------------------------------------------------

    @property
    def swaps(self) -> Mapping[TopicPartition, Any]:
        """Swaps that began and have not finished, with the records given to ``begin_swap``."""
        return self._tables.swaps

    def begin_swap(self, tp: TopicPartition, record: Any) -> None:
        """Record the swap about to start, so that a restart can tell whether it happened."""
        self._store.put({key("swap", *tp): encode(record)})

    def cancel_swap(self, tp: TopicPartition) -> None:
        """Drop the swap record; the files are unchanged."""
        self._store.delete(key("swap", *tp))

    def finish_swap(
        self,
        tp: TopicPartition,
        job: str,
        old: Sequence[int],
        new: Sequence[SegmentEntry],
        cleaner: CleanerState | None = None,
    ) -> None:
        """Replace the index entries of a swap; the old entries become history.

        History is limited to this swap plus the newest ``replaced_kept`` entries of earlier swaps.
        ``cleaner`` is given with the last swap of a compaction pass and stores its progress.
        """
        with self._store.writing:
            replaced = [entry for base in old if (entry := self.segments(tp).get(base))]
            put = segment_rows(tp, new)
            for entry in replaced:
                past = replace(entry, state=SegmentState.REPLACED)
                put[past_segment_key(tp, job, entry.base_offset)] = encode(past)
            if cleaner is not None:
                put[key("cleaner", *tp)] = encode(encode_state(cleaner))
            gone = [segment_key(tp, entry.base_offset) for entry in replaced]
            gone = [*(text for text in gone if text not in put), *self._old_history(tp)]
            self._store.write(put, [*gone, key("swap", *tp)])

    def _old_history(self, tp: TopicPartition) -> list[str]:
        """Keys of the replaced entries beyond the newest ``replaced_kept``."""
        history = self._store.range(past_segment_prefix(tp))
        newest_first = sorted(history, key=lambda kv: kv.mod, reverse=True)
        return [kv.key for kv in newest_first[self._replaced_kept :]]

    def replaced_segments(self, tp: TopicPartition) -> list[tuple[str, SegmentEntry]]:
        """(key, entry) of the newest replaced segments, read from the store."""
        history = self._store.range(past_segment_prefix(tp))
        return [(kv.key, msgspec.convert(decode(kv.key, kv.value), SegmentEntry)) for kv in history]

    def cleaner(self, tp: TopicPartition) -> CleanerState:
        """The compaction state of a partition."""
        return self._tables.cleaners.get(tp) or CleanerState()

    def put_cleaner(self, tp: TopicPartition, state: CleanerState) -> None:
        """Store the state after a pass that replaced nothing, or that failed."""
        with self._store.writing:
            self.topic(tp.topic)
            self._store.put({key("cleaner", *tp): encode(encode_state(state))})

    # --- settings of brokers and groups ----------------------------------------------------------

    def config(self, kind: str, name: str) -> Mapping[str, str]:
        """What was set at run time for one broker or group."""
        return self._tables.configs.get((kind, name), {})

    def configured(self, kind: str) -> list[str]:
        """The names of this kind for which something is set."""
        return sorted(name for of, name in list(self._tables.configs) if of == kind)

    def put_config(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        """Replace what is set at run time for one broker or group."""
        where = key("config", kind, name)
        if settings:
            self._store.put({where: encode(dict(settings))})
        else:
            self._store.delete(where)

    # --- bindings --------------------------------------------------------------------------------

    def bindings(self, source: str | None = None) -> Bindings:
        """All bindings, as ``decide.routing.route`` takes them."""
        routes = dict(self._tables.routes)
        return Bindings(
            exact={name: topic for (kind, name), topic in routes.items() if kind == "exact"},
            prefix={name: topic for (kind, name), topic in routes.items() if kind == "prefix"},
            source=source,
        )

    def put_route(self, kind: str, name: str, topic: str) -> None:
        """Bind an exact routing key, or a prefix up to the first dot, to a topic."""
        assert kind in {"exact", "prefix"}, kind
        self._store.put({key("route", kind, name): encode(topic)})

    def delete_route(self, kind: str, name: str) -> None:
        """Remove a binding; no error if it is missing."""
        self._store.delete(key("route", kind, name))


def _decode_cleaner(value: bytes) -> CleanerState:
    return parse_state(msgspec.json.decode(value))
