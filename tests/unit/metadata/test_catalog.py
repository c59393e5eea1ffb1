"""The typed view of the metadata and its mirror."""

from __future__ import annotations

import pytest

from cordwood.clock import ManualClock
from cordwood.decide.routing import Bindings
from cordwood.errors import (
    CorruptionError,
    Indefinite,
    StaleProducer,
    TopicExists,
    UnavailableError,
    UnknownReader,
    UnknownTopic,
)
from cordwood.metadata.bundle_index import BundleEntry
from cordwood.metadata.catalog import PRODUCER_ID_BLOCK, Catalog
from cordwood.metadata.keys import (
    Cursor,
    LineProducer,
    ReaderPartition,
    SegmentEntry,
    Topic,
    key,
    parse_key,
)
from cordwood.metadata.sqlite import SqliteStore
from cordwood.model import SegmentState, TopicPartition

TP = TopicPartition("t", 0)


def a_topic(name: str = "t", partitions: int = 2, **config: str) -> Topic:
    return Topic(name, f"id-of-{name}", partitions, dict(config), 7)


def an_entry(base: int, end: int, **facts) -> SegmentEntry:
    facts.setdefault("state", SegmentState.SEALED)
    return SegmentEntry(
        base_offset=base,
        end_offset=end,
        size_bytes=100,
        records=end - base,
        first_ms=1,
        newest_ms=2,
        **facts,
    )


class Opened:
    """A catalog and its store; ``again`` gives what a restart would see."""

    def __init__(self, path):
        self.path = path
        self.store = SqliteStore(path, ManualClock())
        self.catalog = Catalog(self.store)

    def again(self) -> Catalog:
        return Catalog(self.store)


@pytest.fixture
def opened(tmp_path):
    opened = Opened(tmp_path / "meta.db")
    yield opened
    opened.catalog.close()


@pytest.fixture
def catalog(opened):
    return opened.catalog


def assert_survives(opened: Opened) -> None:
    """The mirror shows exactly what a restart reads: no more, no less."""
    now, again = opened.catalog._mirror, opened.again()._mirror
    for name in vars(now):
        if name in {"_tables", "segments", "bundles", "registered"}:
            continue
        assert getattr(now, name) == getattr(again, name), name
    assert {t: r for t, r in now.registered.items() if r} == dict(again.registered)
    for shown, read in ((now.segments, again.segments), (now.bundles, again.bundles)):
        indexes = {tp: index.entries() for tp, index in shown.items() if index.entries()}
        assert indexes == {tp: index.entries() for tp, index in read.items()}


def test_a_topic_is_there_after_a_restart(opened):
    """With its id, partitions and settings."""
    topic = a_topic(**{"retention.ms": "5"})
    opened.catalog.create_topics([topic])
    assert opened.again().topic("t") == topic
    assert_survives(opened)


def test_a_topic_is_created_once(catalog):
    """The second creator is told, and the first topic stays as it was."""
    catalog.create_topics([a_topic()])
    with pytest.raises(TopicExists):
        catalog.create_topics([a_topic(partitions=9)])
    assert catalog.topic("t").partitions == 2


def test_an_unknown_topic_is_named(catalog):
    """The error says which."""
    with pytest.raises(UnknownTopic, match="nope"):
        catalog.topic("nope")


def test_every_start_is_a_new_term(opened):
    """Epochs begin at 0, grow by one per start, and added partitions begin their own count."""
    opened.catalog.create_topics([a_topic(partitions=1)])
    assert opened.catalog.leader_epoch(TP) == 0
    opened.catalog.begin_terms()
    opened.catalog.alter_topic(a_topic(partitions=2))
    assert opened.catalog.leader_epoch(TP) == 1
    assert opened.catalog.leader_epoch(TopicPartition("t", 1)) == 0
    assert_survives(opened)


def test_deleting_a_topic_takes_everything_known_of_it(opened):
    """Cursors, readers, segments, history, starts and epochs go in the same step."""
    catalog = opened.catalog
    for name in ("t", "t2"):
        tp = TopicPartition(name, 0)
        catalog.create_topics([a_topic(name)])
        catalog.commit_cursors({ReaderPartition("r", *tp): Cursor(3)})
        catalog.register_reader(name, "r", 1)
        catalog.put_segments(tp, [an_entry(0, 10)])
        catalog.begin_swap(tp, {"job": "a"})
        catalog.finish_swap(tp, "job", [0], [an_entry(0, 10)])
        catalog.begin_swap(tp, {"job": "b"})
        catalog.set_log_start(tp, 2)
    topic = catalog.begin_delete("t")
    assert catalog.deleting == {"t": topic}
    left = [kv.key for kv in opened.store.range("")[1] if "/t/" in kv.key or kv.key.endswith("/t")]
    assert left == [key("deleting", "t")]
    assert catalog.log_start(TopicPartition("t2", 0)) == 2
    with pytest.raises(TopicExists):
        catalog.create_topics([a_topic()])
    catalog.finish_delete("t")
    catalog.create_topics([a_topic()])
    assert catalog.cursor(ReaderPartition("r", *TP)) is None
    assert catalog.registered("t") == {}
    assert catalog.segments(TP).entries() == []
    assert_survives(opened)


