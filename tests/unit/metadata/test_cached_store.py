"""The in-memory tables show exactly the durable contents of the store."""

from __future__ import annotations

import pytest

from cordwood.errors import (
    CorruptionError,
    Indefinite,
    UnavailableError,
)
from cordwood.metadata.keys import key, parse_key
from support.metadata import OpenedMetadata, a_topic


@pytest.fixture
def opened(tmp_path):
    opened = OpenedMetadata(tmp_path / "meta.db")
    yield opened
    opened.metadata.close()


def test_a_failed_write_leaves_memory_as_the_store_is(opened, monkeypatch):
    """A failed write does not change the tables in memory."""
    monkeypatch.setattr(opened.store, "txn", _raises(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        opened.cluster.create_topics([a_topic()])
    assert opened.cluster.topics == {}


def test_an_indefinite_write_makes_memory_follow_the_store(opened, monkeypatch):
    """After a write with an unknown outcome, the tables are read from the store again."""
    txn = opened.store.txn

    def held_but_unheard(**arguments):
        txn(**arguments)
        raise Indefinite("no answer")

    monkeypatch.setattr(opened.store, "txn", held_but_unheard)
    with pytest.raises(Indefinite):
        opened.cluster.create_topics([a_topic()])
    assert "t" in opened.cluster.topics


def test_a_change_by_another_process_is_noticed(opened):
    """A concurrent change by another process is not overwritten; the caller must try again."""
    other = opened.again()
    other.cluster.create_topics([a_topic(partitions=5)])
    with pytest.raises(UnavailableError, match="try again"):
        opened.cluster.create_topics([a_topic()])
    assert opened.cluster.topic("t").partitions == 5


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
    """A key or value that does not parse fails the load with an error that names the key."""
    opened.store.txn(put={where: value})
    with pytest.raises(CorruptionError, match=where):
        opened.again()


@pytest.mark.parametrize("name", ["plain", "a/b", "%2F", "", "ü €", "..", "a b\n"])
def test_any_name_survives_its_key(name):
    """Names with slashes, percent signs or other special characters survive encoding in a key."""
    assert parse_key(key("cursor", "t", 3, name)) == ("cursor", ["t", "3", name])


def _raises(error):
    def fail(**_):
        raise error

    return fail


def test_mappings_stay_valid_when_the_store_is_read_again(opened):
    """A mapping that a caller holds shows another process's changes, including deletions."""
    opened.cluster.create_topics([a_topic(), a_topic("old")])
    held = opened.cluster.topics
    other = opened.again()
    other.begin_delete("old")
    other.cluster.create_topics([a_topic("new")])
    with pytest.raises(UnavailableError):
        opened.cluster.create_topics([a_topic("new")])
    assert held is opened.cluster.topics
    assert set(held) == {"t", "new"}
    opened.assert_survives()
