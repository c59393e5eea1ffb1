"""Settings over the Kafka protocol: shown with their source, and changed all or none."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.config import BrokerConfig, TopicConfig, rows
from cordwood.errors import ConfigError, InvalidConfig
from cordwood.protocol.kafka.messages.configs import (
    AlterConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigChange,
    ConfigChanges,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.kafka_services import KafkaServices

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


async def describe(services, kind=TOPIC, name="t", keys=None, version=None, **how):
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, keys)], **how)
    (found,) = (await services.ask(request, version)).results
    return found


async def values(services, *names):
    return {each.name: each.value for each in (await describe(services, keys=list(names))).configs}


async def change(services, *changes, kind=TOPIC, name="t", validate_only=False):
    """Change settings incrementally; return the error code and message."""
    resource = ConfigChanges(kind, name, [ConfigChange(*each) for each in changes])
    request = IncrementalAlterConfigsRequest([resource], validate_only)
    (reply,) = (await services.ask(request)).results
    return reply.error_code, reply.error_message


async def replace(services, validate_only=False, kind=TOPIC, name="t", **config):
    named = [AlterConfig(key.replace("_", "."), value) for key, value in config.items()]
    request = AlterConfigsRequest([AlterConfigsResource(kind, name, named)], validate_only)
    (reply,) = (await services.ask(request)).results
    return reply.error_code


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_setting_of_a_topic_is_shown_with_its_origin(tmp_path, version):
    """The source is the topic or the default. No topic setting is read-only or sensitive."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", retention_ms="-1", segment_bytes="100000")
        found = await describe(services, version=version)
        assert found.error_code == Code.NONE
        shown = {each.name: each for each in found.configs}
        assert set(shown) == set(rows(TopicConfig))
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("-1", 1)
        assert (shown["cleanup.policy"].value, shown["cleanup.policy"].config_source) == (
            "delete",
            5,
        )
        assert not any(each.read_only or each.is_sensitive for each in found.configs)


async def test_synonyms_and_documents_come_when_asked_for(tmp_path):
    """The topic's own value comes first, then the default by Kafka's name for a broker's."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", segment_bytes="100000")
        plain = await describe(services, keys=["segment.bytes"])
        assert (plain.configs[0].synonyms, plain.configs[0].documentation) == ((), None)
        full = await describe(
            services,
            keys=["segment.bytes", "retention.ms"],
            include_synonyms=True,
            include_documentation=True,
        )
        shown = {each.name: each for each in full.configs}
        assert [tuple(each) for each in shown["segment.bytes"].synonyms] == [
            ("segment.bytes", "100000", 1),
            ("log.segment.bytes", "1073741824", 5),
        ]
        assert [each.source for each in shown["retention.ms"].synonyms] == [5]
        assert shown["segment.bytes"].documentation.startswith("Seal the active segment before")


async def test_types_are_kafkas(tmp_path):
    """The types are boolean 1, string 2, int 3, long 5, double 6 and list 7."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        topic = {each.name: each.config_type for each in (await describe(services)).configs}
        assert topic["cleanup.policy"] == 7
        assert topic["segment.bytes"] == 3
        assert topic["retention.ms"] == 5
        assert topic["min.cleanable.dirty.ratio"] == 6
        assert topic["message.timestamp.type"] == 2
        broker = await describe(services, BROKER, "1", ["auto.create.topics"])
        assert broker.configs[0].config_type == 1


async def test_the_broker_tells_where_its_listeners_are(tmp_path):
    """Broker settings show the addresses actually bound; these are read-only."""
    async with KafkaServices(tmp_path, num_partitions=3, http="127.0.0.1:0") as services:
        found = await describe(services, BROKER, "1")
        shown = {each.name: each for each in found.configs}
        assert set(shown) >= set(rows(BrokerConfig))
        assert shown["http"].value == "127.0.0.1:1234"
        assert shown["control"].value == "127.0.0.1:1,127.0.0.1:2"
        assert (shown["num.partitions"].value, shown["num.partitions"].config_source) == ("3", 4)
        assert shown["ingress.topic"].config_source == 5
        assert shown["http"].read_only
        everywhere = await describe(services, BROKER, "")
        assert (everywhere.error_code, everywhere.configs) == (Code.NONE, ())


async def test_the_broker_answers_to_kafkas_names_too(tmp_path):
    """Kafka's names for listeners, log directories and node id also work."""
    async with KafkaServices(tmp_path) as services:
        services.addresses = {"kafka": ["127.0.0.1:9"], "kafka_tls": ["127.0.0.1:10"]}
        names = ["advertised.listeners", "listeners", "log.dirs", "node.id", "broker.id"]
        found = await describe(services, BROKER, "1", names)
        shown = {each.name: each.value for each in found.configs}
        both = "PLAINTEXT://127.0.0.1:9,SSL://127.0.0.1:10"
        assert shown == {
            "advertised.listeners": both,
            "listeners": both,
            "log.dirs": str(tmp_path),
            "node.id": "1",
            "broker.id": "1",
        }