def test_a_cursor_comes_back_as_it_was_committed(opened):
    """Offset, metadata, epoch and time, for readers with any name."""
    opened.catalog.create_topics([a_topic()])
    cursor = Cursor(41, metadata='{"π": 1}', leader_epoch=3, commit_ms=99)
    where = ReaderPartition("group/with %2F and ümlaut", "t", 1)
    opened.catalog.commit_cursors({where: cursor})
    assert opened.again().cursor(where) == cursor
    assert opened.catalog.cursor(where) == cursor
    assert_survives(opened)


def test_cursors_are_committed_together_or_not_at_all(catalog):
    """One unknown partition among them refuses all."""
    catalog.create_topics([a_topic()])
    good, bad = ReaderPartition("r", "t", 0), ReaderPartition("r", "t", 2)
    with pytest.raises(UnknownTopic, match="no partition 2"):
        catalog.commit_cursors({good: Cursor(1), bad: Cursor(1)})
    assert catalog.cursor(good) is None


def test_deleted_cursors_are_gone(opened):
    """And deleting them again is no error."""
    opened.catalog.create_topics([a_topic()])
    where = ReaderPartition("r", *TP)
    opened.catalog.commit_cursors({where: Cursor(1)})
    opened.catalog.delete_cursors([where])
    opened.catalog.delete_cursors([where])
    assert opened.catalog.cursors() == {}
    assert_survives(opened)


def test_a_registered_reader_without_a_cursor_is_at_the_beginning(opened):
    """So RECLAIM waits for it from its registration on, not from its first commit."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.register_reader("t", "slow", 1)
    catalog.register_reader("t", "fast", 1)
    catalog.commit_cursors(
        {ReaderPartition("fast", *TP): Cursor(9), ReaderPartition("passer-by", *TP): Cursor(1)}
    )
    assert catalog.registered_positions(TP) == {"slow": 0, "fast": 9}
    catalog.unregister_reader("t", "slow")
    assert catalog.registered_positions(TP) == {"fast": 9}
    with pytest.raises(UnknownReader, match="slow"):
        catalog.unregister_reader("t", "slow")
    assert_survives(opened)


def test_a_reader_registers_on_a_topic_that_exists(catalog):
    """A typo in the topic would otherwise hold nothing, silently."""
    with pytest.raises(UnknownTopic):
        catalog.register_reader("nope", "r", 1)


def test_a_reader_whose_last_cursor_goes_is_waited_for_no_more(opened):
    """Without a cursor it would count as being at the beginning and hold everything back."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.register_reader("t", "r", 1)
    at = {ReaderPartition("r", "t", number): Cursor(5) for number in (0, 1)}
    catalog.commit_cursors(at)
    catalog.release_cursors("r", [TP])
    assert set(catalog.registered("t")) == {"r"}
    catalog.release_cursors("r", [TopicPartition("t", 1)])
    assert not catalog.registered("t")
    assert not catalog.cursors()
    assert_survives(opened)


def test_an_erased_group_leaves_nothing_and_a_forgotten_one_its_cursors(opened):
    """Erasing is an operator's wish; forgetting only says that nobody was a member lately."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    for group in ("g", "h", "other"):
        catalog.put_group(group, "consumer")
        catalog.register_reader("t", group, 1)
        catalog.commit_cursors({ReaderPartition(group, *TP): Cursor(1)})
    catalog.erase_group("g")
    catalog.forget_group("h")
    again = opened.again()
    assert again.groups == {"other": "consumer"}
    assert set(again.registered("t")) == {"h", "other"}
    assert {at.reader for at in again.cursors()} == {"h", "other"}
    assert_survives(opened)


def test_what_a_reader_and_a_topic_have_is_found_without_looking_at_others(opened):
    """The indexes follow every change: cursors by reader, and keys that go with their topic."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    at = {reader: ReaderPartition(reader, *TP) for reader in ("g", "h")}
    catalog.commit_cursors({where: Cursor(1) for where in at.values()})
    again = opened.again()
    assert again.cursors_of("g") == [at["g"]]
    assert sorted(again.readers_with_cursors()) == ["g", "h"]
    again.delete_cursors([at["g"]])
    assert not again.has_cursors("g")
    assert again.cursors_of("g") == []
    again.begin_delete("t")
    assert not again.has_cursors("h")
    assert not again.cursors()
    again.finish_delete("t")
    again.create_topics([a_topic()])
    again.begin_delete("t")
    assert not again.topics


