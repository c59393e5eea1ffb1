"""Settings of a broker over the Kafka protocol: Kafka's names, and changes at run time."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.config import BrokerConfig, rows
from cordwood.protocol.kafka.messages.configs import (
    AlterConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigChange,
    ConfigChanges,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from support.kafka_services import KafkaServices

TOPIC, BROKER, LOGGER, CLIENT_METRICS = 2, 4, 8, 16
SET, DELETE, APPEND = range(3)
STATIC, DEFAULT, FOR_THIS, FOR_ALL = 4, 5, 2, 3


async def shown(services, *names, broker="1", kind=BROKER):
    """Return (value, source, read-only) by name; every setting if none is named."""
    wanted = DescribeConfigsResource(kind, broker, list(names) or None)
    request = DescribeConfigsRequest([wanted], include_synonyms=True, include_documentation=True)
    (found,) = (await services.ask(request)).results
    assert found.error_code == Code.NONE, found.error_message
    return {each.name: each for each in found.configs}


async def value(services, name, **where):
    each = (await shown(services, name, **where))[name]
    return each.value, each.config_source


async def alter(services, *changes, broker="1", validate_only=False):
    """Change settings of the broker; return code and message."""
    asked = ConfigChanges(BROKER, broker, [ConfigChange(*each) for each in changes])
    (reply,) = (await services.ask(IncrementalAlterConfigsRequest([asked], validate_only))).results
    return reply.error_code, reply.error_message


async def test_settings_are_shown_by_kafkas_names_too(tmp_path):
    """A setting with another name here has the same value and source under Kafka's name."""
    given = {"auto_create_topics": "false", "offsets_retention_ms": 7_200_000}
    async with KafkaServices(tmp_path, **given) as services:
        found = await shown(services)
        assert (found["auto.create.topics.enable"].value, found["auto.create.topics"].value) == (
            "false",
            "false",
        )
        assert found["offsets.retention.minutes"].value == "120"
        assert found["offsets.retention.minutes"].config_source == STATIC
        assert found["connections.max.idle.ms"].value == "600000"
        assert found["log.retention.check.interval.ms"].config_source == DEFAULT
        assert found["log.segment.bytes"].value == found["segment.bytes"].value == "1073741824"
        assert found["message.max.bytes"].value == "1048588"
        assert found["process.roles"].read_only
        assert all(each.documentation for each in found.values() if each.synonyms)


async def test_a_unit_that_does_not_hold_the_value_is_not_shown(tmp_path):
    """90 seconds are no whole number of minutes, so only the milliseconds are shown."""
    async with KafkaServices(tmp_path, offsets_retention_ms=90_000) as services:
        found = await shown(services)
        assert found["offsets.retention.ms"].value == "90000"
        assert "offsets.retention.minutes" not in found


async def test_what_can_change_at_run_time_is_not_read_only(tmp_path):
    """The dynamic rows of the table and the defaults of topics can change; the others cannot."""
    async with KafkaServices(tmp_path) as services:
        found = await shown(services)
        for name, (_, _, row) in rows(BrokerConfig).items():
            assert found[name].read_only is not row.is_dynamic, name
        assert not found["log.retention.ms"].read_only
        assert found["durability"].read_only


async def test_a_setting_changes_at_run_time_and_is_kept(tmp_path):
    """It takes effect at once, wins over flag, variable and file, and survives a restart."""
    async with KafkaServices(tmp_path, num_partitions=2) as services:
        assert await value(services, "num.partitions") == ("2", STATIC)
        assert await alter(services, ("num.partitions", SET, "5")) == (Code.NONE, None)
        assert len((await services.topics.ensure("made")).slots) == 5
    async with KafkaServices(tmp_path, num_partitions=2) as services:
        each = (await shown(services, "num.partitions"))["num.partitions"]
        assert [tuple(one) for one in each.synonyms] == [
            ("num.partitions", "5", FOR_THIS),
            ("num.partitions", "2", STATIC),
            ("num.partitions", "1", DEFAULT),
        ]
        assert services.settings.current.num_partitions == 5
        assert await alter(services, ("num.partitions", DELETE, None)) == (Code.NONE, None)
        assert await value(services, "num.partitions") == ("2", STATIC)


async def test_a_setting_of_all_brokers_gives_way_to_one_of_this_broker(tmp_path):
    """The empty name is the level of all brokers; its description lists only what is set there."""
    async with KafkaServices(tmp_path) as services:
        await alter(services, ("offsets.retention.minutes", SET, "60"), broker="")
        assert await value(services, "offsets.retention.ms") == ("3600000", FOR_ALL)
        await alter(services, ("offsets.retention.ms", SET, "120000"))
        assert await value(services, "offsets.retention.minutes") == ("2", FOR_THIS)
        common = await shown(services, broker="")
        assert {name: each.value for name, each in common.items()} == {
            "offsets.retention.ms": "3600000",
            "offsets.retention.minutes": "60",
        }


async def test_topics_follow_a_default_that_changes_at_run_time(tmp_path):
    """Existing and new topics take it, unless they set it themselves; also after a restart."""
    async with KafkaServices(tmp_path) as services:
        await services.create("plain")
        await services.create("own", retention_ms="1000")
        assert await alter(services, ("log.retention.ms", SET, "5000")) == (Code.NONE, None)
        await services.create("later")
        for name, expected in (("plain", 5000), ("own", 1000), ("later", 5000)):
            topic = services.topics.get(name)
            assert topic.config.retention_ms == expected
            assert topic.partition(0).config.retention_ms == expected
        assert await value(services, "retention.ms", kind=TOPIC, broker="plain") == ("5000", 2)
    async with KafkaServices(tmp_path) as services:
        assert services.topics.get("plain").config.retention_ms == 5000


