"""Drain: one step acknowledges all routes for a reader, or nothing."""

from __future__ import annotations

import pytest

from cordwood.client.blocking import Client
from cordwood.client.http import HttpClient
from cordwood.errors import UnknownReader, UnknownTopic
from cordwood.protocol.api.readers import ChangeReader, DrainReader, SetRoute
from cordwood.protocol.api.topics import ReclaimTopics
from cordwood.testing import Broker
from support.deliveries import a_delivery, deliver, ensure, stage


class Routes:
    """A broker whose router has delivered three records to topic a and one to topic b."""

    def __init__(self, broker):
        self.broker = broker
        self.http = HttpClient(broker.http)
        ensure(broker, "in", "dead_letter")
        stage(broker, "job", x="1 2", y="3", z="4")
        assert deliver(broker, a_delivery(query="route.in"))

    def register(self, *topics, reader="r"):
        for topic in topics:
            self.http.call(ChangeReader("register", topic, reader))

    def drain(self, *topics, reader="r", **how):
        return self.http.call(DrainReader(reader, topics, **how))

    def cursors(self, reader="r"):
        state = self.broker.service.broker.store.metadata.readers
        return {
            where.topic: cursor.offset
            for where, cursor in state.cursors().items()
            if where.reader == reader
        }

    def registered(self, topic):
        return set(self.broker.service.broker.store.metadata.readers.registered(topic))


@pytest.fixture
def routes():
    with Broker(ingress_topic="in", durability="os") as broker:
        yield Routes(broker)


def drained(reply):
    return [(row.topic, row.start, row.end, row.records) for row in reply.partitions]


def test_every_route_of_the_reader_is_acknowledged(routes):
    """Cursors move to the high watermark; the ingress and dead-letter topics are no routes."""
    routes.register("a", "b", "in", "dead_letter")
    assert drained(routes.drain()) == [("a", 0, 3, 3), ("b", 0, 1, 1)]
    assert routes.cursors() == {"a": 3, "b": 1}
    assert drained(routes.drain()) == [("a", 3, 3, 0), ("b", 1, 1, 0)]


def test_a_route_on_which_the_reader_is_not_registered_is_skipped_and_named(routes):
    """Without ``register`` nobody becomes a reader of a topic by draining it."""
    routes.register("a")
    reply = routes.drain()
    assert drained(reply) == [("a", 0, 3, 3)]
    assert reply.skipped == ("b",)
    assert routes.registered("b") == set()


def test_the_reader_is_registered_where_that_is_asked_for(routes):
    """With ``register`` the reader is registered and acknowledged on all routes."""
    assert drained(routes.drain(register=True)) == [("a", 0, 3, 3), ("b", 0, 1, 1)]
    assert (routes.registered("a"), routes.registered("b")) == ({"r"}, {"r"})
    assert routes.cursors() == {"a": 3, "b": 1}


def test_a_dry_run_tells_and_changes_nothing(routes):
    """The reply is that of the real drain."""
    told = routes.drain(register=True, dry_run=True)
    assert routes.cursors() == {}
    assert routes.registered("a") == set()
    assert routes.drain(register=True) == told


def test_named_topics_and_the_ingress_are_drained_on_request(routes):
    """``topics`` replaces the routes; ``ingress`` adds the ingress topic."""
    routes.register("a", "in", "dead_letter")
    assert drained(routes.drain("dead_letter", ingress=True)) == [
        ("dead_letter", 0, 0, 0),
        ("in", 0, 100, 100),
    ]
    assert routes.cursors() == {"dead_letter": 0, "in": 100}


def test_a_reader_that_is_registered_nowhere_is_an_error(routes):
    """So is a named topic without the reader, and one that does not exist: nothing moves."""
    with pytest.raises(UnknownReader, match="not registered on a, b; register it there first"):
        routes.drain()
    routes.register("a")
    with pytest.raises(UnknownReader, match="not registered on b"):
        routes.drain("a", "b")
    with pytest.raises(UnknownTopic):
        routes.drain("a", "absent")
    assert routes.cursors() == {}


def test_no_routes_at_all_is_said():
    """A broker that routes nothing has nothing to drain."""
    with Broker(durability="os") as broker, pytest.raises(UnknownReader, match="there is no route"):
        HttpClient(broker.http).call(DrainReader("r"))


def test_bound_topics_and_topics_that_wait_for_the_reader_are_routes(routes):
    """A binding names a route, and so does policy consume with the reader registered."""
    routes.http.call(SetRoute("exact", "k.1", "bound"))
    ensure(routes.broker, "bound")
    with Client(routes.broker.control) as client:
        client.register("waiting", "r")
        client.configure("waiting", {"cleanup.policy": "consume"})
        client.register("plain", "r")
    routes.register("a", "b", "bound")
    names = [row.topic for row in routes.drain().partitions]
    assert names == ["a", "b", "bound", "waiting"]


def test_what_is_released_is_what_reclaim_then_deletes(routes):
    """A segment that another reader needs is not released."""
    with Client(routes.broker.control) as client:
        client.cut("a")
        client.cut("b")
    routes.register("a", "b")
    routes.register("b", reader="slow")
    rows = {row.topic: row for row in routes.drain().partitions}
    assert (rows["a"].released_segments, rows["b"].released_segments) == (1, 0)
    assert (rows["a"].released_bytes > 0, rows["b"].released_bytes) == (True, 0)
    assert routes.http.call(ReclaimTopics()).dropped == 1


def test_the_line_protocol_drains_too(routes):
    """``DRAIN <reader> [<topic>]`` replies with the number of acknowledged records."""
    routes.register("a", "b")
    with Client(routes.broker.control) as client:
        assert client.drain("r", "b") == 1
        assert client.drain("r") == 3
        with pytest.raises(UnknownReader):
            client.drain("nobody")
    assert routes.cursors() == {"a": 3, "b": 1}


def test_all_partitions_of_a_route_are_acknowledged():
    """A route may have several partitions, each with a cursor of its own."""
    with Broker(durability="os", num_partitions=3, cleanup_policy="consume") as broker:
        with Client(broker.control) as client:
            client.register("t", "r")
            for number in range(5):
                client.put("t", b"%d" % number)
            assert client.drain("r") == 5
        cursors = broker.service.broker.store.metadata.readers.registered_positions
        ends = [cursors(part.tp)["r"] for part in broker.service.broker.store.partitions("t")]
        assert ends == [2, 2, 1]
