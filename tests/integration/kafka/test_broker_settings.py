"""Broker settings through real clients: changed while the broker runs, in effect, and kept."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.admin import ConfigResource as OtherResource
from kafka.admin import ConfigResourceType as OtherType
from kafka.errors import SecurityDisabledError
from typer.testing import CliRunner

from cordwood import testing
from cordwood.cli.app import app
from support.kafka_clients import PATIENCE_S, Confluent, Sent, create_topic

THIS = ConfigResource(ConfigResource.Type.BROKER, "1")


@pytest.fixture
def broker(tmp_path):
    """A broker whose data is kept over a restart."""
    with testing.Broker(tmp_path / "data", durability="os", pipeline="off") as running:
        yield running


def described(broker):
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    return admin.describe_configs([THIS])[THIS].result(timeout=PATIENCE_S)


def alter(broker, operation=AlterConfigOpType.SET, **settings):
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=operation)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.incremental_alter_configs([resource])[resource].result(timeout=PATIENCE_S)


def test_librdkafka_changes_the_broker_and_a_restart_keeps_it(broker):
    """A limit and a default of topics take effect at once; a restart and ``config show`` know."""
    create_topic(broker.kafka, "t")
    alter(broker, message_max_bytes="2000", auto_create_topics_enable="false")
    with pytest.raises(confluent_kafka.KafkaException, match="MSG_SIZE_TOO_LARGE"):
        Confluent().send(broker.kafka, "t", [Sent(bytes(3000), b"k")])
    broker.restart()
    shown = described(broker)
    assert shown["message.max.bytes"].value == "2000"
    assert shown["message.max.bytes"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
    assert shown["auto.create.topics"].value == "false"
    printed = CliRunner().invoke(
        app, ["config", "show", "--format", "json"], env={"CORDWOOD_DATA": str(broker.data)}
    )
    rows = {row["setting"]: row for row in json.loads(printed.stdout)}
    assert rows["max.message.bytes"] == {
        "setting": "max.message.bytes",
        "value": "2000",
        "source": "dynamic",
    }
    alter(broker, AlterConfigOpType.DELETE, message_max_bytes=None)
    Confluent().send(broker.kafka, "t", [Sent(bytes(3000), b"k")])


def test_librdkafka_is_told_what_needs_a_restart(broker):
    """The error names the setting and says what to do."""
    with pytest.raises(confluent_kafka.KafkaException, match="durability cannot be changed while"):
        alter(broker, durability="fsync")


def test_limits_of_connections_change_at_run_time(broker):
    """Listeners and requests take new limits without a restart."""
    alter(
        broker,
        connections_max_idle_ms="1234",
        socket_request_max_bytes="2000000",
        request_elements_max="2000",
        message_inflated_bytes_max="2000000",
        monitor_interval_ms="50",
    )
    service = broker.service
    assert {each.idle_timeout_s for each in service.server.listeners.values()} == {1.234}
    assert service.broker.kafka.elements_max == 2000
    assert service.broker.produce.inflated_bytes_max == 2_000_000


def test_kafka_python_administers_loggers_quorum_acls_and_resources(broker):
    """Its admin client gets an answer for each of the APIs that it has."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.kafka)) as admin:
        before = logging.getLogger("cordwood.log").level
        try:
            debug = OtherResource(OtherType.BROKER_LOGGER, "1", {"cordwood.log": "DEBUG"})
            admin.alter_configs([debug])
            assert logging.getLogger("cordwood.log").isEnabledFor(logging.DEBUG)
        finally:
            logging.getLogger("cordwood.log").setLevel(before)
        assert admin.get_broker_version_data(1).broker_version >= (4, 0)
        (topic,) = admin.describe_metadata_quorum()["topics"]
        assert topic["partitions"][0]["leader_id"] == 1
        anything = ACLFilter(
            None, None, ACLOperation.ANY, ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )  # fmt: skip
        with pytest.raises(SecurityDisabledError):
            admin.describe_acls(anything)


async def test_aiokafka_describes_the_broker(broker):
    """Its admin client reads Kafka's names."""
    from aiokafka.admin.config_resource import ConfigResource as Resource
    from aiokafka.admin.config_resource import ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=broker.kafka)
    await admin.start()
    try:
        (reply,) = await admin.describe_configs([Resource(ConfigResourceType.BROKER, "1")])
    finally:
        await admin.close()
    names = {entry[0]: entry[1] for entry in reply.resources[0][4]}
    assert names["log.retention.ms"] == "604800000"
