"""Kafka's topic settings through real clients: all accepted, and those with an effect have it."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as OtherNewTopic

from cordwood import testing
from cordwood.settings.kafka_names import TOPIC_SETTINGS
from support.kafka_clients import PATIENCE_S, Confluent, Sent, create_topic


@pytest.fixture(scope="module")
def broker():
    """A broker that acknowledges from the page cache."""
    with testing.Broker(durability="os", pipeline="off") as running:
        yield running


def test_topic_with_every_setting_of_kafka_is_created(broker):
    """A topic definition that states all of Kafka's settings with its defaults is accepted."""
    settings = {name: each.default for name, each in TOPIC_SETTINGS.items()}
    create_topic(broker.kafka, "every", **{k.replace(".", "_"): v for k, v in settings.items()})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "every")
    described = admin.describe_configs([resource])[resource].result(timeout=PATIENCE_S)
    assert {name: described[name].value for name in settings} == settings


def test_kafka_python_creates_a_topic_with_replication_settings(broker):
    """kafka-python creates a topic as common topic definitions ask for it."""
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    wanted = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    admin.create_topics([OtherNewTopic("other", 1, 1, topic_configs=wanted)])
    assert "other" in admin.list_topics()
    admin.close()


def test_tiered_storage_is_refused_and_nothing_is_created(broker):
    """remote.storage.enable=true is refused with a reason, and the topic does not exist."""
    with pytest.raises(confluent_kafka.KafkaException, match="there is no tiered storage"):
        create_topic(broker.kafka, "tiered", remote_storage_enable="true")
    topics = AdminClient({"bootstrap.servers": broker.kafka}).list_topics(timeout=PATIENCE_S).topics
    assert "tiered" not in topics


def test_acks_all_needs_min_insync_replicas(broker):
    """With min.insync.replicas=2, acks=all gets NOT_ENOUGH_REPLICAS and acks=1 succeeds."""
    create_topic(broker.kafka, "two", min_insync_replicas=2)
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        Confluent().send(
            broker.kafka, "two", [Sent(b"x")], acks=-1, **{"message.send.max.retries": 0}
        )
    assert refusal.value.args[0].code() == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS
    Confluent().send(broker.kafka, "two", [Sent(b"y")], acks=1)
    assert broker.service.broker.store.topic("two").partition(0).high_watermark == 1


def test_flush_messages_syncs_where_appends_are_not_synced(broker):
    """With flush.messages=1 every acknowledged record is on the device, whatever the durability."""
    create_topic(broker.kafka, "flushed", flush_messages=1)
    create_topic(broker.kafka, "lazy")
    for topic in ("flushed", "lazy"):
        Confluent().send(broker.kafka, topic, [Sent(b"first")])  # opens the segment, with a sync
    stats = broker.service.broker.writer.stats
    before = stats.syncs
    Confluent().send(broker.kafka, "lazy", [Sent(b"x")])
    assert stats.syncs == before
    Confluent().send(broker.kafka, "flushed", [Sent(b"x")])
    assert stats.syncs == before + 1
