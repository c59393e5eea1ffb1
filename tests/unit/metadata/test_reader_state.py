"""Reader state: cursors, registrations, groups, producers, transactions and replays."""

from __future__ import annotations

import pytest

from cordwood.errors import (
    StaleProducer,
    UnknownReader,
    UnknownTopic,
)
from cordwood.metadata.keys import Cursor, ProducerIdentity, ReaderPartition
from cordwood.metadata.reader_state import PRODUCER_ID_BLOCK
from cordwood.model import TopicPartition
from support.metadata import TP, OpenedMetadata, a_topic


@pytest.fixture
def opened(tmp_path):
    opened = OpenedMetadata(tmp_path / "meta.db")
    yield opened
    opened.metadata.close()


def test_a_cursor_comes_back_as_it_was_committed(opened):
    """A cursor keeps its offset, metadata, epoch and time, for any reader name."""
    opened.cluster.create_topics([a_topic()])
    cursor = Cursor(41, metadata='{"π": 1}', leader_epoch=3, commit_ms=99)
    where = ReaderPartition("group/with %2F and ümlaut", "t", 1)
    opened.readers.commit_cursors({where: cursor})
    assert opened.again().readers.cursor(where) == cursor
    assert opened.readers.cursor(where) == cursor
    opened.assert_survives()


def test_cursors_are_committed_together_or_not_at_all(opened):
    """An unknown partition in a commit rejects all of its cursors."""
    opened.cluster.create_topics([a_topic()])
    good, bad = ReaderPartition("r", "t", 0), ReaderPartition("r", "t", 2)
    with pytest.raises(UnknownTopic, match="no partition 2"):
        opened.readers.commit_cursors({good: Cursor(1), bad: Cursor(1)})
    assert opened.readers.cursor(good) is None


def test_deleted_cursors_are_gone(opened):
    """Deleting cursors that do not exist is no error."""
    opened.cluster.create_topics([a_topic()])
    where = ReaderPartition("r", *TP)
    opened.readers.commit_cursors({where: Cursor(1)})
    opened.readers.delete_cursors([where])
    opened.readers.delete_cursors([where])
    assert opened.readers.cursors() == {}
    opened.assert_survives()


def test_a_registered_reader_without_a_cursor_is_at_the_beginning(opened):
    """A registered reader without a cursor counts as being at offset 0, so RECLAIM waits for it."""
    opened.cluster.create_topics([a_topic()])
    opened.readers.register_reader("t", "slow", 1)
    opened.readers.register_reader("t", "fast", 1)
    opened.readers.commit_cursors(
        {ReaderPartition("fast", *TP): Cursor(9), ReaderPartition("passer-by", *TP): Cursor(1)}
    )
    assert opened.readers.registered_positions(TP) == {"slow": 0, "fast": 9}
    opened.readers.unregister_reader("t", "slow")
    assert opened.readers.registered_positions(TP) == {"fast": 9}
    with pytest.raises(UnknownReader, match="slow"):
        opened.readers.unregister_reader("t", "slow")
    opened.assert_survives()


def test_a_reader_registers_on_a_topic_that_exists(opened):
    """Registering a reader on an unknown topic fails."""
    with pytest.raises(UnknownTopic):
        opened.readers.register_reader("nope", "r", 1)


def test_a_reader_whose_last_cursor_goes_is_waited_for_no_more(opened):
    """Releasing a reader's last cursor also removes its registration, so it holds nothing back."""
    opened.cluster.create_topics([a_topic()])
    opened.readers.register_reader("t", "r", 1)
    at = {ReaderPartition("r", "t", number): Cursor(5) for number in (0, 1)}
    opened.readers.commit_cursors(at)
    opened.readers.release_cursors("r", [TP])
    assert set(opened.readers.registered("t")) == {"r"}
    opened.readers.release_cursors("r", [TopicPartition("t", 1)])
    assert not opened.readers.registered("t")
    assert not opened.readers.cursors()
    opened.assert_survives()


