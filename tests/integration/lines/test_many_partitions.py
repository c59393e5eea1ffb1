"""A broker with more partitions than it opens at start serves them all and finds damage."""

from __future__ import annotations

import json

import pytest

from cordwood.client.kafka import EARLIEST, LATEST, KafkaClient
from cordwood.log.lifecycle.store import EAGER_MAX
from cordwood.model import TopicPartition
from support.lines import Served, Wire, ask, http_get, until
from support.stores import append, open_store

COUNT = EAGER_MAX + 50


@pytest.fixture
def data(tmp_path):
    """Data of a topic with many partitions and one with a single partition, one record each."""
    store = open_store(tmp_path / "data")
    store.create_topic("many", COUNT)
    store.create_topic("one", 1)
    for partition in [*store.partitions("many"), *store.partitions("one")]:
        append(partition, "x")
    store.close()
    return store.data


def serving(data):
    return Served(data, durability="os", kafka="127.0.0.1:0")


def unopened(served):
    return served.metrics()["cordwood_partitions_unopened"]


def test_every_listener_serves_what_is_not_open_yet(data):
    """Every listener serves partitions that are not open yet, from the first request on."""
    with serving(data) as served:
        with Wire(served.control) as wire:
            assert wire.ask(b"GET_ACK one") == b"ACK 1"
            assert json.loads(wire.ask(b"STATE one"))["next_seq"] == 2
            assert wire.ask(b"PUT one y") == b"OK"
        with KafkaClient(served.addresses["kafka"]) as client:
            assert len(client.partitions("many")) == COUNT
            for number in (0, COUNT - 1):
                tp = TopicPartition("many", number)
                assert [client.offset(tp, at) for at in (EARLIEST, LATEST)] == [0, 1]
        status, body = http_get(served.http, "/api/topics?name=many")
        ends = [part["high_watermark"] for part in json.loads(body)["topics"][0]["partitions"]]
        assert (status, ends) == (200, [1] * COUNT)
        assert served.stop() == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_all_are_opened_in_time_after_any_end(data, end):
    """After a stop or a kill, all partitions are eventually opened in the background."""
    with serving(data) as served:
        assert ask(served.control, "PUT one y") == b"OK"
        getattr(served, end)()
    with serving(data) as served:
        until(lambda: unopened(served) == 0, "all are open")
        assert ask(served.control, "GET_ACK one") == b"ACK 2"
        assert http_get(served.http, "/readyz")[0] == 200
        assert served.stop() == 0


def test_damage_nobody_has_read_is_reported_soon_after_the_start(data):
    """Opening partitions in the background finds damage: /readyz reports it without a reader.

    Other partitions are served.
    """
    path = data / "many-77" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1])
    with serving(data) as served:
        until(lambda: http_get(served.http, "/readyz")[0] == 503, "the damage is known")
        until(lambda: unopened(served) == 0, "all are open")
        assert "many-77" in http_get(served.http, "/readyz")[1]
        assert ask(served.control, "GET_ACK one") == b"ACK 1"