def test_a_transaction_moves_its_cursors_in_the_step_that_ends_it(opened, monkeypatch):
    """Ledger and cursors are one write; what was deleted meanwhile does not stop it."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    cursors = {
        ReaderPartition("g", *TP): Cursor(7),
        ReaderPartition("g", "t", 9): Cursor(7),
        ReaderPartition("g", "gone", 0): Cursor(7),
    }
    writes = []
    txn = opened.store.txn
    monkeypatch.setattr(opened.store, "txn", lambda **how: writes.append(how) or txn(**how))
    catalog.put_transaction("tx", {"state": "CompleteCommit"}, cursors)
    assert len(writes) == 1
    assert opened.again().cursors() == {ReaderPartition("g", *TP): Cursor(7)}
    assert opened.again().transactions == {"tx": {"state": "CompleteCommit"}}
    assert_survives(opened)


def test_the_log_start_never_moves_back(opened):
    """Deleted records do not come back."""
    opened.catalog.create_topics([a_topic()])
    opened.catalog.set_log_start(TP, 10)
    opened.catalog.set_log_start(TP, 4)
    assert opened.catalog.log_start(TP) == 10
    assert_survives(opened)


def test_segments_are_found_by_offset(opened):
    """By bisection, gaps between them included; the active part is nobody's."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.put_segments(TP, [an_entry(20, 30), an_entry(0, 10)])
    index = catalog.segments(TP)
    found = [index.find(offset) for offset in (0, 9, 10, 19, 20, 29, 30)]
    assert [e.base_offset if e else None for e in found] == [0, 0, None, None, 20, 20, None]
    assert_survives(opened)


def test_a_reclaimed_segment_is_remembered(opened):
    """Its state and the log start change in one step; range, size and sum stay known."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.put_segments(TP, [an_entry(0, 10, sha256="ab"), an_entry(10, 20)])
    before, _ = opened.store.range("")
    catalog.reclaim_segments(TP, [catalog.segments(TP).get(0)], 10)
    assert opened.store.range("")[0] == before + 1
    entry = catalog.segments(TP).find(5)
    assert (entry.state, entry.sha256) == (SegmentState.RECLAIMED, "ab")
    assert catalog.log_start(TP) == 10
    assert_survives(opened)


def test_a_swap_turns_entries_into_history(opened):
    """What they were stays readable; offsets are answered by what replaced them."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.put_segments(TP, [an_entry(0, 10), an_entry(10, 20), an_entry(20, 30)])
    catalog.begin_swap(TP, {"job": "job-1"})
    assert opened.again().swaps == {TP: {"job": "job-1"}}
    catalog.finish_swap(TP, "job-1", [0, 10], [an_entry(0, 20, sha256="new")])
    assert catalog.swaps == {}
    assert [e.base_offset for e in catalog.segments(TP).entries()] == [0, 20]
    assert catalog.segments(TP).find(15).sha256 == "new"
    past = [entry for _, entry in catalog.replaced_segments(TP)]
    assert [(e.base_offset, e.end_offset, e.state) for e in past] == [
        (0, 10, SegmentState.REPLACED),
        (10, 20, SegmentState.REPLACED),
    ]
    assert_survives(opened)


def test_what_swaps_replaced_is_not_remembered_without_end(opened, monkeypatch):
    """The last swap's entries and a bounded number of earlier ones, the newest."""
    monkeypatch.setattr("cordwood.metadata.catalog.REPLACED_KEPT", 3)
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.put_segments(TP, [an_entry(0, 10)])
    for number in range(10):
        catalog.finish_swap(TP, f"job-{9 - number}", [0], [an_entry(0, 10, sha256=str(number))])
    jobs = {text.rsplit("/", 2)[1] for text, _ in catalog.replaced_segments(TP)}
    assert jobs == {"job-0", "job-1", "job-2", "job-3"}
    assert catalog.segments(TP).find(5).sha256 == "9"
    assert_survives(opened)


def a_bundle(start, end):
    return BundleEntry(
        start_offset=start,
        end_offset=end,
        name=f"{start}.tar.gz",
        sha256="ab",
        link="cd",
        place="p",
    )


