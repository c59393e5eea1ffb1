"""The metadata store as the rest of the program sees it: four verbs over ordered text keys.

A revision counts changes of the whole store; each key carries the revision that last wrote it.
Every implementation passes the same contract test. It stores bytes and knows nothing of topics.
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
    """One change: the value now at ``key``, or None where it was deleted."""

    revision: int
    key: str
    value: bytes | None


class MetadataStore(Protocol):
    """Range, transaction, watch, session. Safe to call from any thread."""

    def range(self, prefix: str) -> tuple[int, list[KV]]:
        """The store's revision and every key with this prefix, in key order, as of it."""
        ...

    def txn(
        self,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Sequence[str] = (),
        session: int | None = None,
    ) -> tuple[bool, int]:
        """Put and delete, all or nothing, if every expected key was last written at its revision.

        An expected revision of 0 means the key must not exist. Returns whether it held and the
        store's revision after; what it wrote is durable by then. Keys put with a session vanish
        with it. May raise ``UnavailableError`` (nothing happened) or ``Indefinite`` (read again).
        """
        ...

    def watch(self, prefix: str, from_rev: int) -> Iterator[Event]:
        """Changes under the prefix from ``from_rev`` on, in order, waiting for more until closed.

        Raises ``Compacted`` when the store no longer remembers that far back.
        """
        ...

    def open_session(self, ttl_ms: int) -> int:
        """Begin a session that ends unless kept alive within ``ttl_ms``."""
        ...

    def keepalive(self, session: int) -> bool:
        """Renew a session; False when it has ended, and its keys with it."""
        ...

    def close(self) -> None:
        """End watches and release the store."""
        ...
