"""The registry of deliveries: the last batch that each query delivered.

Active and recent queries are in the metadata cache, one value per query. A forgotten query that
delivers only once (a ``df.write``) leaves nothing behind. Any other leaves its last batch and topic
ids under ``past/``, which needs no memory and is read when an unknown query delivers. A query that
returns after years is therefore still not appended twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cordwood.decide.delivery import DeliveryRecord, encode_delivery, parse_delivery
from cordwood.errors import CorruptionError
from cordwood.metadata.keys import Cursor, ReaderPartition, decode, encode, key, past_delivery_key
from cordwood.metadata.store import MetadataStore


class Write(Protocol):
    """The catalog's method for every change."""

    def __call__(self, put: Mapping[str, bytes], gone: Sequence[str]) -> None:
        """Put and delete keys in one durable transaction."""
        ...


class EncodeCursors(Protocol):
    """Encodes cursors whose partitions exist, in topics with these ids."""

    def __call__(
        self, cursors: Mapping[ReaderPartition, Cursor], ids: Mapping[str, str], /
    ) -> dict[str, bytes]:
        """The keys and values to put."""
        ...


class DeliveryRegistry:
    """The delivery part of the catalog. Thread-safe."""

    def __init__(
        self,
        store: MetadataStore,
        writing: AbstractContextManager[Any],
        write: Write,
        mirrored: Callable[[], Mapping[str, Any]],
        encode_cursors: EncodeCursors,
    ) -> None:
        """Use the catalog's store and cache; ``writing`` is the catalog's lock."""
        self._store = store
        self._writing = writing
        self._write = write
        self._mirrored = mirrored
        self._encode_cursors = encode_cursors

    def __len__(self) -> int:
        """The number of queries in memory."""
        return len(self._mirrored())

    def recent(self) -> tuple[dict[str, DeliveryRecord], dict[str, CorruptionError]]:
        """The records of all queries in memory, and the errors of the unreadable ones."""
        found: dict[str, DeliveryRecord] = {}
        broken: dict[str, CorruptionError] = {}
        for query, value in list(self._mirrored().items()):
            try:
                found[query] = parse_delivery(query, value)
            except CorruptionError as error:
                broken[query] = error
        return found, broken

    def get(self, query: str) -> DeliveryRecord | None:
        """A query's record, or what is left of a forgotten one. May read from disk."""
        value = self._mirrored().get(query)
        if value is not None:
            return parse_delivery(query, value)
        where = past_delivery_key(query)
        for kv in self._store.range(where)[1]:
            if kv.key == where:
                found = decode(where, kv.value)
                return DeliveryRecord(batch=int(found["batch"]), topics=dict(found["topics"]))
        return None

    def put(
        self,
        query: str,
        record: DeliveryRecord,
        cursors: Mapping[ReaderPartition, Cursor] | None = None,
    ) -> None:
        """Store a query's record and move the given cursors in the same transaction.

        A cursor does not move if its topic was recreated since the record was made.
        """
        with self._writing:
            put = {key("sink", query): encode(encode_delivery(record))}
            gone = [] if query in self._mirrored() else [past_delivery_key(query)]
            self._write(put | self._encode_cursors(cursors or {}, record.topics), gone)

    def forget(self, queries: Iterable[str]) -> None:
        """Remove queries from memory; those that may return leave their last batch on disk."""
        with self._writing:
            records, _ = self.recent()
            gone = {query: records[query] for query in queries if query in records}
            past = {
                past_delivery_key(query): encode({"batch": each.batch, "topics": dict(each.topics)})
                for query, each in gone.items()
                if not each.is_once
            }
            self._write(past, [key("sink", query) for query in gone])

    def erase(self, query: str) -> None:
        """Forget a query completely, as if it had never delivered."""
        with self._writing:
            mirrored = [key("sink", query)] if query in self._mirrored() else []
            self._write({}, [*mirrored, past_delivery_key(query)])