def test_bundles_are_found_by_offset(opened):
    """Whatever becomes of segments; past the last of them nothing is archived."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    assert (catalog.bundles(TP).end, catalog.bundles(TP).find(0)) == (0, None)
    catalog.put_bundles(TP, [a_bundle(10, 20), a_bundle(20, 30)])
    found = [catalog.bundles(TP).find(offset) for offset in (9, 10, 19, 20, 30)]
    assert [b.name if b else None for b in found] == [
        None, "10.tar.gz", "10.tar.gz", "20.tar.gz", None,
    ]  # fmt: skip
    assert catalog.bundles(TP).end == 30
    assert_survives(opened)


def test_bundles_go_with_their_topic(opened):
    """A topic created again under the name is another one: nothing of it is archived."""
    catalog = opened.catalog
    catalog.create_topics([a_topic()])
    catalog.put_bundles(TP, [a_bundle(0, 10)])
    catalog.begin_delete(TP.topic)
    assert catalog.bundles(TP).entries() == []
    assert_survives(opened)


def test_the_cluster_keeps_its_id(opened):
    """Clients compare it to tell one cluster from another; it has Kafka's 22 characters."""
    first = opened.catalog.cluster_id()
    assert len(first) == 22
    assert opened.catalog.cluster_id() == opened.again().cluster_id() == first
    assert_survives(opened)


def test_producer_ids_are_never_given_twice(opened):
    """Not after a restart either: the rest of a reserved block is skipped."""
    ids = [opened.catalog.new_producer_id() for _ in range(PRODUCER_ID_BLOCK + 5)]
    after = opened.again().new_producer_id()
    assert len(set(ids)) == len(ids)
    assert after > max(ids)


def test_a_line_producer_keeps_its_id(opened):
    """Across restarts; a higher epoch takes the name over and a lower one is refused."""
    first = opened.catalog.line_producer("sensor")
    assert first == LineProducer(first.producer_id, 0)
    assert opened.again().line_producer("sensor") == first
    assert opened.catalog.line_producer("sensor", 4) == LineProducer(first.producer_id, 4)
    assert opened.catalog.line_producer("sensor") == LineProducer(first.producer_id, 4)
    with pytest.raises(StaleProducer, match="epoch 4"):
        opened.catalog.line_producer("sensor", 3)
    assert opened.catalog.line_producer("other").producer_id != first.producer_id
    assert_survives(opened)


def test_transactions_routes_and_replays_survive(opened):
    """Each is stored as it was given, and can be taken away."""
    catalog = opened.catalog
    catalog.put_transaction("tx/1", {"state": "Ongoing", "partitions": [["t", 0]]})
    catalog.put_transaction("tx/2", {})
    catalog.delete_transaction("tx/2")
    catalog.put_replay("2024-01", {"done": 5})
    catalog.put_route("exact", "a.b", "x")
    catalog.put_route("prefix", "a", "y")
    catalog.put_route("prefix", "gone", "z")
    catalog.delete_route("prefix", "gone")
    assert_survives(opened)
    again = opened.again()
    assert again.transactions == {"tx/1": {"state": "Ongoing", "partitions": [["t", 0]]}}
    assert again.replays == {"2024-01": {"done": 5}}
    assert again.bindings("s") == Bindings(exact={"a.b": "x"}, prefix={"a": "y"}, source="s")


def test_a_failed_write_leaves_the_mirror_as_the_store_is(opened, monkeypatch):
    """What was not stored is not shown."""
    monkeypatch.setattr(opened.store, "txn", _raises(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        opened.catalog.create_topics([a_topic()])
    assert opened.catalog.topics == {}


def test_an_indefinite_write_makes_the_catalog_read_again(opened, monkeypatch):
    """The write may have held: the store decides what is true."""
    txn = opened.store.txn

    def held_but_unheard(**arguments):
        txn(**arguments)
        raise Indefinite("no answer")

    monkeypatch.setattr(opened.store, "txn", held_but_unheard)
    with pytest.raises(Indefinite):
        opened.catalog.create_topics([a_topic()])
    assert "t" in opened.catalog.topics


def test_a_change_behind_the_mirror_is_noticed(opened):
    """Another writer's change is not overwritten; the next try builds on it."""
    other = opened.again()
    other.create_topics([a_topic(partitions=5)])
    with pytest.raises(UnavailableError, match="try again"):
        opened.catalog.create_topics([a_topic()])
    assert opened.catalog.topic("t").partitions == 5


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (key("topic", "t"), b"{"),
        (key("topic", "t"), b'{"id": 1}'),
        (key("cursor", "t"), b"{}"),
        (key("invented", "t"), b"{}"),
    ],
)
def test_metadata_that_does_not_parse_is_corruption_by_name(opened, where, value):
    """Never a half-read catalog."""
    opened.store.txn(put={where: value})
    with pytest.raises(CorruptionError, match=where):
        opened.again()


@pytest.mark.parametrize("name", ["plain", "a/b", "%2F", "", "ü €", "..", "a b\n"])
def test_any_name_survives_its_key(name):
    """Slashes and percent signs stay in their place."""
    assert parse_key(key("cursor", "t", 3, name)) == ("cursor", ["t", "3", name])


def _raises(error):
    def fail(**_):
        raise error

    return fail
