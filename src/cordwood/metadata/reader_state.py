"""Reader state: what readers, consumer groups, producers and jobs have done so far.

Cursors, registrations, groups, producer ids, transactions, deliveries and replays. They change
often, some with every request, and belong to the node that leads the partitions concerned; what
every node must know is in ``cluster_catalog``. Every change is one durable transaction, every read
a lookup in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from cordwood.errors import StaleProducer, UnknownReader, UnknownTopic
from cordwood.metadata.cached_store import CachedStore
from cordwood.metadata.cluster_catalog import ClusterCatalog
from cordwood.metadata.deliveries import DeliveryRegistry
from cordwood.metadata.keys import (
    PRODUCER_IDS,
    Cursor,
    ProducerIdentity,
    ReaderPartition,
    cursor_key,
    encode,
    encode_cursors,
    key,
)
from cordwood.metadata.tables import Table, cursor_of, decoder, first, only, rows_of
from cordwood.model import TopicPartition

PRODUCER_ID_BLOCK: Final = 1000  # ids reserved per transaction; a restart skips the unused ones
PRODUCER_EPOCH_MAX: Final = 2**15 - 1  # int16 in every batch header
_decode_cursor = decoder(Cursor)
_decode_time = decoder(int)
_decode_any = decoder(Any)


class ReaderTables:
    """The reader state in memory."""

    def __init__(self) -> None:
        """Start empty, like a new data directory."""
        self.registered: defaultdict[str, dict[str, int]] = defaultdict(dict)  # topic → reader
        self.cursors: dict[ReaderPartition, Cursor] = {}
        self.cursors_of: dict[str, set[ReaderPartition]] = {}  # reader → where it has cursors
        self.groups: dict[str, str] = {}  # consumer group → protocol type
        self.consumer_groups: dict[str, Any] = {}  # those of KIP-848
        self.consumer_members: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.next_producer_id: dict[str, int] = {}  # one row
        self.line_producers: dict[str, ProducerIdentity] = {}
        self.transactions: dict[str, Any] = {}
        self.replays: dict[str, Any] = {}
        self.deliveries: dict[str, Any] = {}
        self.by_kind = {
            "reader": Table(
                self._put_reader, lambda names: self.registered[names[0]].pop(names[1])
            ),
            "cursor": Table(self._put_cursor, self._delete_cursor),
            "group": rows_of(self.groups, first, decoder(str)),
            "consumer-group": rows_of(self.consumer_groups, first, decoder(Any)),
            "consumer-member": Table(
                self._put_consumer_member,
                lambda names: self.consumer_members[names[0]].pop(names[1]),
            ),
            "producer-ids": rows_of(self.next_producer_id, only, decoder(int)),
            "line-producer": rows_of(self.line_producers, first, decoder(ProducerIdentity)),
            "transaction": rows_of(self.transactions, first, decoder(Any)),
            "replay": rows_of(self.replays, first, decoder(Any)),
            "sink": rows_of(self.deliveries, first, decoder(Any)),
        }

    def _put_reader(self, names: list[str], value: bytes) -> None:
        self.registered[names[0]][names[1]] = _decode_time(value)

    def _put_consumer_member(self, names: list[str], value: bytes) -> None:
        self.consumer_members[names[0]][names[1]] = _decode_any(value)

    def _put_cursor(self, names: list[str], value: bytes) -> None:
        where = cursor_of(names)
        self.cursors[where] = _decode_cursor(value).bounded()
        self.cursors_of.setdefault(where.reader, set()).add(where)

    def _delete_cursor(self, names: list[str]) -> None:
        where = cursor_of(names)
        del self.cursors[where]
        partitions = self.cursors_of[where.reader]
        partitions.discard(where)
        if not partitions:
            del self.cursors_of[where.reader]


class ReaderState:
    """The reader state. Safe to call from any thread; its mappings are live."""

    def __init__(self, store: CachedStore, tables: ReaderTables, cluster: ClusterCatalog) -> None:
        """Read from the tables, which ``store`` keeps up to date; ``cluster`` knows the topics."""
        self._store = store
        self._tables = tables
        self._cluster = cluster
        self._reserved_producer_ids = range(0)
        self.deliveries = DeliveryRegistry(store, tables.deliveries, self._cursors_left)

    # --- readers and cursors ---------------------------------------------------------------------

    def register_reader(self, topic: str, reader: str, now_ms: int) -> None:
        """Make RECLAIM wait for this reader where the policy includes ``consume``."""
        with self._store.writing:
            self._cluster.topic(topic)
            if reader not in self._tables.registered[topic]:
                self._store.put({key("reader", topic, reader): encode(now_ms)})

    def unregister_reader(self, topic: str, reader: str) -> None:
        """Stop waiting for the reader; its cursors stay. Raises ``UnknownReader``."""
        with self._store.writing:
            if reader not in self.registered(topic):
                raise UnknownReader(f"no reader {reader} is registered on topic {topic}")
            self._store.delete(key("reader", topic, reader))

    def registered(self, topic: str) -> Mapping[str, int]:
        """The registered readers of a topic, with their registration times in ms."""
        return self._tables.registered.get(topic, {})

    def registered_positions(self, tp: TopicPartition) -> dict[str, int]:
        """Each registered reader's next offset; 0 if it never committed."""
        at = {
            reader: self.cursor(ReaderPartition(reader, *tp))
            for reader in self.registered(tp.topic)
        }
        return {reader: cursor.offset if cursor else 0 for reader, cursor in at.items()}

    def cursor(self, where: ReaderPartition) -> Cursor | None:
        """A reader's position on a partition; None if it never committed."""
        return self._tables.cursors.get(where)

    def cursors(self) -> Mapping[ReaderPartition, Cursor]:
        """Every cursor."""
        return self._tables.cursors

    def cursors_of(self, reader: str) -> list[ReaderPartition]:
        """The partitions where a reader has cursors, unordered."""
        return list(self._tables.cursors_of.get(reader, ()))

    def has_cursors(self, reader: str) -> bool:
        """Whether the reader has any cursor."""
        return reader in self._tables.cursors_of

    def readers_with_cursors(self) -> list[str]:
        """Every reader with a cursor, unordered."""
        return list(self._tables.cursors_of)

    def commit_cursors(self, cursors: Mapping[ReaderPartition, Cursor]) -> None:
        """Commit all or none; raises ``UnknownTopic`` or ``OffsetOutOfRange``."""
        with self._store.writing:
            for where in cursors:
                if where.partition not in range(self._cluster.topic(where.topic).partitions):
                    raise UnknownTopic(f"topic {where.topic} has no partition {where.partition}")
            self._store.put(encode_cursors(cursors))

    def delete_cursors(self, gone: Iterable[ReaderPartition]) -> None:
        """Delete cursors in one transaction; missing ones are no error."""
        self._store.delete(*(cursor_key(where) for where in gone))

    def release_cursors(self, reader: str, gone: Iterable[TopicPartition]) -> None:
        """Delete cursors, and unregister the reader from topics where it has none left."""
        with self._store.writing:
            partitions = set(gone)
            left = {where.topic for where in self.cursors_of(reader) if where[1:] not in partitions}
            released = {
                key("reader", tp.topic, reader)
                for tp in partitions
                if tp.topic not in left and reader in self.registered(tp.topic)
            }
            cursors = {cursor_key(ReaderPartition(reader, *tp)) for tp in partitions}
            self._store.delete(*sorted(cursors | released))

    # --- consumer groups -------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, str]:
        """Consumer groups that had members, with their protocol types."""
        return self._tables.groups

    def put_group(self, group: str, protocol_type: str) -> None:
        """Store that a group exists."""
        self._store.put({key("group", group): encode(protocol_type)})

    def consumer_group(self, group: str) -> tuple[Any, dict[str, Any]]:
        """The records of a KIP-848 group and of its members; None for a group of another type."""
        members = self._tables.consumer_members.get(group, {})
        return self._tables.consumer_groups.get(group), dict(members)

    def put_consumer_group(self, group: str, record: Any, members: Mapping[str, Any]) -> None:
        """Store the records of a group and of some members in one transaction; None deletes one."""
        with self._store.writing:
            put = {key("consumer-group", group): encode(record)}
            if group not in self.groups:
                put[key("group", group)] = encode("consumer")
            kept = {name: values for name, values in members.items() if values is not None}
            put |= {key("consumer-member", group, name): encode(kept[name]) for name in kept}
            stored = self._tables.consumer_members.get(group, {})
            gone = [name for name in members if name not in kept and name in stored]
            self._store.write(put, [key("consumer-member", group, name) for name in gone])

    def erase_consumer_group(self, group: str) -> None:
        """Remove the records of a KIP-848 group: it is a classic one from now on."""
        with self._store.writing:
            self._store.delete(*self._consumer_keys(group))

    def _consumer_keys(self, group: str) -> list[str]:
        if group not in self._tables.consumer_groups:
            return []
        members = self._tables.consumer_members.get(group, {})
        names = [key("consumer-member", group, name) for name in members]
        return [*names, key("consumer-group", group)]

    def forget_group(self, group: str) -> None:
        """Remove a group; cursors under its name stay."""
        with self._store.writing:
            self._store.delete(key("group", group), *self._consumer_keys(group))

    def erase_group(self, group: str) -> None:
        """Remove a group with its cursors and registrations, in one transaction."""
        with self._store.writing:
            cursors = [cursor_key(at) for at in sorted(self.cursors_of(group))]
            registered = [
                key("reader", topic, group)
                for topic, readers in self._tables.registered.items()
                if group in readers
            ]
            state = [key("group", group), *self._consumer_keys(group)]
            self._store.delete(*cursors, *registered, *state)

    # --- producers -------------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        """A new unique id; ids are reserved in blocks, so few calls touch the disk."""
        with self._store.writing:
            if not self._reserved_producer_ids:
                start = self._tables.next_producer_id.get("", 0)
                self._store.put({PRODUCER_IDS: encode(start + PRODUCER_ID_BLOCK)})
                self._reserved_producer_ids = range(start, start + PRODUCER_ID_BLOCK)
            producer_id = self._reserved_producer_ids[0]
            self._reserved_producer_ids = self._reserved_producer_ids[1:]
            return producer_id

    def line_producer(self, name: str, epoch: int | None = None) -> ProducerIdentity:
        """The producer of a HELLO name; a higher epoch takes over, a lower one is refused."""
        with self._store.writing:
            known = self._tables.line_producers.get(name)
            if known and epoch in {None, known.epoch}:
                return known
            if known and epoch is not None and epoch < known.epoch:
                raise StaleProducer(
                    f"producer {name} is now at epoch {known.epoch}, so epoch {epoch} is fenced; "
                    "reconnect with a higher epoch"
                )
            assert epoch is None or 0 <= epoch <= PRODUCER_EPOCH_MAX, "checked by the listener"
            producer_id = known.producer_id if known else self.new_producer_id()
            claimed = ProducerIdentity(producer_id, epoch or 0)
            self._store.put({key("line-producer", name): encode(claimed)})
            return claimed

    @property
    def transactions(self) -> Mapping[str, Any]:
        """The coordinator's records by transactional id."""
        return self._tables.transactions

    def put_transaction(
        self,
        transactional_id: str,
        record: Any,
        cursors: Mapping[ReaderPartition, Cursor] | None = None,
    ) -> None:
        """Store the coordinator's record and move the committed cursors in one transaction."""
        with self._store.writing:
            put = {key("transaction", transactional_id): encode(record)}
            self._store.put(put | self._cursors_left(cursors or {}))

    def _cursors_left(
        self,
        cursors: Mapping[ReaderPartition, Cursor],
        ids: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, bytes]:
        """The values to put for cursors whose partitions exist, in topics with these ids."""
        left = {
            where: at.bounded()  # accepted earlier, so it must not be refused now
            for where, at in cursors.items()
            if (topic := self._cluster.topics.get(where.topic))
            and where.partition < topic.partitions
            and ids.get(topic.name, topic.id) == topic.id
        }
        return encode_cursors(left)

    def delete_transaction(self, transactional_id: str) -> None:
        """Forget a transactional id."""
        self._store.delete(key("transaction", transactional_id))

    # --- replays ---------------------------------------------------------------------------------

    @property
    def replays(self) -> Mapping[str, Any]:
        """The record of every replay by id."""
        return self._tables.replays

    def put_replay(self, replay_id: str, record: Any) -> None:
        """Store the progress of a replay."""
        self._store.put({key("replay", replay_id): encode(record)})
