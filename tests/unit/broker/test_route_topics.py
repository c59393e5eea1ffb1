"""The policy of topics that are created for routing, and what their segments wait for."""

from __future__ import annotations

import pytest

from cordwood.broker.topics import plan_settings
from cordwood.client.blocking import Client
from cordwood.client.http import HttpClient
from cordwood.config import BrokerConfig, changed
from cordwood.errors import ConfigError, InvalidConfig, UnknownTopic
from cordwood.protocol.api.readers import SetRoute
from cordwood.protocol.api.topics import ListHeld, ListTopics, ReclaimTopics
from cordwood.testing import Broker
from support.deliveries import a_delivery, deliver, ensure, stage

CONSUME = {"cleanup.policy": "consume"}


def own_settings(broker, topic):
    return dict(broker.service.broker.store.topic(topic).overrides)


def route_batch(broker):
    """Deliver a batch of the router, which creates the topics a and b."""
    ensure(broker, "in")
    stage(broker, "job", x="1 2", y="3", z="4")
    assert deliver(broker, a_delivery(query="route.in"))


def seal(client, topic, records=2):
    """Append records to a topic and seal them as one segment."""
    for number in range(records):
        client.put(topic, f"record {number}".encode())
    client.cut(topic)


def test_topics_of_routing_keep_what_no_reader_has_passed():
    """The router's targets, the ingress and the dead-letter topic have the policy consume."""
    with Broker(ingress_topic="in", durability="os") as broker:
        route_batch(broker)
        ensure(broker, "dead_letter", "other")
        for topic in ("in", "a", "b", "dead_letter"):
            assert own_settings(broker, topic) == CONSUME, topic
        assert own_settings(broker, "other") == {}


def test_targets_of_other_queries_are_plain_topics():
    """A topic that a Spark sink creates follows the broker's defaults."""
    with Broker(durability="os") as broker:
        stage(broker, "job", x="1 2", y="3", z="4")
        assert deliver(broker, a_delivery()._replace(cursors={}))
        assert own_settings(broker, "a") == {}


def test_a_bound_topic_is_a_route_whoever_creates_it():
    """A consumer may ask for the topic of a binding before the first record is routed to it."""
    with Broker(durability="os") as broker:
        HttpClient(broker.http).call(SetRoute("prefix", "jobs", "work"))
        ensure(broker, "work", "jobs")
        assert own_settings(broker, "work") == CONSUME
        assert own_settings(broker, "jobs") == {}


def test_an_existing_topic_is_not_changed_by_routing():
    """Routing to a topic that someone created leaves its settings as they are."""
    with Broker(ingress_topic="in", durability="os") as broker:
        ensure(broker, "a")
        route_batch(broker)
        assert own_settings(broker, "a") == {}
        assert own_settings(broker, "b") == CONSUME


def test_the_policy_and_a_time_limit_can_be_chosen():
    """``routes.retention.ms`` is a hard limit; it drops what nobody has consumed."""
    config = changed(
        BrokerConfig(), {"routes.cleanup.policy": "delete,consume", "routes.retention.ms": "5000"}
    )
    own = plan_settings(config, "r", is_route=True)
    assert own == {
        "cleanup.policy": frozenset({"delete", "consume"}),
        "retention.hard.ms": 5000,
    }
    assert plan_settings(config, "r", is_route=False) == {}


def test_routes_cannot_be_compacted_by_default():
    """Dead letters cannot be compacted, nor records without a key."""
    with pytest.raises((ConfigError, InvalidConfig), match="'compact' is not one of"):
        changed(BrokerConfig(), {"routes.cleanup.policy": "compact"})


def test_a_route_without_a_reader_keeps_its_segments_and_says_why():
    """Nothing is reclaimed; the API names the missing reader, then the reader that is behind."""
    with Broker(durability="os", retention_ms=0, ingress_topic="r") as broker:
        http = HttpClient(broker.http)
        with Client(broker.control) as client:
            seal(client, "r")
            assert http.call(ReclaimTopics("r")).dropped == 0
            (held,) = http.call(ListHeld("r")).held
            assert (held.holder, held.readers, held.segments) == ("no_reader", (), 1)
            assert held.size_bytes > 0
            client.register("r", "slow")
            (held,) = http.call(ListHeld()).held
            assert (held.holder, held.readers) == ("readers", ("slow",))
            client.ack("r", "slow", 2)
            assert http.call(ListHeld()).held == ()
            assert http.call(ReclaimTopics("r")).dropped == 1
        with pytest.raises(UnknownTopic):
            http.call(ListHeld("absent"))


def test_topic_details_tell_what_sets_each_setting():
    """The API names the topic or the broker for every setting that is not built in."""
    with Broker(durability="os", segment_entries=7) as broker:
        ensure(broker, "append")
        (topic,) = HttpClient(broker.http).call(ListTopics("append")).topics
        assert topic.config == {"cleanup.policy": "consume", "segment.entries": "7"}
        assert topic.sources == {"cleanup.policy": "topic", "segment.entries": "broker"}