def test_an_erased_group_leaves_nothing_and_a_forgotten_one_its_cursors(opened):
    """Erasing a group removes its cursors and registrations; forgetting a group keeps them."""
    opened.cluster.create_topics([a_topic()])
    for group in ("g", "h", "other"):
        opened.readers.put_group(group, "consumer")
        opened.readers.register_reader("t", group, 1)
        opened.readers.commit_cursors({ReaderPartition(group, *TP): Cursor(1)})
    opened.readers.erase_group("g")
    opened.readers.forget_group("h")
    again = opened.again()
    assert again.readers.groups == {"other": "consumer"}
    assert set(again.readers.registered("t")) == {"h", "other"}
    assert {at.reader for at in again.readers.cursors()} == {"h", "other"}
    opened.assert_survives()


def test_what_a_reader_and_a_topic_have_is_found_without_looking_at_others(opened):
    """The indexes of cursors by reader and by topic follow every change."""
    opened.cluster.create_topics([a_topic()])
    at = {reader: ReaderPartition(reader, *TP) for reader in ("g", "h")}
    opened.readers.commit_cursors({where: Cursor(1) for where in at.values()})
    again = opened.again()
    assert again.readers.cursors_of("g") == [at["g"]]
    assert sorted(again.readers.readers_with_cursors()) == ["g", "h"]
    again.readers.delete_cursors([at["g"]])
    assert not again.readers.has_cursors("g")
    assert again.readers.cursors_of("g") == []
    again.begin_delete("t")
    assert not again.readers.has_cursors("h")
    assert not again.readers.cursors()
    again.cluster.finish_delete("t")
    again.cluster.create_topics([a_topic()])
    again.begin_delete("t")
    assert not again.cluster.topics


def test_a_transaction_moves_its_cursors_in_the_step_that_ends_it(opened, monkeypatch):
    """The transaction's state and its cursors are stored in one write.

    Cursors of deleted topics and partitions are skipped.
    """
    opened.cluster.create_topics([a_topic()])
    cursors = {
        ReaderPartition("g", *TP): Cursor(7),
        ReaderPartition("g", "t", 9): Cursor(7),
        ReaderPartition("g", "gone", 0): Cursor(7),
    }
    writes = []
    txn = opened.store.txn
    monkeypatch.setattr(opened.store, "txn", lambda **how: writes.append(how) or txn(**how))
    opened.readers.put_transaction("tx", {"state": "CompleteCommit"}, cursors)
    assert len(writes) == 1
    assert opened.again().readers.cursors() == {ReaderPartition("g", *TP): Cursor(7)}
    assert opened.again().readers.transactions == {"tx": {"state": "CompleteCommit"}}
    opened.assert_survives()


def test_producer_ids_are_never_given_twice(opened):
    """Producer IDs never repeat, also after a restart, which skips the rest of a reserved block."""
    ids = [opened.readers.new_producer_id() for _ in range(PRODUCER_ID_BLOCK + 5)]
    after = opened.again().readers.new_producer_id()
    assert len(set(ids)) == len(ids)
    assert after > max(ids)


def test_a_line_producer_keeps_its_id(opened):
    """A named producer keeps its ID across restarts; a lower epoch than the last is refused."""
    first = opened.readers.line_producer("sensor")
    assert first == ProducerIdentity(first.producer_id, 0)
    assert opened.again().readers.line_producer("sensor") == first
    assert opened.readers.line_producer("sensor", 4) == ProducerIdentity(first.producer_id, 4)
    assert opened.readers.line_producer("sensor") == ProducerIdentity(first.producer_id, 4)
    with pytest.raises(StaleProducer, match="epoch 4"):
        opened.readers.line_producer("sensor", 3)
    assert opened.readers.line_producer("other").producer_id != first.producer_id
    opened.assert_survives()


def test_transactions_and_replays_survive(opened):
    """Transactions and replays are stored unchanged, survive a restart and can be deleted."""
    opened.readers.put_transaction("tx/1", {"state": "Ongoing", "partitions": [["t", 0]]})
    opened.readers.put_transaction("tx/2", {})
    opened.readers.delete_transaction("tx/2")
    opened.readers.put_replay("2024-01", {"done": 5})
    opened.assert_survives()
    again = opened.again()
    assert again.readers.transactions == {"tx/1": {"state": "Ongoing", "partitions": [["t", 0]]}}
    assert again.readers.replays == {"2024-01": {"done": 5}}
