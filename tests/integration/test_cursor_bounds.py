"""Only Kafka's OffsetCommit may store a cursor past a partition's end; none exceeds 64 bits."""

from __future__ import annotations

import json

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.errors import OffsetOutOfRange, RequestError
from cordwood.metadata.keys import ReaderPartition, cursor_key
from cordwood.model import OFFSET_MAX, TopicPartition
from cordwood.testing import Broker
from support.http import JsonClient
from support.lines import ask

TP = TopicPartition("t", 0)
WHO = {"topic": "t", "reader": "r", "partition": 0}


@pytest.fixture
def broker(tmp_path):
    """A topic of three records and a registered reader."""
    with Broker(tmp_path / "data", durability="os") as running:
        for number in range(3):
            assert ask(running.control, f"PUT t {number}") == b"OK"
        JsonClient(running.http).post("/api/readers", {"action": "register", **WHO})
        yield running


def cursor(broker: Broker, reader: str = "r") -> int | None:
    """Return the committed offset from Kafka's OffsetFetch."""
    with KafkaClient(broker.kafka) as client:
        return {at.partition: at.offset for at in client.committed(reader)}.get(TP)


@pytest.mark.parametrize("action", ["reset", "advance"])
def test_the_api_takes_a_cursor_up_to_the_end_and_none_past_it(broker, action):
    """An offset past the partition's end is rejected and the cursor does not move."""
    api = JsonClient(broker.http)
    api.post("/api/readers", {"action": action, **WHO, "offset": 3})
    for offset in (4, OFFSET_MAX, OFFSET_MAX + 1, 10**40):
        with pytest.raises(RequestError):
            api.post("/api/readers", {"action": action, **WHO, "offset": offset})
    with pytest.raises(OffsetOutOfRange, match=r"t-0 ends at offset 3.*from 0 to 3"):
        api.post("/api/readers", {"action": action, **WHO, "offset": 4})
    assert cursor(broker) == 3


def test_a_delivery_takes_no_cursor_past_the_end(broker):
    """A delivery with such a cursor is rejected entirely and no cursor moves."""
    at = {"reader": "r", "topic": "t", "partition": 0}
    for offset in (4, OFFSET_MAX + 1):
        options = {"query": "q", "batch": 0, "job": "j", "parts": []}
        with pytest.raises(RequestError):
            JsonClient(broker.http).post(
                "/api/deliveries", {**options, "cursors": [{**at, "start": 0, "offset": offset}]}
            )
    assert JsonClient(broker.http).get("/api/deliveries", query="q") == {"deliveries": {}}
    assert cursor(broker) is None


def test_kafka_clients_may_commit_what_kafka_takes(broker):
    """A Kafka client may commit any 64-bit offset and reads the same offset back."""
    with KafkaClient(broker.kafka) as client:
        for offset in (4, OFFSET_MAX):
            client.commit("g", {TP: offset})
            assert cursor(broker, "g") == offset


def test_a_cursor_past_64_bits_that_an_older_broker_stored_is_read_as_the_largest(broker):
    """OffsetFetch and RECLAIM work, and the reader can be reset to a valid offset."""
    broker.stop()
    _store_cursor(broker, ReaderPartition("r", *TP), 10**30)
    broker.start()
    assert cursor(broker) == OFFSET_MAX
    assert JsonClient(broker.http).get("/api/readers")["readers"][0]["lag"] == 0
    assert ask(broker.control, "RECLAIM t").startswith(b"OK")
    JsonClient(broker.http).post("/api/readers", {"action": "reset", **WHO, "offset": 1})
    assert cursor(broker) == 1


def _store_cursor(broker: Broker, where: ReaderPartition, offset: int) -> None:
    """Store a cursor without a bounds check, as older brokers did."""
    from cordwood.clock import SystemClock
    from cordwood.metadata.sqlite import SqliteStore

    store = SqliteStore(broker.data / "meta.db", SystemClock())
    fields = {"offset": offset, "metadata": "", "leader_epoch": -1, "commit_ms": 0}
    store.txn({}, {cursor_key(where): json.dumps(fields).encode()})
    store.close()
