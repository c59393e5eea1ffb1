"""The contract that every metadata store implements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from cordwood.errors import Compacted
from cordwood.metadata.sqlite import SqliteStore
from cordwood.metadata.store import KV, Event, MetadataStore
from support.clock import ManualClock

IMPLEMENTATIONS: dict[str, Callable[[Path, ManualClock], MetadataStore]] = {
    "sqlite": lambda directory, clock: SqliteStore(
        directory / "meta.db", clock, history_events_max=50
    ),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def store(request, tmp_path, clock) -> Iterator[MetadataStore]:
    opened = IMPLEMENTATIONS[request.param](tmp_path, clock)
    yield opened
    opened.close()


def keys(store: MetadataStore, prefix: str = "") -> list[str]:
    return [kv.key for kv in store.range(prefix)[1]]


def test_what_was_put_is_in_range_with_its_revision(store):
    """A range returns keys in order, each with the revision that wrote it."""
    _, first = store.txn(put={"a/2": b"x", "a/1": b"y"})
    _, second = store.txn(put={"a/2": b"z", "b": b""})
    assert store.range("a/") == (
        second,
        [KV("a/1", b"y", first), KV("a/2", b"z", second)],
    )
    assert second > first


def test_range_takes_the_prefix_literally(store):
    """A prefix has no wildcards, and neighbouring keys are not returned."""
    store.txn(put={"a": b"", "a%": b"", "a/": b"", "a/x": b"", "a0": b"", "a/é": b"", "b": b""})
    assert keys(store, "a/") == ["a/", "a/x", "a/é"]
    assert keys(store, "a%") == ["a%"]
    assert keys(store, "zz") == []


def test_zero_expects_that_the_key_does_not_exist(store):
    """Of two transactions that create a key, only the first succeeds."""
    assert store.txn(expect={"k": 0}, put={"k": b"first"})[0]
    ok, _ = store.txn(expect={"k": 0}, put={"k": b"second", "other": b"x"})
    assert not ok
    assert [(kv.key, kv.value) for kv in store.range("")[1]] == [("k", b"first")]


def test_a_swap_needs_the_revision_it_read(store):
    """A compare-and-swap fails if the key was written or recreated since it was read."""
    _, mod = store.txn(put={"k": b"1"})
    assert store.txn(expect={"k": mod}, put={"k": b"2"})[0]
    assert not store.txn(expect={"k": mod}, put={"k": b"3"})[0]
    store.txn(delete=["k"])
    store.txn(put={"k": b"1"})
    assert not store.txn(expect={"k": mod}, delete=["k"])[0]
    assert store.range("k")[1][0].value == b"1"


def test_a_transaction_holds_whole_or_not_at_all(store):
    """One stale expectation rejects every put and delete of the transaction."""
    _, mod = store.txn(put={"a": b"1", "b": b"1"})
    assert not store.txn(expect={"a": mod, "b": mod + 1}, put={"c": b""}, delete=["a"])[0]
    assert keys(store) == ["a", "b"]
    assert store.txn(expect={"a": mod, "b": mod}, put={"c": b""}, delete=["a"])[0]
    assert keys(store) == ["b", "c"]


def test_the_revision_moves_only_with_a_change(store):
    """A rejected transaction, an empty one or a delete of a missing key keeps the revision."""
    _, revision = store.txn(put={"a": b""})
    assert store.txn(expect={"a": 0}, put={"a": b"x"}) == (False, revision)
    assert store.txn(expect={"a": revision}) == (True, revision)
    assert store.txn(delete=["none"]) == (True, revision)


def test_a_watch_sees_every_change_in_order(store):
    """A watch returns every change under its prefix, in order, from the requested revision on."""
    _, first = store.txn(put={"a/1": b"x"})
    _, second = store.txn(put={"b": b"elsewhere"})
    _, third = store.txn(put={"a/2": b"y"}, delete=["a/1"])
    seen = list(islice(store.watch("a/", first), 3))
    assert seen[0] == Event(first, "a/1", b"x")
    assert sorted(seen[1:]) == [Event(third, "a/1", None), Event(third, "a/2", b"y")]
    assert next(store.watch("", second)) == Event(second, "b", b"elsewhere")


def test_a_watch_waits_for_what_comes(store):
    """A range followed by a watch from the next revision misses nothing and repeats nothing."""
    store.txn(put={"k": b"old"})
    revision, _ = store.range("")
    watch = store.watch("", revision + 1)
    seen: list[Event] = []
    reader = threading.Thread(target=lambda: seen.extend(islice(watch, 20)))
    reader.start()
    for i in range(20):
        store.txn(put={"k": str(i).encode()})
    reader.join(10)
    assert [event.value for event in seen] == [str(i).encode() for i in range(20)]


def test_closing_the_store_ends_its_watches(store):
    """Closing the store ends a waiting watch without an error."""
    watch = store.watch("", store.range("")[0] + 1)
    seen: list[Event] = []
    reader = threading.Thread(target=lambda: seen.extend(watch))
    reader.start()
    store.close()
    reader.join(10)
    assert not reader.is_alive()
    assert seen == []


def test_a_watch_from_compacted_history_is_refused(store):
    """A watch from a compacted revision raises Compacted; a recent revision still works."""
    _, first = store.txn(put={"k": b""})
    for i in range(200):
        _, last = store.txn(put={"k": str(i).encode()})
    with pytest.raises(Compacted):
        next(store.watch("", first))
    assert next(store.watch("", last)).value == b"199"


def test_keys_of_a_session_vanish_with_it(store, clock):
    """When a session expires, its keys are deleted, and watchers see the deletion."""
    session = store.open_session(1000)
    ok, revision = store.txn(put={"mine": b""}, session=session)
    assert ok
    store.txn(put={"yours": b""})
    clock.advance(999)
    assert keys(store) == ["mine", "yours"]
    clock.advance(1)
    assert keys(store) == ["yours"]
    assert not store.keepalive(session)
    events = list(islice(store.watch("mine", revision), 2))
    assert [event.value for event in events] == [b"", None]


def test_a_kept_session_keeps_its_keys(store, clock):
    """Each keepalive restarts the session's full timeout."""
    session = store.open_session(1000)
    store.txn(put={"mine": b""}, session=session)
    for _ in range(5):
        clock.advance(900)
        assert store.keepalive(session)
    assert keys(store) == ["mine"]


def test_a_put_without_the_session_frees_the_key(store, clock):
    """A put without the session detaches the key from it, so the key survives the session."""
    session = store.open_session(1000)
    store.txn(put={"k": b"1"}, session=session)
    store.txn(put={"k": b"2"})
    clock.advance(5000)
    assert keys(store) == ["k"]


def test_an_ended_session_cannot_put(store, clock):
    """A put with an expired or unknown session fails."""
    session = store.open_session(1000)
    clock.advance(1000)
    assert not store.txn(put={"late": b""}, session=session)[0]
    assert not store.txn(put={"late": b""}, session=session + 100)[0]
    assert keys(store) == []


def test_concurrent_swaps_of_one_counter_lose_nothing(store):
    """Concurrent compare-and-swap increments lose no confirmed update."""
    store.txn(put={"n": b"0"})

    def increment(times: int) -> None:
        done = 0
        while done < times:
            kv = store.range("n")[1][0]
            done += store.txn(expect={"n": kv.mod}, put={"n": str(int(kv.value) + 1).encode()})[0]

    threads = [threading.Thread(target=increment, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.range("n")[1][0].value == b"80"
