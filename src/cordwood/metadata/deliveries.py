"""The registry of deliveries: the last batch that each query delivered.

Active and recent queries are in the metadata cache, one value per query. A forgotten query that
delivers only once (a ``df.write``) leaves nothing behind. Any other leaves its last batch and topic
ids under ``past/``, which needs no memory and is read when an unknown query delivers. A query that
returns after years is therefore still not appended twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cordwood.decide.delivery import DeliveryRecord, encode_delivery, parse_delivery
from cordwood.errors import CorruptionError
from cordwood.metadata.cached_store import CachedStore
from cordwood.metadata.keys import Cursor, ReaderPartition, decode, encode, key, past_delivery_key

CursorRows = Callable[[Mapping[ReaderPartition, Cursor], Mapping[str, str]], dict[str, bytes]]


class DeliveryRegistry:
    """The delivery part of the reader state. Thread-safe."""

    def __init__(
        self, store: CachedStore, rows: Mapping[str, Any], cursor_rows: CursorRows
    ) -> None:
        """``rows`` are the recent queries; ``cursor_rows`` encodes the cursors that may move."""
        self._store = store
        self._rows = rows
        self._cursor_rows = cursor_rows

    def __len__(self) -> int:
        """The number of queries in memory."""
        return len(self._rows)

    def recent(self) -> tuple[dict[str, DeliveryRecord], dict[str, CorruptionError]]:
        """The records of all queries in memory, and the errors of the unreadable ones."""
        records: dict[str, DeliveryRecord] = {}
        broken: dict[str, CorruptionError] = {}
        for query, value in list(self._rows.items()):
            try:
                records[query] = parse_delivery(query, value)
            except CorruptionError as error:
                broken[query] = error
        return records, broken

    def get(self, query: str) -> DeliveryRecord | None:
        """A query's record, or what is left of a forgotten one. May read from disk."""
        value = self._rows.get(query)
        if value is not None:
            return parse_delivery(query, value)
        where = past_delivery_key(query)
        for kv in self._store.range(where):
            if kv.key == where:
                past = decode(where, kv.value)
                return DeliveryRecord(batch=int(past["batch"]), topics=dict(past["topics"]))
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
        with self._store.writing:
            put = {key("sink", query): encode(encode_delivery(record))}
            gone = [] if query in self._rows else [past_delivery_key(query)]
            self._store.write(put | self._cursor_rows(cursors or {}, record.topics), gone)

    def forget(self, queries: Iterable[str]) -> None:
        """Remove queries from memory; those that may return leave their last batch on disk."""
        with self._store.writing:
            records, _ = self.recent()
            gone = {query: records[query] for query in queries if query in records}
            past = {
                past_delivery_key(query): encode({"batch": each.batch, "topics": dict(each.topics)})
                for query, each in gone.items()
                if not each.is_once
            }
            self._store.write(past, [key("sink", query) for query in gone])

    def erase(self, query: str) -> None:
        """Forget a query completely, as if it had never delivered."""
        with self._store.writing:
            self._store.delete(key("sink", query), past_delivery_key(query))
