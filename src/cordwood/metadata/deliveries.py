"""The registry of deliveries: what each query delivered last.

What is under way or recent is in the mirror, one value per query. A query that is forgotten leaves
nothing if it never comes back (a ``df.write``); any other leaves its last batch and the ids of its
topics under ``past/``, which costs no memory and is looked up when a query comes that is not known:
so one that comes back after years is still not appended twice.
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
    """The catalog's one way to change anything."""

    def __call__(self, put: Mapping[str, bytes], gone: Sequence[str]) -> None:
        """Put and delete keys, in one durable step."""
        ...


class EncodeCursors(Protocol):
    """What to put for cursors whose partitions exist, of topics with these ids."""

    def __call__(
        self, cursors: Mapping[ReaderPartition, Cursor], ids: Mapping[str, str], /
    ) -> dict[str, bytes]:
        """Keys and values."""
        ...


class DeliveryRegistry:
    """Part of the catalog; safe to call from any thread."""

    def __init__(
        self,
        store: MetadataStore,
        writing: AbstractContextManager[Any],
        write: Write,
        mirrored: Callable[[], Mapping[str, Any]],
        encode_cursors: EncodeCursors,
    ) -> None:
        """Over the catalog's store and mirror; ``writing`` is its lock."""
        self._store = store
        self._writing = writing
        self._write = write
        self._mirrored = mirrored
        self._encode_cursors = encode_cursors

    def __len__(self) -> int:
        """How many queries are in memory."""
        return len(self._mirrored())

    def recent(self) -> tuple[dict[str, DeliveryRecord], dict[str, CorruptionError]]:
        """Every query in memory, and those whose record cannot be read."""
        found: dict[str, DeliveryRecord] = {}
        broken: dict[str, CorruptionError] = {}
        for query, value in list(self._mirrored().items()):
            try:
                found[query] = parse_delivery(query, value)
            except CorruptionError as error:
                broken[query] = error
        return found, broken

    def get(self, query: str) -> DeliveryRecord | None:
        """A query's record; of one that was forgotten, its last batch and topics. May read disk."""
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
        """Store a query's record and, in the same step, move the cursors given.

        A cursor is left where it is if its topic is no longer the one the record was made for.
        """
        with self._writing:
            put = {key("sink", query): encode(encode_delivery(record))}
            gone = [] if query in self._mirrored() else [past_delivery_key(query)]
            self._write(put | self._encode_cursors(cursors or {}, record.topics), gone)

    def forget(self, queries: Iterable[str]) -> None:
        """Take queries out of memory; those that may come back leave their last batch."""
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
        """Forget a query for good, as if it had never delivered anything."""
        with self._writing:
            mirrored = [key("sink", query)] if query in self._mirrored() else []
            self._write({}, [*mirrored, past_delivery_key(query)])