async def test_the_advertised_address_is_shown(tmp_path):
    """``advertised.kafka`` is shown as Kafka's ``advertised.listeners``."""
    async with KafkaServices(tmp_path, advertised_kafka="door.example:9092") as services:
        found = await describe(services, BROKER, "1", ["advertised.listeners"])
        assert [each.value for each in found.configs] == ["PLAINTEXT://door.example:9092"]


async def test_what_is_not_there_cannot_be_described(tmp_path):
    """An unknown resource gets an error code and a message."""
    async with KafkaServices(tmp_path) as services:
        for kind, name, code in (
            (TOPIC, "nope", Code.UNKNOWN_TOPIC_OR_PARTITION),
            (BROKER, "2", Code.INVALID_REQUEST),
            (BROKER, "one", Code.INVALID_REQUEST),
            (16, "1", Code.INVALID_REQUEST),
        ):
            found = await describe(services, kind, name)
            assert found.error_code == code
            assert found.error_message


async def test_a_change_touches_what_it_names(tmp_path):
    """The named settings change immediately and survive a restart; the others keep their values."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", retention_ms="1000", segment_bytes="100000")
        done = await change(services, ("retention.bytes", SET, "5"), ("retention.ms", DELETE, None))
        assert done == (Code.NONE, None)
        partition = services.store.partitions("t")[0]
        assert partition.config.retention_bytes == 5
    async with KafkaServices(tmp_path) as services:
        assert await values(services, "retention.bytes", "retention.ms", "segment.bytes") == {
            "retention.bytes": "5",
            "retention.ms": "604800000",
            "segment.bytes": "100000",
        }


async def test_lists_can_be_appended_to_and_subtracted_from(tmp_path):
    """Only list settings support append and subtract."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        assert (await change(services, ("cleanup.policy", APPEND, "compact, consume")))[0] == 0
        shown = await values(services, "cleanup.policy")
        assert shown == {"cleanup.policy": "delete,compact,consume"}
        assert (await change(services, ("cleanup.policy", SUBTRACT, "delete,compact")))[0] == 0
        assert await values(services, "cleanup.policy") == {"cleanup.policy": "consume"}
        code, text = await change(services, ("retention.ms", APPEND, "1"))
        assert code == Code.INVALID_CONFIG
        assert "not a list" in text


async def test_one_bad_change_keeps_all_from_happening(tmp_path):
    """If one change is invalid, none is applied. The error suggests the nearest setting name."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        code, text = await change(services, ("retention.ms", SET, "5"), ("segment.byte", SET, "9"))
        assert code == Code.INVALID_CONFIG
        assert "segment.bytes" in text
        for bad in (("segment.bytes", SET, "tiny"), ("cleanup.policy", APPEND, "shred")):
            assert (await change(services, ("retention.ms", SET, "5"), bad))[
                0
            ] == Code.INVALID_CONFIG
        for malformed in (
            (("retention.ms", SET, None),),
            (("retention.ms", 4, "5"),),
            (("retention.ms", SET, "5"), ("retention.ms", SET, "6")),
        ):
            assert (await change(services, *malformed))[0] == Code.INVALID_REQUEST
        assert (await change(services, ("nope", DELETE, None)))[0] == Code.INVALID_CONFIG
        assert await values(services, "retention.ms") == {"retention.ms": "604800000"}


async def test_a_replacement_resets_what_it_does_not_name(tmp_path):
    """AlterConfigs resets the settings it does not name, as in Kafka."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", retention_ms="1000", segment_bytes="100000")
        assert await replace(services, retention_ms="2000") == Code.NONE
        assert await values(services, "retention.ms", "segment.bytes") == {
            "retention.ms": "2000",
            "segment.bytes": "1073741824",
        }
        assert await replace(services, retention_ms=None) == Code.NONE
        assert services.metadata.cluster.topic("t").config == {}


async def test_validation_changes_nothing(tmp_path):
    """A validation returns the codes of the real change and changes nothing."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", retention_ms="1000")
        how = {"validate_only": True}
        assert await change(services, ("retention.ms", SET, "5"), **how) == (Code.NONE, None)
        assert (await change(services, ("retention.ms", SET, "x"), **how))[0] == Code.INVALID_CONFIG
        assert await replace(services, **how) == Code.NONE
        assert await replace(services, retention_ms="x", **how) == Code.INVALID_CONFIG
        assert services.metadata.cluster.topic("t").config == {"retention.ms": "1000"}


async def test_a_resource_named_twice_is_refused(tmp_path):
    """A resource named twice is not changed; the request's other resources are."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.create("u")
        changes = [ConfigChange("retention.ms", SET, "5")]
        resources = [ConfigChanges(TOPIC, name, changes) for name in ("t", "u", "t")]
        reply = await services.ask(IncrementalAlterConfigsRequest(resources, False))
        codes = [each.error_code for each in reply.results]
        assert codes == [Code.INVALID_REQUEST, Code.NONE, Code.INVALID_REQUEST]
        assert services.metadata.cluster.topic("t").config == {}
        assert services.metadata.cluster.topic("u").config == {"retention.ms": "5"}


# --- broker-wide defaults -------------------------------------------------------------------------


