"""Typed access to the metadata: every change is one durable transaction, every read a lookup.

A change is atomic and on the device before the method returns; only then does the cache show it.
Reads never wait for the disk. The catalog never touches files: ``log.lifecycle.store`` decides the
order in which metadata and directories of a topic are created and deleted.
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from cordwood.decide.compaction import CleanerState, encode_state
from cordwood.decide.routing import Bindings
from cordwood.errors import (
    Indefinite,
    StaleProducer,
    TopicExists,
    UnavailableError,
    UnknownReader,
    UnknownTopic,
)
from cordwood.metadata.bundle_index import BundleEntry, BundleIndex
from cordwood.metadata.cache import MetadataCache
from cordwood.metadata.deliveries import DeliveryRegistry
from cordwood.metadata.keys import (
    CLUSTER_ID,
    NOW,
    PRODUCER_IDS,
    Cursor,
    LineProducer,
    ReaderPartition,
    SegmentEntry,
    Topic,
    bundle_key,
    cursor_key,
    decode,
    encode,
    encode_cursors,
    encode_fields,
    encode_topic,
    in_state,
    key,
    next_epochs,
    parse_segment,
    past_segment_key,
    past_segment_prefix,
    segment_key,
    segment_rows,
    start_row,
)
from cordwood.metadata.segment_index import SegmentIndex
from cordwood.metadata.store import MetadataStore
from cordwood.model import SegmentState, TopicPartition

PRODUCER_ID_BLOCK: Final = 1000  # ids reserved per transaction; a restart skips the unused ones
REPLACED_KEPT: Final = 1000  # replaced segments kept per partition, besides those of the last swap
PRODUCER_EPOCH_MAX: Final = 2**15 - 1  # int16 in every batch header


class Catalog:
    """The broker's metadata. Safe to call from any thread.

    The mappings it returns are live: look up freely, but copy a mapping before iterating over it
    while another thread may change it.
    """

    def __init__(self, store: MetadataStore) -> None:
        """Load the whole current state into memory; raises ``CorruptionError``."""
        self._store = store
        self._writing = threading.RLock()  # one change at a time, in the cache's order
        self._reserved_producer_ids = range(0)
        self._mirror = self._read()
        self.deliveries = DeliveryRegistry(
            store, self._writing, self._write, lambda: self._mirror.sinks, self._cursors_left
        )

    def cluster_id(self) -> str:
        """The cluster id that Kafka clients see, in Kafka's form; generated once and then fixed."""
        with self._writing:
            if not self._mirror.cluster_id:
                made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
                self._put({CLUSTER_ID: encode(made)})
            return self._mirror.cluster_id[""]

    # --- topics -----------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name."""
        return self._mirror.topics

    @property
    def deleting(self) -> Mapping[str, Topic]:
        """Topics that are being deleted and whose files may still exist."""
        return self._mirror.deleting

    def topic(self, name: str) -> Topic:
        """One topic; raises ``UnknownTopic``."""
        try:
            return self._mirror.topics[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name}; `cordwood topic list` has all") from None

    def create_topics(self, topics: Iterable[Topic]) -> None:
        """Store topics and the first leader epochs, all or none; raises ``TopicExists``."""
        with self._writing:
            put: dict[str, bytes] = {}
            for topic in topics:
                if topic.name in self.topics or topic.name in self.deleting:
                    raise TopicExists(f"topic {topic.name} exists already")
                put |= {key("topic", topic.name): encode_topic(topic), **next_epochs(topic, 0, {})}
            self._put(put)

    def alter_topic(self, topic: Topic) -> None:
        """Replace the topic that has the same name and id."""
        with self._writing:
            old = self.topic(topic.name)
            assert old.id == topic.id, "another topic of the same name"
            assert topic.partitions >= old.partitions, "partitions are never taken away"
            put = {key("topic", topic.name): encode_topic(topic)}
            self._put(put | next_epochs(topic, old.partitions, {}))

    def begin_delete(self, name: str) -> Topic:
        """Delete a topic's metadata, and record that its files must be deleted."""
        with self._writing:
            topic = self.topic(name)
            gone = sorted(self._mirror.keys_of_topics[name])
            for tp in topic.partition_list():
                gone += [kv.key for kv in self._store.range(past_segment_prefix(tp))[1]]
            self._write({key("deleting", name): encode_topic(topic)}, gone)
            return topic

    def finish_delete(self, name: str) -> None:
        """The files are deleted: the topic name is free again."""
        self._delete([key("deleting", name)])

    # --- partitions -------------------------------------------------------------------------

    def begin_terms(self) -> None:
        """Increment the leader epoch of every partition: no epoch survives a restart."""
        with self._writing:
            put: dict[str, bytes] = {}
            for topic in self.topics.values():
                put |= next_epochs(topic, 0, self._mirror.epochs)
            self._put(put)

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The current leader epoch."""
        return self._mirror.epochs[tp]

    def log_start(self, tp: TopicPartition) -> int:
        """The lowest offset that can be read."""
        return self._mirror.log_starts.get(tp, 0)

    def set_log_start(self, tp: TopicPartition, offset: int) -> None:
        """Move the log start forward; a lower offset is ignored."""
        with self._writing:
            if offset > self.log_start(tp):
                self._put(start_row(tp, offset))

    def recovery_point(self, tp: TopicPartition) -> int:
        """The offset below which everything was synced to the device; 0 if unknown."""
        return self._mirror.recovery_points.get(tp, 0)

    def put_recovery_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Store how far these partitions are synced, if they still exist."""
        with self._writing:
            live = {tp: at for tp, at in points.items() if tp in self._mirror.epochs}
            self._put({key("recovery-point", *tp): encode(at) for tp, at in live.items()})

    def accept_loss(
        self, tp: TopicPartition, log_start: int, end: int, gone: Iterable[SegmentEntry]
    ) -> None:
        """Remove lost segments; the log starts at ``log_start`` and continues at ``end``."""
        put = start_row(tp, log_start) | {key("recovery-point", *tp): encode(end)}
        self._write(put, [segment_key(tp, entry.base_offset) for entry in gone])

    # --- segment index ----------------------------------------------------------------------

    def segments(self, tp: TopicPartition) -> SegmentIndex:
        """The segment index of a partition, covering every offset below the active segment."""
        return self._mirror.segments[tp]

    def put_segments(self, tp: TopicPartition, entries: Iterable[SegmentEntry]) -> None:
        """Store the entries of sealed segments, new or updated."""
        with self._writing:
            self.topic(tp.topic)
            self._put(segment_rows(tp, entries))

    def reclaim_segments(
        self, tp: TopicPartition, entries: Iterable[SegmentEntry], log_start: int
    ) -> None:
        """Mark segments as reclaimed and move the log start, in one transaction."""
        with self._writing:
            self.topic(tp.topic)
            gone = [in_state(entry, SegmentState.RECLAIMED) for entry in entries]
            put = segment_rows(tp, gone)
            if log_start > self.log_start(tp):
                put |= start_row(tp, log_start)
            self._put(put)

    # --- archive ----------------------------------------------------------------------------

    def bundles(self, tp: TopicPartition) -> BundleIndex:
        """The archive bundles of a partition."""
        return self._mirror.bundles[tp]

    def put_bundles(self, tp: TopicPartition, entries: Iterable[BundleEntry]) -> None:
        """Store bundles that were verified by reading them back, all or none."""
        self._put({bundle_key(tp, e.start_offset): encode_fields(e) for e in entries})

    # --- swaps ------------------------------------------------------------------------------

    @property
    def swaps(self) -> Mapping[TopicPartition, Any]:
        """Swaps that began and have not finished, with the records given to ``begin_swap``."""
        return self._mirror.swaps

    def begin_swap(self, tp: TopicPartition, record: Any) -> None:
        """Record the swap about to start, so that a restart can tell whether it happened."""
        self._put({key("swap", *tp): encode(record)})

    def cancel_swap(self, tp: TopicPartition) -> None:
        """Drop the swap record; the files are unchanged."""
        self._delete([key("swap", *tp)])

    def finish_swap(
        self,
        tp: TopicPartition,
        job: str,
        old: Sequence[int],
        new: Sequence[SegmentEntry],
        cleaner: CleanerState | None = None,
    ) -> None:
        """Replace the index entries of a swap; the old entries become history.

        History is limited to this swap plus the newest ``REPLACED_KEPT`` entries of earlier swaps.
        ``cleaner`` is given with the last swap of a compaction pass and stores its progress.
        """
        with self._writing:
            replaced = [entry for base in old if (entry := self.segments(tp).get(base))]
            put = {
                past_segment_key(tp, job, entry.base_offset): encode_fields(
                    in_state(entry, SegmentState.REPLACED)
                )
                for entry in replaced
            }
            put |= segment_rows(tp, new)
            if cleaner is not None:
                put[key("cleaner", *tp)] = encode(encode_state(cleaner))
            gone = [segment_key(tp, entry.base_offset) for entry in replaced]
            gone = [*(text for text in gone if text not in put), *self._old_history(tp)]
            self._write(put, [*gone, key("swap", *tp)])

    def _old_history(self, tp: TopicPartition) -> list[str]:
        """Keys of the replaced entries beyond the newest ``REPLACED_KEPT``."""
        _, found = self._store.range(past_segment_prefix(tp))
        newest_first = sorted(found, key=lambda kv: kv.mod, reverse=True)
        return [kv.key for kv in newest_first[REPLACED_KEPT:]]

    def replaced_segments(self, tp: TopicPartition) -> list[tuple[str, SegmentEntry]]:
        """(key, entry) of the newest replaced segments, read from the store."""
        _, found = self._store.range(past_segment_prefix(tp))
        return [(kv.key, parse_segment(decode(kv.key, kv.value))) for kv in found]

    def cleaner(self, tp: TopicPartition) -> CleanerState:
        """The compaction state of a partition."""
        return self._mirror.cleaners.get(tp) or CleanerState()

    def put_cleaner(self, tp: TopicPartition, state: CleanerState) -> None:
        """Store the state after a pass that replaced nothing, or that failed."""
        with self._writing:
            self.topic(tp.topic)
            self._put({key("cleaner", *tp): encode(encode_state(state))})

    # --- readers and cursors ----------------------------------------------------------------

    def register_reader(self, topic: str, reader: str, now_ms: int) -> None:
        """Make RECLAIM wait for this reader where the policy includes ``consume``."""
        with self._writing:
            self.topic(topic)
            if reader not in self._mirror.registered[topic]:
                self._put({key("reader", topic, reader): encode(now_ms)})

    def unregister_reader(self, topic: str, reader: str) -> None:
        """Stop waiting for the reader; its cursors stay. Raises ``UnknownReader``."""
        with self._writing:
            if reader not in self.registered(topic):
                raise UnknownReader(f"no reader {reader} is registered on topic {topic}")
            self._delete([key("reader", topic, reader)])

    def registered(self, topic: str) -> Mapping[str, int]:
        """The registered readers of a topic, with their registration times in ms."""
        return self._mirror.registered.get(topic, {})

    def registered_positions(self, tp: TopicPartition) -> dict[str, int]:
        """Each registered reader's next offset; 0 if it never committed."""
        at = {
            reader: self.cursor(ReaderPartition(reader, *tp))
            for reader in self.registered(tp.topic)
        }
        return {reader: cursor.offset if cursor else 0 for reader, cursor in at.items()}

    def cursor(self, where: ReaderPartition) -> Cursor | None:
        """A reader's position on a partition; None if it never committed."""
        return self._mirror.cursors.get(where)

    def cursors(self) -> Mapping[ReaderPartition, Cursor]:
        """Every cursor."""
        return self._mirror.cursors

    def cursors_of(self, reader: str) -> list[ReaderPartition]:
        """The partitions where a reader has cursors, unordered."""
        return list(self._mirror.cursors_of.get(reader, ()))

    def has_cursors(self, reader: str) -> bool:
        """Whether the reader has any cursor."""
        return reader in self._mirror.cursors_of

    def readers_with_cursors(self) -> list[str]:
        """Every reader with a cursor, unordered."""
        return list(self._mirror.cursors_of)

    def commit_cursors(self, cursors: Mapping[ReaderPartition, Cursor]) -> None:
        """Commit all or none; raises ``UnknownTopic`` or ``OffsetOutOfRange``."""
        with self._writing:
            for where in cursors:
                if where.partition not in range(self.topic(where.topic).partitions):
                    raise UnknownTopic(f"topic {where.topic} has no partition {where.partition}")
            self._put(encode_cursors(cursors))

    def delete_cursors(self, gone: Iterable[ReaderPartition]) -> None:
        """Delete cursors in one transaction; missing ones are no error."""
        self._delete([cursor_key(where) for where in gone])

    def release_cursors(self, reader: str, gone: Iterable[TopicPartition]) -> None:
        """Delete cursors, and unregister the reader from topics where it has none left."""
        with self._writing:
            partitions = set(gone)
            left = {where.topic for where in self.cursors_of(reader) if where[1:] not in partitions}
            released = {
                key("reader", tp.topic, reader)
                for tp in partitions
                if tp.topic not in left and reader in self.registered(tp.topic)
            }
            cursors = {cursor_key(ReaderPartition(reader, *tp)) for tp in partitions}
            self._delete(sorted(cursors | released))

    # --- consumer groups --------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, str]:
        """Consumer groups that had members, with their protocol types."""
        return self._mirror.groups

    def put_group(self, group: str, protocol_type: str) -> None:
        """Store that a group exists."""
        self._put({key("group", group): encode(protocol_type)})

    def forget_group(self, group: str) -> None:
        """Remove a group; cursors under its name stay."""
        self._delete([key("group", group)])

    def erase_group(self, group: str) -> None:
        """Remove a group with its cursors and registrations, in one transaction."""
        with self._writing:
            cursors = [cursor_key(at) for at in sorted(self.cursors_of(group))]
            registered = [
                key("reader", topic, group)
                for topic, readers in self._mirror.registered.items()
                if group in readers
            ]
            self._delete([*cursors, *registered, key("group", group)])

    # --- producers --------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        """A new unique id; ids are reserved in blocks, so few calls touch the disk."""
        with self._writing:
            if not self._reserved_producer_ids:
                start = self._mirror.next_producer_id.get("", 0)
                self._put({PRODUCER_IDS: encode(start + PRODUCER_ID_BLOCK)})
                self._reserved_producer_ids = range(start, start + PRODUCER_ID_BLOCK)
            producer_id = self._reserved_producer_ids[0]
            self._reserved_producer_ids = self._reserved_producer_ids[1:]
            return producer_id

    def line_producer(self, name: str, epoch: int | None = None) -> LineProducer:
        """The producer of a HELLO name; a higher epoch takes over, a lower one is refused."""
        with self._writing:
            known = self._mirror.line_producers.get(name)
            if known and epoch in {None, known.epoch}:
                return known
            if known and epoch is not None and epoch < known.epoch:
                raise StaleProducer(
                    f"producer {name} is at epoch {known.epoch}, {epoch} has been replaced; "
                    "reconnect with a higher epoch"
                )
            assert epoch is None or 0 <= epoch <= PRODUCER_EPOCH_MAX, "checked by the listener"
            producer_id = known.producer_id if known else self.new_producer_id()
            claimed = LineProducer(producer_id, epoch or 0)
            self._put({key("line-producer", name): encode_fields(claimed)})
            return claimed

    @property
    def transactions(self) -> Mapping[str, Any]:
        """The coordinator's records by transactional id."""
        return self._mirror.transactions

    def put_transaction(
        self,
        transactional_id: str,
        record: Any,
        cursors: Mapping[ReaderPartition, Cursor] | None = None,
    ) -> None:
        """Store the coordinator's record and move the committed cursors in one transaction."""
        with self._writing:
            put = {key("transaction", transactional_id): encode(record)}
            self._put(put | self._cursors_left(cursors or {}))

    def _cursors_left(
        self,
        cursors: Mapping[ReaderPartition, Cursor],
        ids: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, bytes]:
        """The values to put for cursors whose partitions exist, in topics with these ids."""
        left = {
            where: at.bounded()  # accepted earlier, so it must not be refused now
            for where, at in cursors.items()
            if (topic := self.topics.get(where.topic))
            and where.partition < topic.partitions
            and ids.get(topic.name, topic.id) == topic.id
        }
        return encode_cursors(left)

    def delete_transaction(self, transactional_id: str) -> None:
        """Forget a transactional id."""
        self._delete([key("transaction", transactional_id)])

    # --- routes and replays -----------------------------------------------------------------

    def bindings(self, source: str | None = None) -> Bindings:
        """All bindings, as ``decide.routing.route`` takes them."""
        routes = dict(self._mirror.routes)
        return Bindings(
            exact={name: topic for (kind, name), topic in routes.items() if kind == "exact"},
            prefix={name: topic for (kind, name), topic in routes.items() if kind == "prefix"},
            source=source,
        )

    def put_route(self, kind: str, name: str, topic: str) -> None:
        """Bind an exact routing key, or a prefix up to the first dot, to a topic."""
        assert kind in {"exact", "prefix"}, kind
        self._put({key("route", kind, name): encode(topic)})

    def delete_route(self, kind: str, name: str) -> None:
        """Remove a binding; no error if it is missing."""
        self._delete([key("route", kind, name)])

    @property
    def replays(self) -> Mapping[str, Any]:
        """The record of every replay by id."""
        return self._mirror.replays

    def put_replay(self, replay_id: str, record: Any) -> None:
        """Store the progress of a replay."""
        self._put({key("replay", replay_id): encode(record)})

    # --- writing ----------------------------------------------------------------------------

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    def _put(self, put: Mapping[str, bytes]) -> None:
        self._write(put, [])

    def _delete(self, gone: Sequence[str]) -> None:
        self._write({}, gone)

    def _write(self, put: Mapping[str, bytes], gone: Sequence[str]) -> None:
        """Run one transaction, conditional on the cached revisions, then update the cache."""
        if not put and not gone:
            return
        with self._writing:
            mirrored = [text for text in [*put, *gone] if text.startswith(NOW)]
            expect = {text: self._mirror.mods.get(text, 0) for text in mirrored}
            try:
                held, revision = self._store.txn(expect=expect, put=put, delete=gone)
            except Indefinite:
                self._mirror = self._read()
                raise
            if not held:
                self._mirror = self._read()
                raise UnavailableError(
                    "the metadata changed underneath; nothing written, try again"
                )
            for text in mirrored:
                if text in put:
                    self._mirror.put(text, put[text], revision)
                else:
                    self._mirror.delete(text)

    def _read(self) -> MetadataCache:
        mirror = MetadataCache()
        for kv in self._store.range(NOW)[1]:
            mirror.put(kv.key, kv.value, kv.mod)
        return mirror
