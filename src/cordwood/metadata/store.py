"""The interface of the metadata store: ranges, transactions, watches and sessions on text keys.

The revision counts changes of the whole store; each key carries the revision that last wrote it.
Every implementation passes the same contract test. A store holds bytes and knows nothing of topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class KV(NamedTuple):
    """One key, its value and the revision that wrote it."""

    key: str
    value: bytes
    mod: int


class Event(NamedTuple):
    """One change: the new value at ``key``, or None if it was deleted."""

    revision: int
    key: str
    value: bytes | None


class MetadataStore(Protocol):
    """Range, transaction, watch, session. Safe to call from any thread."""

    def range(self, prefix: str) -> tuple[int, list[KV]]:
        """The store's revision and every key with this prefix, in key order, at that revision."""
        ...

    def txn(
        self,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Sequence[str] = (),
        session: int | None = None,
    ) -> tuple[bool, int]:
        """Put and delete, all or nothing, if every expected key was last written at its revision.

        An expected revision of 0 means the key must not exist. Returns whether the expectations
        held, and the store's revision afterwards; by then all writes are durable. Keys put with a
        session are deleted when it ends. May raise ``UnavailableError`` (nothing changed) or
        ``Indefinite`` (read again).
        """
        ...

    def watch(self, prefix: str, from_rev: int) -> Iterator[Event]:
        """Changes under the prefix from ``from_rev`` on, in order; blocks for more until closed.

        Raises ``Compacted`` if the store no longer has changes that old.
        """
        ...

    def open_session(self, ttl_ms: int) -> int:
        """Start a session that ends unless kept alive within ``ttl_ms``."""
        ...

    def keepalive(self, session: int) -> bool:
        """Renew a session; False if it has ended and its keys are deleted."""
        ...

    def close(self) -> None:
        """End watches and release the store."""
        ...
