"""Settings of one consumer group over the Kafka protocol."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.protocol.kafka.messages.configs import (
    ConfigChange,
    ConfigChanges,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from cordwood.protocol.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from support.kafka_services import KafkaServices

GROUP = 32
SET, DELETE = range(2)
SESSION_MS, INTERVAL_MS = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


async def shown(services, group="g"):
    wanted = DescribeConfigsResource(GROUP, group, None)
    request = DescribeConfigsRequest([wanted], include_synonyms=True)
    (found,) = (await services.ask(request)).results
    assert found.error_code == Code.NONE, found.error_message
    return {each.name: (each.value, each.config_source) for each in found.configs}


async def alter(services, *changes, group="g", validate_only=False):
    asked = ConfigChanges(GROUP, group, [ConfigChange(*each) for each in changes])
    (reply,) = (await services.ask(IncrementalAlterConfigsRequest([asked], validate_only))).results
    return reply.error_code, reply.error_message


async def interval_ms(services, group="g"):
    """Join, and return the heartbeat interval that the broker tells the member."""
    joined = await services.ask(
        ConsumerGroupHeartbeatRequest(
            group,
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
    )
    assert joined.error_code == Code.NONE, joined.error_message
    return joined.heartbeat_interval_ms


async def test_a_group_has_the_brokers_timeouts_unless_it_sets_its_own(tmp_path):
    """Its own timeouts are shown with their source, and members are told them at once."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        assert await shown(services) == {INTERVAL_MS: ("5000", 5), SESSION_MS: ("45000", 5)}
        assert await interval_ms(services) == 5000
        changes = (INTERVAL_MS, SET, "7000"), (SESSION_MS, SET, "50000")
        assert await alter(services, *changes) == (Code.NONE, None)
        assert await shown(services) == {INTERVAL_MS: ("7000", 8), SESSION_MS: ("50000", 8)}
        assert await interval_ms(services) == 7000
        assert await interval_ms(services, "other") == 5000
        assert await alter(services, (INTERVAL_MS, DELETE, None)) == (Code.NONE, None)
        assert await interval_ms(services) == 5000


async def test_settings_of_a_group_survive_a_restart(tmp_path):
    """They are stored, also before the group exists, and groups with settings are listed."""
    async with KafkaServices(tmp_path) as services:
        await alter(services, (INTERVAL_MS, SET, "8000"))
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        assert await interval_ms(services) == 8000
        listed = await services.ask(ListConfigResourcesRequest([GROUP]))
        assert [tuple(each) for each in listed.config_resources] == [("g", GROUP)]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        (INTERVAL_MS, "1", "group.consumer.min.heartbeat.interval.ms"),
        (SESSION_MS, "many", "many"),
        ("share.session.timeout.ms", "50000", "no setting share.session.timeout.ms"),
    ],
)
async def test_a_wrong_setting_is_refused_with_the_reason(tmp_path, name, text, word):
    """Bounds are the broker's; nothing of a refused request is kept."""
    async with KafkaServices(tmp_path) as services:
        code, why = await alter(services, (name, SET, text))
        assert (code, word in why) == (Code.INVALID_CONFIG, True), why
        assert await alter(services, (INTERVAL_MS, SET, "9000"), validate_only=True) == (0, None)
        assert (await shown(services))[INTERVAL_MS] == ("5000", 5)


async def test_a_session_outlasts_a_heartbeat_interval(tmp_path):
    """Else members would be removed between two heartbeats."""
    bounds = {
        "group_consumer_min_session_timeout_ms": 1,
        "group_consumer_min_heartbeat_interval_ms": 1,
    }
    async with KafkaServices(tmp_path, **bounds) as services:
        code, why = await alter(services, (SESSION_MS, SET, "4000"))
        assert (code, "must be longer" in why) == (Code.INVALID_CONFIG, True)


async def test_a_group_needs_a_name(tmp_path):
    """The empty name is no group."""
    async with KafkaServices(tmp_path) as services:
        assert (await alter(services, group=""))[0] == Code.INVALID_REQUEST
