"""Kafka's topic settings: their defaults there, and the broker settings that are their defaults.

Every name is a row of ``TopicConfig``. In Kafka, a topic that does not set ``retention.ms`` takes
``log.retention.ms`` of the broker; here the broker-wide default has the topic setting's name, and
Kafka's name for it is understood wherever a broker's settings are given.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from cordwood.settings.rows import HOUR_MS, LONG_MAX, MINUTE_MS


class KafkaTopicSetting(NamedTuple):
    """A topic setting as Kafka 4 has it."""

    default: str
    broker_name: str = ""  # empty: Kafka has no broker-wide default of it


_S = KafkaTopicSetting

TOPIC_SETTINGS: Final = {
    "cleanup.policy": _S("delete", "log.cleanup.policy"),
    "compression.gzip.level": _S("-1", "compression.gzip.level"),
    "compression.lz4.level": _S("9", "compression.lz4.level"),
    "compression.type": _S("producer", "compression.type"),
    "compression.zstd.level": _S("3", "compression.zstd.level"),
    "delete.retention.ms": _S("86400000", "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": _S("60000", "log.segment.delete.delay.ms"),
    "flush.messages": _S(LONG_MAX, "log.flush.interval.messages"),
    "flush.ms": _S(LONG_MAX, "log.flush.interval.ms"),
    "follower.replication.throttled.replicas": _S(""),
    "index.interval.bytes": _S("4096", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": _S(""),
    "local.retention.bytes": _S("-2", "log.local.retention.bytes"),
    "local.retention.ms": _S("-2", "log.local.retention.ms"),
    "max.compaction.lag.ms": _S(LONG_MAX, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": _S("1048588", "message.max.bytes"),
    "message.timestamp.after.max.ms": _S("3600000", "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": _S(LONG_MAX, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": _S("CreateTime", "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": _S("0.5", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": _S("0", "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": _S("1", "min.insync.replicas"),
    "preallocate": _S("false", "log.preallocate"),
    "remote.log.copy.disable": _S("false"),
    "remote.log.delete.on.disable": _S("false"),
    "remote.storage.enable": _S("false"),
    "retention.bytes": _S("-1", "log.retention.bytes"),
    "retention.ms": _S("604800000", "log.retention.ms"),
    "segment.bytes": _S("1073741824", "log.segment.bytes"),
    "segment.index.bytes": _S("10485760", "log.index.size.max.bytes"),
    "segment.jitter.ms": _S("0", "log.roll.jitter.ms"),
    "segment.ms": _S("604800000", "log.roll.ms"),
    "unclean.leader.election.enable": _S("false", "unclean.leader.election.enable"),
}


class BrokerName(NamedTuple):
    """What a broker setting of Kafka is here: a setting, or the default of a topic setting."""

    setting: str
    unit_ms: int = 1


BROKER_NAMES: Final = {
    **{
        known.broker_name: BrokerName(name)
        for name, known in TOPIC_SETTINGS.items()
        if known.broker_name not in {"", name}
    },
    "log.retention.minutes": BrokerName("retention.ms", MINUTE_MS),
    "log.retention.hours": BrokerName("retention.ms", HOUR_MS),
    "log.roll.hours": BrokerName("segment.ms", HOUR_MS),
    "log.roll.jitter.hours": BrokerName("segment.jitter.ms", HOUR_MS),
}


BROKER_ALIASES: Final = {
    "auto.create.topics.enable": BrokerName("auto.create.topics"),
    "connections.max.idle.ms": BrokerName("idle.timeout.ms"),
    "log.cleaner.backoff.ms": BrokerName("compaction.interval.ms"),
    "log.retention.check.interval.ms": BrokerName("monitor.interval.ms"),
    "offsets.retention.minutes": BrokerName("offsets.retention.ms", MINUTE_MS),
}  # Kafka's names of broker settings that have another name here; for Kafka's admin clients


def in_milliseconds(value: object, unit_ms: int) -> object:
    """A number of units as milliseconds; -1, and what is no number, is returned unchanged."""
    try:
        number = int(cast(str, value))
    except (TypeError, ValueError):
        return value
    return value if unit_ms == 1 or number == -1 else number * unit_ms
