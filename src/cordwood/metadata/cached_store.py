"""A metadata store whose current state is also in memory.

Every change is one transaction, conditional on the revisions in memory and durable before the
method returns; only then do the tables show it. If the store turns out to differ (an unclear
commit, another process), the tables are brought up to date key by key, so that mappings that others
hold stay valid.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from cordwood.errors import CorruptionError, Indefinite, UnavailableError
from cordwood.metadata.keys import CLUSTER_ID, NOW, parse_key
from cordwood.metadata.store import KV, MetadataStore
from cordwood.metadata.tables import Table


class CachedStore:
    """A ``MetadataStore`` and the tables that follow it. Safe to call from any thread."""

    def __init__(self, store: MetadataStore, tables: Mapping[str, Table]) -> None:
        """Load the current state into the tables, by kind; raises ``CorruptionError``."""
        self.writing = threading.RLock()  # held from what a change reads to what it writes
        self._store = store
        self._tables = tables
        self._revisions: dict[str, int] = {}  # key → the revision that wrote it
        self._load()

    def revision(self) -> int:
        """The revision of the last change, read from the store."""
        return self._store.range(CLUSTER_ID)[0]

    def range(self, prefix: str) -> list[KV]:
        """Every key with the prefix, read from the store."""
        return self._store.range(prefix)[1]

    def put(self, put: Mapping[str, bytes]) -> None:
        """Write these values, all or none."""
        self.write(put, ())

    def delete(self, *keys: str) -> None:
        """Delete these keys, all or none; a missing key is no error."""
        self.write({}, keys)

    def write(self, put: Mapping[str, bytes], delete: Sequence[str]) -> None:
        """Write and delete in one transaction, then show it; raises ``UnavailableError``."""
        if not put and not delete:
            return
        with self.writing:
            cached = [key for key in [*put, *delete] if key.startswith(NOW)]
            expect = {key: self._revisions.get(key, 0) for key in cached}
            try:
                held, revision = self._store.txn(expect=expect, put=put, delete=delete)
            except Indefinite:
                self._load()
                raise
            if not held:
                self._load()
                raise UnavailableError(
                    "the metadata was changed by another process; nothing was written, try again"
                )
            for key in cached:
                if key in put:
                    self._show(key, put[key], revision)
                else:
                    self._hide(key)

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    def _load(self) -> None:
        """Show what changed in the store since the tables were last equal to it."""
        current = self.range(NOW)
        for key in set(self._revisions) - {kv.key for kv in current}:
            self._hide(key)
        for kv in current:
            if self._revisions.get(kv.key) != kv.mod:
                self._show(kv.key, kv.value, kv.mod)

    def _show(self, key: str, value: bytes, revision: int) -> None:
        kind, names = parse_key(key)
        try:
            self._tables[kind].put(names, value)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptionError(
                f"metadata at {key} does not parse ({error!r}); restore meta.db from a backup"
            ) from None
        self._revisions[key] = revision

    def _hide(self, key: str) -> None:
        if self._revisions.pop(key, None) is not None:
            kind, names = parse_key(key)
            self._tables[kind].delete(names)