async def sources(services, *names, kind=TOPIC, name="t"):
    found = await describe(services, kind, name, list(names))
    return {each.name: (each.value, each.config_source) for each in found.configs}


async def test_a_setting_is_of_the_topic_the_broker_or_built_in(tmp_path):
    """Sources are DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG and DEFAULT_CONFIG."""
    async with KafkaServices(tmp_path, segment_entries=10, log_retention_ms=20) as services:
        await services.create("t", retention_ms="30")
        assert await sources(services, "retention.ms", "segment.entries", "segment.ms") == {
            "retention.ms": ("30", 1),
            "segment.entries": ("10", 4),
            "segment.ms": ("604800000", 5),
        }
        full = await describe(services, keys=["retention.ms"], include_synonyms=True)
        assert [tuple(each) for each in full.configs[0].synonyms] == [
            ("retention.ms", "30", 1),
            ("log.retention.ms", "20", 4),
            ("log.retention.ms", "604800000", 5),
        ]


async def test_an_override_equal_to_the_default_is_an_override(tmp_path):
    """What a topic sets is its own, whether it equals the built-in default or the broker's."""
    async with KafkaServices(tmp_path, segment_entries=10) as services:
        await services.create("t", segment_entries="10", segment_ms="604800000")
        assert await sources(services, "segment.entries", "segment.ms") == {
            "segment.entries": ("10", 1),
            "segment.ms": ("604800000", 1),
        }
    async with KafkaServices(tmp_path, segment_entries=99) as services:
        assert services.topics.get("t").config.segment_entries == 10


async def test_a_topic_without_an_override_follows_a_changed_default(tmp_path):
    """The default at the start of a broker is that of existing topics; also after an unset."""
    async with KafkaServices(tmp_path, segment_entries=10) as services:
        await services.topics.ensure("auto")
        await services.create("t", segment_entries="7")
        assert services.topics.get("auto").config.segment_entries == 10
    async with KafkaServices(tmp_path, segment_entries=20) as services:
        assert services.topics.get("auto").config.segment_entries == 20
        assert services.topics.get("auto").partition(0).config.segment_entries == 20
        assert services.topics.get("t").config.segment_entries == 7
        assert (await change(services, ("segment.entries", DELETE, None)))[0] == Code.NONE
        assert services.topics.get("t").config.segment_entries == 20
        assert (await sources(services, "segment.entries"))["segment.entries"] == ("20", 4)
    async with KafkaServices(tmp_path) as services:
        assert services.topics.get("t").config.segment_entries == 1_000_000


async def test_replaced_settings_fall_back_to_the_brokers_default(tmp_path):
    """AlterConfigs leaves exactly the named settings overridden; others follow the broker."""
    async with KafkaServices(tmp_path, segment_entries=10) as services:
        await services.create("t", segment_entries="7", retention_ms="5")
        assert await replace(services, retention_ms="6") == Code.NONE
        assert services.topics.get("t").overrides == {"retention.ms": "6"}
        assert services.topics.get("t").config.segment_entries == 10


async def test_the_broker_shows_the_defaults_of_topics_by_both_names(tmp_path):
    """A broker's description has each topic setting's default, by our name and by Kafka's."""
    async with KafkaServices(tmp_path, log_segment_bytes=1000) as services:
        names = ("segment.bytes", "log.segment.bytes", "log.retention.ms", "segment.entries")
        assert await sources(services, *names, kind=BROKER, name="1") == {
            "segment.bytes": ("1000", 4),
            "log.segment.bytes": ("1000", 4),
            "log.retention.ms": ("604800000", 5),
            "segment.entries": ("1000000", 5),
        }
        found = await describe(services, BROKER, "1")
        assert len({each.name for each in found.configs}) == len(found.configs)


async def test_a_combination_with_a_default_is_refused(tmp_path):
    """A topic may not have a minimum compaction lag above the maximum that it inherits."""
    async with KafkaServices(tmp_path, max_compaction_lag_ms=5) as services:
        with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(9\) is above"):
            await services.create("t", min_compaction_lag_ms="9")
        await services.create("t")
        for validate_only in (True, False):
            code, text = await change(
                services, ("min.compaction.lag.ms", SET, "9"), validate_only=validate_only
            )
            assert code == Code.INVALID_CONFIG
            assert "max.compaction.lag.ms (5)" in text
        assert services.topics.get("t").overrides == {}


async def test_a_default_that_the_dead_letter_topic_cannot_follow_stops_the_start(tmp_path):
    """The dead-letter topic cannot be compacted; its own policy lets others be by default."""
    async with KafkaServices(tmp_path) as services:
        await services.create("dead_letter")
    async with KafkaServices(tmp_path, cleanup_policy="compact") as services:
        with pytest.raises(ConfigError, match=r"cleanup\.policy: compact cannot be the default"):
            services.topics.check_defaults()
        await services.topics.alter("dead_letter", {"cleanup.policy": "delete"})
        services.topics.check_defaults()
        with pytest.raises(InvalidConfig, match="is the dead-letter topic"):
            await services.topics.alter("dead_letter", {"cleanup.policy": None})