async def test_a_default_that_a_topic_cannot_follow_is_refused(tmp_path):
    """The dead-letter topic cannot be compacted, so compaction cannot become the default."""
    async with KafkaServices(tmp_path) as services:
        await services.create("dead_letter")
        code, text = await alter(services, ("log.cleanup.policy", SET, "compact"))
        assert (code, "topic dead_letter" in text) == (Code.INVALID_CONFIG, True)
        assert await value(services, "log.cleanup.policy") == ("delete", DEFAULT)


async def test_a_list_is_appended_to(tmp_path):
    """Append adds to the value in effect; a setting that is no list cannot be appended to."""
    async with KafkaServices(tmp_path) as services:
        assert await alter(services, ("log.cleanup.policy", APPEND, "compact")) == (0, None)
        assert (await value(services, "cleanup.policy"))[0] == "delete,compact"
        code, _ = await alter(services, ("num.partitions", APPEND, "1"))
        assert code == Code.INVALID_CONFIG


async def test_validation_changes_nothing(tmp_path):
    """A validation returns the code of the real change."""
    async with KafkaServices(tmp_path) as services:
        assert await alter(services, ("num.partitions", SET, "5"), validate_only=True) == (0, None)
        code, _ = await alter(services, ("num.partitions", SET, "0"), validate_only=True)
        assert code == Code.INVALID_CONFIG
        assert await value(services, "num.partitions") == ("1", DEFAULT)


@pytest.mark.parametrize(
    ("name", "text", "code", "word"),
    [
        ("durability", "os", Code.INVALID_REQUEST, "durability cannot be changed while"),
        ("node.id", "2", Code.INVALID_CONFIG, "unknown setting node.id"),
        ("num.partition", "2", Code.INVALID_CONFIG, "did you mean num.partitions?"),
        ("num.partitions", "many", Code.INVALID_CONFIG, "num.partitions"),
    ],
)
async def test_what_cannot_change_is_refused_by_name(tmp_path, name, text, code, word):
    """The refusal names the setting, and nothing of the request is applied."""
    async with KafkaServices(tmp_path) as services:
        refused = await alter(services, ("scrub.interval.ms", SET, "5000"), (name, SET, text))
        assert refused[0] == code
        assert word in refused[1]
        assert await value(services, "scrub.interval.ms") == ("604800000", DEFAULT)


async def test_one_setting_by_two_names_is_refused(tmp_path):
    """Kafka's name and ours are the same setting."""
    async with KafkaServices(tmp_path) as services:
        changes = ("idle.timeout.ms", SET, "1000"), ("connections.max.idle.ms", SET, "2000")
        code, text = await alter(services, *changes)
        assert (code, "named twice" in text) == (Code.INVALID_REQUEST, True)


async def test_a_replacement_resets_what_it_does_not_name(tmp_path):
    """AlterConfigs leaves exactly the named settings set at run time."""
    async with KafkaServices(tmp_path) as services:
        await alter(services, ("num.partitions", SET, "5"), ("scrub.interval.ms", SET, "5000"))
        named = [AlterConfig("num.partitions", "6")]
        request = AlterConfigsRequest([AlterConfigsResource(BROKER, "1", named)], False)
        assert (await services.ask(request)).results[0].error_code == Code.NONE
        assert await value(services, "num.partitions") == ("6", FOR_THIS)
        assert await value(services, "scrub.interval.ms") == ("604800000", DEFAULT)


async def test_a_stored_setting_that_is_refused_now_does_not_stop_the_broker(tmp_path, caplog):
    """A later release may refuse what an earlier one stored: it is logged and left out."""
    async with KafkaServices(tmp_path) as services:
        stored = {"num.partitions": "5", "gone.setting": "1", "durability": "os"}
        services.store.metadata.cluster.put_config("broker", "1", stored)
    async with KafkaServices(tmp_path) as services:
        assert services.settings.current.num_partitions == 5
    assert "gone.setting" in caplog.text
    assert "durability" in caplog.text


@pytest.mark.parametrize("kind", [BROKER, LOGGER])
async def test_there_is_one_broker(tmp_path, kind):
    """Another broker, or loggers of all brokers, cannot be described or changed."""
    async with KafkaServices(tmp_path) as services:
        for name in ("7", "") if kind == LOGGER else ("7",):
            request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)])
            (found,) = (await services.ask(request)).results
            assert found.error_code == Code.INVALID_REQUEST
        assert (await alter(services, broker="7"))[0] == Code.INVALID_REQUEST


async def test_resources_with_settings_are_listed(tmp_path):
    """All types, or those asked for; version 0 lists client metrics, of which there are none."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")

        async def listed(*types, version=1):
            reply = await services.ask(ListConfigResourcesRequest(types), version)
            return reply.error_code, [tuple(each) for each in reply.config_resources]

        every = [("t", TOPIC), ("1", BROKER), ("1", LOGGER)]
        code, found = await listed()
        assert (code, [each for each in found if each in every]) == (Code.NONE, every)
        assert await listed(TOPIC, CLIENT_METRICS) == (Code.NONE, [("t", TOPIC)])
        assert await listed(version=0) == (Code.NONE, [])
        assert await listed(99) == (Code.UNSUPPORTED_VERSION, [])
