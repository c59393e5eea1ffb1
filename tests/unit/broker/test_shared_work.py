"""An error in work shared by several requests reaches every request it affects; none hangs."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import TopicPartition
from cordwood.testing import Broker

WAIT_S = 30
TP = TopicPartition("t", 0)


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os") as running:
        yield running


def together(broker: Broker, *works):
    """Start all works in one event loop iteration; return their results or exceptions."""

    async def run():
        async with asyncio.timeout(WAIT_S):
            return await asyncio.gather(*(work() for work in works), return_exceptions=True)

    return broker.run(run)


def test_an_error_while_topics_are_created_reaches_every_waiting_request(broker, monkeypatch):
    """Each waiting request gets the error, and the next topic is created normally."""
    service, store = broker.service.broker.topics, broker.service.broker.store

    def mistake(_):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(store, "create_topics", mistake)
        found = together(
            broker, lambda: service.create("a", 1, {}), lambda: service.create("b", 1, {})
        )
    assert [type(each) for each in found] == [ZeroDivisionError] * 2
    (made,) = together(broker, lambda: service.create("a", 1, {}))
    assert made.name == "a"


def test_a_cursor_that_cannot_be_written_down_is_refused_alone(broker, monkeypatch):
    """A failed cursor commit fails alone; other commits in the same group are stored."""
    readers, state = broker.service.broker.readers, broker.service.broker.metadata.readers
    broker.run(lambda: broker.service.broker.topics.create("t", 1, {}))
    commit = state.commit_cursors
    bad, good = ReaderPartition("bad", *TP), ReaderPartition("good", *TP)

    def commit_unless_bad(cursors):
        if bad in cursors:
            raise ZeroDivisionError
        commit(cursors)

    monkeypatch.setattr(state, "commit_cursors", commit_unless_bad)
    found = together(
        broker,
        lambda: readers.commit({bad: Cursor(0)}),
        lambda: readers.commit({good: Cursor(0)}),
    )
    assert [type(each) for each in found] == [ZeroDivisionError, type(None)]
    assert state.cursor(good) == Cursor(0)
