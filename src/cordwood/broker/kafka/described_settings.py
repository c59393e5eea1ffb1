"""The settings tables as DescribeConfigs shows them, with every source that has a value. Pure.

The first synonym is the value in effect. Kafka's order of sources is that of
``decide.dynamic_settings``; a topic's own setting comes before all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.config import (
    BrokerConfig,
    Row,
    TopicConfig,
    Value,
    format_value,
    parse_value,
    rows,
)
from cordwood.decide.dynamic_settings import ALL_BROKERS, THIS_BROKER, is_dynamic
from cordwood.log.format.identity import KAFKA_NAME
from cordwood.protocol.kafka.messages.configs import (
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribedConfig,
)
from cordwood.settings.kafka_names import BROKER_ALIASES, TOPIC_SETTINGS

_INT_MAX: Final = 2**31 - 1
TYPES: Final = {"bool": 1, "str": 2, "int": 5, "float": 6, "frozenset[str]": 7}
_TYPE_INT: Final = 3  # for an integer that fits into 32 bits


class Source(IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


_LEVELS: Final = (
    (THIS_BROKER, Source.DYNAMIC_BROKER),
    (ALL_BROKERS, Source.DYNAMIC_ALL_BROKERS),
)


# --- topics ---------------------------------------------------------------------------------


def described_topic(
    config: TopicConfig, own: Collection[str], settings: DynamicSettings
) -> Iterator[DescribedConfig]:
    """Return a topic's settings as Kafka shows them; ``own`` are those that it sets itself."""
    for name, (field_name, kind, row) in rows(TopicConfig).items():
        synonyms = _synonyms(name, _broker_name(name), settings)
        if name in own:
            text = format_value(row, getattr(config, field_name))
            synonyms.insert(0, ConfigSynonym(name, text, Source.TOPIC))
        yield described(name, kind, row, synonyms)


def _broker_name(name: str) -> str:
    """Return Kafka's name for the default of a topic setting."""
    known = TOPIC_SETTINGS.get(name)
    return (known.broker_name if known else "") or name


# --- brokers --------------------------------------------------------------------------------


def described_broker(settings: DynamicSettings) -> Iterator[DescribedConfig]:
    """Yield the settings of the broker and the defaults of topics, by our names and by Kafka's."""
    for name, written, unit_ms in _written_names():
        _, kind, row = _row(name)
        synonyms = [
            each._replace(value=_in_unit(each.value, unit_ms))
            for each in _synonyms(name, written, settings)
        ]
        if synonyms[0].value is not None:
            yield described(written, kind, row, synonyms)._replace(read_only=not is_dynamic(name))


def described_level(settings: DynamicSettings) -> Iterator[DescribedConfig]:
    """Yield what is set at run time for all brokers."""
    for each in described_broker(settings):
        common = [one for one in each.synonyms if one.source == Source.DYNAMIC_ALL_BROKERS]
        if common:
            yield each._replace(
                value=common[0].value, config_source=common[0].source, synonyms=common
            )


def _written_names() -> Iterator[tuple[str, str, int]]:
    """Yield every setting of a broker, each name it is shown by, and its unit there."""
    for name in rows(BrokerConfig):
        yield name, name, 1
    for name in rows(TopicConfig):
        for written in dict.fromkeys((name, _broker_name(name))):
            yield name, written, 1
    for written, (name, unit_ms) in BROKER_ALIASES.items():
        yield name, written, unit_ms


def _in_unit(text: str | None, unit_ms: int) -> str | None:
    """Return milliseconds in a larger unit; None if they are no whole number of them."""
    if unit_ms == 1 or text in (None, "-1"):
        return text
    count, rest = divmod(int(text or 0), unit_ms)
    return None if rest else str(count)


def _row(name: str) -> tuple[str, str, Row]:
    return rows(BrokerConfig).get(name) or rows(TopicConfig)[name]


def _synonyms(name: str, written: str, settings: DynamicSettings) -> list[ConfigSynonym]:
    """Return the values of a broker setting or of the default of a topic setting."""
    field_name, kind, row = _row(name)
    synonyms = [
        ConfigSynonym(written, _canonical(kind, row, settings.levels.of(level)[name]), source)
        for level, source in _LEVELS
        if name in settings.levels.of(level)
    ]
    if (chosen := _started_with(name, field_name, row, settings.started_with)) is not None:
        synonyms.append(ConfigSynonym(written, format_value(row, chosen), Source.STATIC_BROKER))
    synonyms.append(ConfigSynonym(written, format_value(row, row.default), Source.DEFAULT))
    return synonyms


def _started_with(name: str, field_name: str, row: Row, config: BrokerConfig) -> Value | None:
    """Return what file, environment or flag set; None if they did not."""
    if name in rows(BrokerConfig):
        value: Value = getattr(config, field_name)
        return None if value == row.default else value
    defaults = config.topic_defaults
    return getattr(defaults.config, field_name) if name in defaults.chosen else None


def _canonical(kind: str, row: Row, text: str) -> str:
    return format_value(row, parse_value(kind, row, text))


def broker_synonyms(name: str, settings: DynamicSettings) -> list[ConfigSynonym]:
    """Return the values of a broker setting, the one in effect first."""
    return _synonyms(name, name, settings)


def kafka_facts(
    config: BrokerConfig,
    cluster: ClusterView,
    bound: Mapping[str, Sequence[str]],
    identity: str,
) -> Iterator[DescribedConfig]:
    """Yield what Kafka's tools look up under Kafka's own names and what is no setting here."""
    listeners = [f"PLAINTEXT://{address}" for address in bound.get("kafka", ())]
    listeners += [f"SSL://{address}" for address in bound.get("kafka.tls", ())]
    scheme = "SSL" if config.kafka == "off" else "PLAINTEXT"
    advertised = [f"{scheme}://{config.advertised_kafka}"] if config.advertised_kafka else listeners
    values = {
        "advertised.listeners": ",".join(advertised),
        "authorizer.class.name": "",
        "broker.id": str(cluster.node_id),
        KAFKA_NAME: identity,
        "default.replication.factor": str(cluster.replication_factor),
        "delete.topic.enable": "true",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL",
        "listeners": ",".join(listeners),
        "log.dirs": str(Path(config.data).absolute()),
        "node.id": str(cluster.node_id),
        "process.roles": "broker,controller",
        "ssl.client.auth": "required" if config.tls_client_ca else "none",
    }
    for name, value in values.items():
        yield DescribedConfig(
            name,
            value,
            read_only=True,
            config_source=Source.STATIC_BROKER,
            config_type=TYPES["str"],
        )


# --- one setting ----------------------------------------------------------------------------


def described(name: str, kind: str, row: Row, synonyms: Sequence[ConfigSynonym]) -> DescribedConfig:
    """Return a setting whose value and source are those of its first synonym."""
    return DescribedConfig(
        name=name,
        value=synonyms[0].value,
        read_only=False,
        config_source=synonyms[0].source,
        synonyms=synonyms,
        config_type=_type_of(kind, row),
        documentation=row.doc,
    )


def _type_of(kind: str, row: Row) -> int:
    fits = kind == "int" and row.high is not None and row.high <= _INT_MAX
    return _TYPE_INT if fits else TYPES[kind]


def trimmed(config: DescribedConfig, request: DescribeConfigsRequest) -> DescribedConfig:
    """Return the setting with as much detail as the request asks for."""
    return config._replace(
        synonyms=config.synonyms if request.include_synonyms else (),
        documentation=config.documentation if request.include_documentation else None,
    )
