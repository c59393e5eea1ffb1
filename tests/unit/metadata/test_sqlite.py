"""What SQLite adds to the store contract: files, restarts, damage and disk errors."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from cordwood.errors import (
    Compacted,
    CorruptionError,
    Indefinite,
    UnavailableError,
    UnknownFormat,
)
from cordwood.metadata import sqlite
from cordwood.metadata.sqlite import SqliteStore
from support.clock import ManualClock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "meta.db"


@pytest.fixture
def store(path):
    opened = SqliteStore(path, ManualClock())
    yield opened
    opened.close()


def reopened(path):
    return SqliteStore(path, ManualClock())


def state(store):
    return {kv.key: kv.value for kv in store.range("")[1]}


def test_revisions_go_on_after_a_restart(store, path):
    """Revisions never repeat after a restart, even if the key written last was deleted."""
    store.txn(put={"a": b"1"})
    _, last = store.txn(delete=["a"])
    store.close()
    again = reopened(path)
    assert again.range("")[0] == last
    assert again.txn(put={"a": b"2"}) == (True, last + 1)
    again.close()


def test_sessions_do_not_survive_a_restart(store, path):
    """Opening the store deletes the keys of earlier sessions and increments the revision."""
    store.txn(put={"term": b""}, session=store.open_session(10**9))
    revision, _ = store.range("")
    store.close()
    again = reopened(path)
    assert again.range("") == (revision + 1, [])
    with pytest.raises(Compacted):
        next(again.watch("", revision))
    again.close()


def test_every_commit_is_synced(store):
    """Every commit is synced: the journal mode is WAL and ``synchronous`` is FULL."""
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_write_ahead_log_cut_anywhere_opens_on_a_committed_prefix(tmp_path, path, store):
    """Cut at any byte, the WAL yields a committed state; the whole WAL yields the last one."""
    states = [state(store)]
    for i in range(6):
        store.txn(put={f"k{i % 3}": b"v" * (i * 700), "n": str(i).encode()}, delete=[f"k{i - 2}"])
        states.append(state(store))
    wal = path.with_name("meta.db-wal").read_bytes()
    frame_bytes = 4096 + 24
    cuts = {*range(32, len(wal), frame_bytes), *range(0, len(wal), 997), len(wal) - 1, len(wal)}
    reached = []
    for cut in sorted(cuts):
        copy = tmp_path / f"cut{cut}"
        copy.mkdir()
        shutil.copy(path, copy / "meta.db")
        (copy / "meta.db-wal").write_bytes(wal[:cut])
        again = reopened(copy / "meta.db")
        reached.append(states.index(state(again)))
        again.close()
        shutil.rmtree(copy)
    assert reached == sorted(reached)
    assert reached[-1] == len(states) - 1


def test_a_damaged_write_ahead_log_opens_on_a_committed_prefix(tmp_path, path, store):
    """With a flipped byte in the WAL, the store opens in an earlier committed state."""
    states = [state(store)]
    for i in range(4):
        store.txn(put={"n": str(i).encode()})
        states.append(state(store))
    wal = path.with_name("meta.db-wal").read_bytes()
    for position in range(40, len(wal), 1733):
        copy = tmp_path / f"flip{position}"
        copy.mkdir()
        shutil.copy(path, copy / "meta.db")
        damaged = bytearray(wal)
        damaged[position] ^= 0xFF
        (copy / "meta.db-wal").write_bytes(damaged)
        again = reopened(copy / "meta.db")
        assert state(again) in states
        again.close()


def test_a_file_of_another_schema_is_refused(path):
    """A file with a newer schema is refused; the error names both versions."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(UnknownFormat, match="schema version 2, but this release reads 1"):
        reopened(path)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\x01" * 8192])
def test_a_file_that_is_no_database_is_corrupt(path, content):
    """A file that is not a database is reported as corrupt and not overwritten."""
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match="backup"):
        reopened(path)
    assert path.read_bytes() == content


def test_an_empty_file_is_a_new_store(path):
    """An empty file opens as a new store; a crash right after its creation can leave one."""
    path.touch()
    again = reopened(path)
    assert state(again) == {}
    again.close()


def test_a_full_disk_is_unavailable_and_passes(store):
    """On a full disk a write changes nothing, reads continue, and writes work again with space."""
    store.txn(put={"a": b"1"})
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError, match="space"):
        store.txn(put={"a": b"2", "big": b"x" * 100_000})
    assert state(store) == {"a": b"1"}
    store._connection.execute("PRAGMA max_page_count = 100000")
    assert store.txn(put={"a": b"2"})[0]


def test_a_locked_file_is_unavailable(store, path, monkeypatch):
    """A write waits for another process's transaction, then fails without a change."""
    store._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="locked"):
        store.txn(put={"a": b"1"})
    other.execute("ROLLBACK")
    other.close()
    assert store.txn(put={"a": b"1"})[0]


def test_an_input_output_error_at_commit_is_indefinite(path):
    """An I/O error at COMMIT is indefinite, because the commit may be durable or not."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert isinstance(sqlite._translated(error, path, "COMMIT"), Indefinite)
    assert not isinstance(sqlite._translated(error, path, "BEGIN IMMEDIATE"), Indefinite)


def test_a_closed_store_is_unavailable(store):
    """A closed store raises UnavailableError and not an error of the SQLite library."""
    store.close()
    with pytest.raises(UnavailableError, match="closed"):
        store.txn(put={"a": b""})
    with pytest.raises(UnavailableError, match="closed"):
        store.range("")
