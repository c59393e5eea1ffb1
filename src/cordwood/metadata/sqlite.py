"""The embedded metadata store: one SQLite file in WAL mode, with an fsync at every commit.

One process owns the file, by the data directory's lock. Sessions therefore never survive a restart:
keys bound to one are deleted at the next open. History for watches is kept in memory and bounded; a
watcher that lags too far gets ``Compacted``.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cordwood.clock import Clock
from cordwood.errors import (
    Compacted,
    CordwoodError,
    CorruptionError,
    Indefinite,
    UnavailableError,
    UnknownFormat,
)
from cordwood.metadata.store import KV, Event

SCHEMA_VERSION: Final = 1
HISTORY_EVENTS_MAX: Final = 10_000
BUSY_TIMEOUT_S: Final = 2.0
_LAST_CHARACTER: Final = "\U0010ffff"  # sorts after every key with the prefix

_SCHEMA: Final = """
BEGIN IMMEDIATE;
CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL, mod INTEGER NOT NULL,
                 session INTEGER) WITHOUT ROWID;
CREATE TABLE revision (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);
INSERT INTO revision VALUES (1, 1);
PRAGMA user_version = 1;
COMMIT;
"""


class SqliteStore:
    """A ``MetadataStore`` in one file. Every transaction is on the device before it returns."""

    def __init__(
        self, path: Path, clock: Clock, *, history_events_max: int = HISTORY_EVENTS_MAX
    ) -> None:
        """Open or create the file; raises ``UnknownFormat`` or ``CorruptionError``."""
        self._path = path
        self._clock = clock
        self._changed = threading.Condition()  # guards everything below
        self._sessions: dict[int, tuple[int, float]] = {}  # id → (ttl_ms, deadline)
        self._last_session = 0
        self._history: deque[Event] = deque()
        self._history_events_max = history_events_max
        self._closed = False
        try:
            self._connection = _connect(path)
            self._revision: int = self._one("SELECT revision FROM revision")
        except sqlite3.Error as error:
            raise _translated(error, path) from error
        self._compacted = self._revision  # the last revision that is no longer in the history
        with self._changed:
            self._forget_bound(None)

    def range(self, prefix: str) -> tuple[int, list[KV]]:
        """The revision and every key with the prefix, in key order."""
        with self._changed:
            self._expire()
            try:
                rows = self._connection.execute(
                    "SELECT key, value, mod FROM kv WHERE key >= ? AND key < ? ORDER BY key",
                    (prefix, prefix + _LAST_CHARACTER),
                ).fetchall()
            except sqlite3.Error as error:
                raise _translated(error, self._path) from error
            return self._revision, [KV(*row) for row in rows]

    def txn(
        self,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Sequence[str] = (),
        session: int | None = None,
    ) -> tuple[bool, int]:
        """Compare and swap; see ``MetadataStore.txn``."""
        with self._changed:
            self._expire()
            if session is not None and session not in self._sessions:
                return False, self._revision
            return self._commit(expect or {}, put or {}, delete, session)

    def watch(self, prefix: str, from_rev: int) -> Iterator[Event]:
        """Ordered changes from a revision on; see ``MetadataStore.watch``."""
        next_revision = from_rev
        while True:
            with self._changed:
                while next_revision > self._revision and not self._closed:
                    self._changed.wait(self._seconds_to_expiry())
                    if not self._closed:
                        self._expire()
                if self._closed:
                    return
                if next_revision <= self._compacted:
                    raise Compacted(
                        f"changes from revision {next_revision} were compacted (kept after "
                        f"{self._compacted}); read {prefix!r} again and watch from there"
                    )
                seen = [event for event in self._history if event.revision >= next_revision]
                next_revision = self._revision + 1
            yield from (event for event in seen if event.key.startswith(prefix))

    def open_session(self, ttl_ms: int) -> int:
        """Start a session; its id is not reused while the store is open."""
        with self._changed:
            self._last_session += 1
            self._sessions[self._last_session] = (ttl_ms, self._deadline(ttl_ms))
            self._changed.notify_all()  # watchers must wake at the next expiry
            return self._last_session

    def keepalive(self, session: int) -> bool:
        """Renew a session unless it has ended."""
        with self._changed:
            self._expire()
            if session not in self._sessions:
                return False
            ttl_ms, _ = self._sessions[session]
            self._sessions[session] = (ttl_ms, self._deadline(ttl_ms))
            return True

    def close(self) -> None:
        """End watches and close the file; closing twice is harmless."""
        with self._changed:
            self._closed = True
            self._connection.close()
            self._changed.notify_all()

    def _commit(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str],
        session: int | None,
    ) -> tuple[bool, int]:
        """Run one SQLite transaction; memory is updated only after the commit."""
        assert not set(put) & set(delete), "a key is put or deleted, not both"
        stage = "BEGIN IMMEDIATE"
        try:
            self._connection.execute(stage)
            if not self._holds(expect):
                self._connection.execute("ROLLBACK")
                return False, self._revision
            events = self._write(put, delete, session)
            stage = "COMMIT"
            self._connection.execute(stage)
        except sqlite3.Error as error:
            self._roll_back()
            raise _translated(error, self._path, stage) from error
        self._remember(events)
        return True, self._revision

    def _holds(self, expect: Mapping[str, int]) -> bool:
        return all(
            self._one("SELECT mod FROM kv WHERE key = ?", key) == mod for key, mod in expect.items()
        )

    def _write(
        self, put: Mapping[str, bytes], delete: Sequence[str], session: int | None
    ) -> list[Event]:
        """Write at the next revision; a transaction without changes uses none."""
        revision = self._revision + 1
        self._connection.executemany(
            "INSERT OR REPLACE INTO kv VALUES (?, ?, ?, ?)",
            [(key, value, revision, session) for key, value in put.items()],
        )
        events = [Event(revision, key, value) for key, value in put.items()]
        events += [
            Event(revision, key, None)
            for key in delete
            if self._connection.execute("DELETE FROM kv WHERE key = ?", (key,)).rowcount
        ]
        if events:
            self._connection.execute("UPDATE revision SET revision = ?", (revision,))
        return events

    def _remember(self, events: list[Event]) -> None:
        """Publish changes to watchers, and drop the oldest revisions, each as a whole."""
        if not events:
            return
        self._revision = events[-1].revision
        self._history.extend(events)
        while len(self._history) > self._history_events_max:
            self._compacted = self._history[0].revision
            while self._history and self._history[0].revision == self._compacted:
                self._history.popleft()
        self._changed.notify_all()

    def _expire(self) -> None:
        """End sessions past their deadline and delete the keys bound to them."""
        now = self._clock.monotonic()
        ended = [key for key, (_, deadline) in self._sessions.items() if deadline <= now]
        if ended:
            self._forget_bound(ended)
            for session in ended:
                del self._sessions[session]

    def _forget_bound(self, sessions: Sequence[int] | None) -> None:
        """Delete the keys bound to these sessions; None means to any session."""
        try:
            bound = self._connection.execute(
                "SELECT key, session FROM kv WHERE session IS NOT NULL ORDER BY key"
            ).fetchall()
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error
        gone = [key for key, session in bound if sessions is None or session in sessions]
        if gone:
            self._commit({}, {}, gone, None)

    def _deadline(self, ttl_ms: int) -> float:
        return self._clock.monotonic() + ttl_ms / 1000

    def _seconds_to_expiry(self) -> float | None:
        deadlines = [deadline for _, deadline in self._sessions.values()]
        if not deadlines:
            return None
        return max(0.0, min(deadlines) - self._clock.monotonic())

    def _one(self, query: str, *parameters: str) -> int:
        """The single integer of a query result; 0 without a row."""
        row = self._connection.execute(query, parameters).fetchone()
        return int(row[0]) if row else 0

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # report the first error, not this one
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(_SCHEMA)
    elif version != SCHEMA_VERSION:
        raise UnknownFormat(
            f"{path} has schema version {version}, but this release reads {SCHEMA_VERSION}; use "
            "the release that wrote it"
        )


def _translated(error: sqlite3.Error, path: Path, stage: str = "") -> CordwoodError:
    """Convert an SQLite error to our error families, by its primary result code."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return CorruptionError(f"{path}: {error}; restore it from a backup")
    if isinstance(error, sqlite3.ProgrammingError):
        return UnavailableError(f"{path}: the metadata store is closed")
    if stage == "COMMIT" and code == sqlite3.SQLITE_IOERR:
        return Indefinite(f"{path}: {error} during commit; read the state again before retrying")
    if code == sqlite3.SQLITE_FULL:
        return UnavailableError(f"{path}: no space left; free some and try again")
    return UnavailableError(f"{path}: {error}; nothing was changed, try again")
