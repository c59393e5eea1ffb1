"""MirrorMaker 2 copies topics, their settings and group offsets from one broker to another."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from cordwood.testing import Broker
from support.ecosystem import JARS, java, needs_program, properties, wait_until
from support.kafka_clients import Confluent, Sent, create_topic

pytestmark = [needs_program("connect"), pytest.mark.slow, pytest.mark.timeout(900)]


def mirror(source: str, target: str) -> dict[str, object]:
    """Settings of a dedicated MirrorMaker that keeps topic names and follows groups."""
    return {
        "clusters": "a, b", "a.bootstrap.servers": source, "b.bootstrap.servers": target,
        "a->b.enabled": "true", "b->a.enabled": "false", "topics": "orders", "groups": "billing",
        "replication.factor": 1, "checkpoints.topic.replication.factor": 1,
        "heartbeats.topic.replication.factor": 1, "offset-syncs.topic.replication.factor": 1,
        "offset.storage.replication.factor": 1, "status.storage.replication.factor": 1,
        "config.storage.replication.factor": 1, "offset.lag.max": 0,
        "sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": 1,
        "emit.checkpoints.interval.seconds": 1, "refresh.groups.interval.seconds": 1,
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    }  # fmt: skip


def consumer(address: str) -> confluent_kafka.Consumer:
    """A member of the group that is followed."""
    return confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "billing"})


def offset_of_group(address: str, partition: int) -> int:
    """Return the committed offset."""
    member = consumer(address)
    asked = [confluent_kafka.TopicPartition("orders", partition)]
    try:
        return int(member.committed(asked, timeout=20)[0].offset)
    finally:
        member.close()


def ends(address: str) -> list[int]:
    """Return the end offset of each partition, or nothing while there is no topic."""
    member = consumer(address)
    try:
        partitions = [confluent_kafka.TopicPartition("orders", at) for at in range(2)]
        return [member.get_watermark_offsets(each, timeout=20)[1] for each in partitions]
    except confluent_kafka.KafkaException:
        return []
    finally:
        member.close()


def records_of(address: str, partition: int, count: int) -> list[tuple[object, ...]]:
    """Read a partition from its start."""
    member = consumer(address)
    member.assign([confluent_kafka.TopicPartition("orders", partition, 0)])
    try:
        read = [member.poll(20) for _ in range(count)]
        return [(each.key(), each.value(), each.headers(), each.timestamp()) for each in read]
    finally:
        member.close()


def policy_of(address: str) -> str:
    """Return the topic's cleanup policy."""
    admin = AdminClient({"bootstrap.servers": address})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    (future,) = admin.describe_configs([resource]).values()
    return str(future.result(timeout=20)["cleanup.policy"].value)


def test_records_settings_and_group_offsets_are_mirrored(broker, tmp_path):
    """The other broker has the records by partition, the topic's settings, and the group."""
    records = [
        Sent(b"order %d" % number, b"customer %d" % number, (("n", b"%d" % number),))
        for number in range(500)
    ]
    create_topic(broker.kafka, "orders", partitions=2, cleanup_policy="compact")
    Confluent().send(broker.kafka, "orders", records)
    wanted = ends(broker.kafka)
    assert sum(wanted) == 500
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    with Broker(durability="os", group_initial_rebalance_delay_ms=0) as target:
        settings = properties(tmp_path / "mm2.properties", mirror(broker.kafka, target.kafka))
        with java(f"{JARS}/connect/*", main, settings, log=tmp_path / "mm2.log") as running:
            wait_until(lambda: ends(target.kafka) == wanted, running)
            member = consumer(broker.kafka)
            end = confluent_kafka.TopicPartition("orders", 0, wanted[0])
            member.commit(offsets=[end], asynchronous=False)
            member.close()
            wait_until(lambda: offset_of_group(target.kafka, 0) == wanted[0], running)
        for partition, count in enumerate(wanted):
            mirrored = records_of(target.kafka, partition, count)
            assert mirrored == records_of(broker.kafka, partition, count)
        assert policy_of(target.kafka) == "compact"
