"""The settings table: each field is one row, and every form of a setting derives from that row.

``segment_bytes`` in code is ``segment.bytes`` in TOML and in Kafka's DescribeConfigs,
``--segment-bytes`` on the command line, ``CORDWOOD_SEGMENT_BYTES`` in the environment and a line of
``docs/settings.md``. Precedence: flag, then environment, then file, then default. An unknown
setting is refused with the nearest known name. Several settings change together or not at all.

A topic setting given to a broker is the default of every topic that does not set it; Kafka's name
for that default, such as ``log.segment.bytes``, means the same.

``settings.rows`` declares and parses a row, and ``settings.topic`` has the table of topics; this
module has the table of brokers, and changes and loads settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, TypeVar, cast

from cordwood.errors import ConfigError, InvalidConfig
from cordwood.settings.environment import check_variables, environment_name, flag_name, nearest
from cordwood.settings.groups import check_assignors, find_timeout_conflict
from cordwood.settings.kafka_names import BROKER_ALIASES, BROKER_NAMES, BrokerName, in_milliseconds
from cordwood.settings.rows import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KEEP_ALL,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    Row,
    Value,
    format_value,
    limit,
    parse_value,
    setting,
)
from cordwood.settings.toml_file import read_file
from cordwood.settings.topic import TopicConfig, TopicDefaults, find_conflict
from cordwood.settings.units import in_base_unit

__all__ = [
    "DAY_MS",
    "GIB",
    "HOUR_MS",
    "KEEP_ALL",
    "KIB",
    "MIB",
    "MINUTE_MS",
    "SECOND_MS",
    "BrokerConfig",
    "GivenSetting",
    "Row",
    "TopicConfig",
    "TopicDefaults",
    "Value",
    "apply_settings",
    "broker_setting",
    "changed",
    "check_environment",
    "environment_name",
    "flag_name",
    "format_value",
    "given_settings",
    "load_broker_config",
    "nearest",
    "overrides",
    "parse_value",
    "rows",
    "topic_config",
    "topic_overrides",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process."""

    data: str = setting("data", "The data directory; only one process at a time can use it.")
    file_mode: str = setting(
        "owner",
        "Who may read the data directory: owner (0600 and 0700), or group (0640 and 2750, and what "
        "Spark jobs stage 0660 and 2770), for shared volumes and jobs under another user.",
        choices=("owner", "group"),
    )
    kafka: str = setting(
        "127.0.0.1:9092", "Addresses of the Kafka listeners, comma separated; off = none."
    )
    ingress: str = setting("127.0.0.1:5673", "Addresses of the line ingress listeners; off = none.")
    control: str = setting(
        "127.0.0.1:5675,127.0.0.1:5676", "Addresses of the line command listeners; off = none."
    )
    http: str = setting(
        "127.0.0.1:8080", "Addresses of the HTTP listeners (metrics, health, API); off = none."
    )
    kafka_tls: str = setting("off", "Addresses of the Kafka listeners with TLS.")
    ingress_tls: str = setting("off", "Addresses of the line ingress listeners with TLS.")
    control_tls: str = setting("off", "Addresses of the line command listeners with TLS.")
    http_tls: str = setting("off", "Addresses of the HTTP listeners with TLS.")
    http_allowed_hosts: str = setting(
        "",
        "Host names that HTTP clients may use for this broker, comma separated, in addition to "
        "IP addresses, localhost and the names in http, http.tls, advertised.http and "
        "advertised.kafka. *.example.org matches every name below it, * every name.",
    )
    tls_cert: str = setting("", "Path of the server certificate (PEM), needed by TLS listeners.")
    tls_key: str = setting("", "Path of the certificate's key (PEM).")
    tls_client_ca: str = setting(
        "", "Path of a CA (PEM): clients must show a certificate it signed (mutual TLS)."
    )
    tls_client_cert: str = setting("", "Certificate of the embedded pipeline; empty = tls.cert.")
    tls_client_key: str = setting("", "Path of the key of tls.client.cert (PEM).")
    advertised_kafka: str = setting(
        "", "HOST:PORT that Kafka clients are told to connect to; empty = the address they used."
    )
    advertised_http: str = setting(
        "",
        "Where commands and Spark jobs are told to find the HTTP API: HOST:PORT (with TLS if http "
        "is off) or a URL such as https://HOST:PORT; empty = the address of the listener.",
    )
    pipeline: str = setting(
        "embedded",
        "Run the Spark pipeline as a child process (embedded), or not at all (off).",
        choices=("embedded", "off"),
    )
    durability: str = setting(
        "fsync",
        "When an append is acknowledged: fsync (on the device) or os (in the page cache: a power "
        "cut can lose records, tear a transaction and leave offsets ahead of the data).",
        choices=("fsync", "os"),
    )
    auto_create_topics: bool = setting(
        True, "Create a topic on the first write or metadata request for it.", dynamic=True
    )
    num_partitions: int = setting(
        1, "Partitions of an automatically created topic.", low=1, high=10_000, dynamic=True
    )
    ingress_topic: str = setting("append", "The topic that ingress lines are appended to.")
    dead_letter_topic: str = setting(
        "dead_letter",
        "The topic for lines that cannot be parsed and records that cannot be routed.",
    )
    routes_cleanup_policy: frozenset[str] = setting(
        frozenset({"consume"}),
        "The cleanup.policy that the ingress topic, the dead-letter topic and the topics of routes "
        "get when they are created automatically: consume keeps what no registered reader has "
        "passed. Existing topics are not changed.",
        choices=("delete", "consume"),
        dynamic=True,
    )
    routes_retention_ms: int = limit(
        KEEP_ALL,
        "The retention.hard.ms that the same topics get: records older than this are dropped, "
        "consumed or not. -1: no limit.",
        dynamic=True,
    )
    ingress_overflow: str = setting(
        "block",
        "What to do when the ingest buffer is full: block (stop reading the socket) or "
        "drop_oldest (drop and count).",
        choices=("block", "drop_oldest"),
    )
    ingress_buffer: int = setting(
        8192,
        "Records that may wait between the ingress listener and the writer (and 16 MiB of them).",
        low=1,
    )
    line_bytes_max: int = setting(
        MIB,
        "The longest line or frame; a longer one is rejected or dead-lettered.",
        low=64,
        high=16 * MIB - 1,
    )
    socket_request_max_bytes: int = setting(
        100 * MIB,
        "The largest Kafka request; the connection of a larger one is closed.",
        low=1 * KIB,
        dynamic=True,
    )
    request_elements_max: int = setting(
        50_000,
        "The most topics, partitions and other array elements one Kafka request may have; the "
        "connection of one with more is closed.",
        low=1_000,
        high=10_000_000,
        dynamic=True,
    )
    queued_max_request_bytes: int = setting(
        256 * MIB,
        "Memory for Kafka requests that are being received or wait for processing, for all "
        "connections together; when it is used up, sockets are not read. At least "
        "socket.request.max.bytes is used.",
        low=1 * MIB,
        dynamic=True,
    )
    message_inflated_bytes_max: int = setting(
        64 * MIB,
        "The largest uncompressed size of a producer's batch; a larger batch is rejected. One "
        "batch is decompressed at a time, in up to twice this memory.",
        low=1 * MIB,
        high=256 * MIB,
        dynamic=True,
    )
    connections_max: int = setting(4096, "The most open connections of a listener.", low=1)
    idle_timeout_ms: int = limit(
        10 * MINUTE_MS,
        "Close a connection that has sent no complete request for this long. -1 = never.",
        low=1,
        dynamic=True,
    )
    handshake_timeout_ms: int = setting(
        10 * SECOND_MS, "Close a connection whose TLS handshake takes longer than this.", low=1
    )
    monitor_interval_ms: int = setting(
        10 * SECOND_MS,
        "How often the broker checks for segments to seal by age, to reclaim and to compress.",
        low=10,
        dynamic=True,
    )
    scrub_bytes_per_second: int = setting(
        8 * MIB,
        "How fast sealed segments are read in the background to find damage before a reader "
        "does. 0 = off: only segments with known damage are read again.",
        low=0,
        dynamic=True,
    )
    scrub_interval_ms: int = setting(
        7 * DAY_MS, "How often the scrub reads each sealed segment.", low=1, dynamic=True
    )
    compression_bytes_per_second: int = setting(
        8 * MIB,
        "How fast sealed segments are compressed in the background, where compression.type asks "
        "for it. 0 = off: only on demand.",
        low=0,
        dynamic=True,
    )
    compaction_interval_ms: int = setting(
        5 * MINUTE_MS,
        "How often the pipeline checks for partitions that are due for compaction.",
        low=10,
        dynamic=True,
    )
    compaction_delay_ms: int = setting(
        MINUTE_MS,
        "How long after its start the pipeline first checks for partitions that are due for "
        "compaction.",
        low=0,
    )
    shutdown_timeout_ms: int = setting(
        10 * SECOND_MS, "How long a shutdown waits for connections to drain.", low=0, dynamic=True
    )
    group_min_session_timeout_ms: int = setting(
        6 * SECOND_MS,
        "The shortest session timeout a member of a consumer group may request.",
        low=1,
    )
    group_max_session_timeout_ms: int = setting(
        30 * MINUTE_MS,
        "The longest session timeout a member of a consumer group may request.",
        low=1,
    )
    group_initial_rebalance_delay_ms: int = setting(
        100, "How long the first rebalance of an empty group waits for more members.", low=0
    )
    group_max_size: int = setting(
        2**31 - 1, "The most members of a consumer group.", low=1, high=2**31 - 1
    )
    group_consumer_session_timeout_ms: int = setting(
        45 * SECOND_MS,
        "After how long without a heartbeat a member with group.protocol=consumer is removed.",
        low=1,
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45 * SECOND_MS, "The least that group.consumer.session.timeout.ms may be.", low=1
    )
    group_consumer_max_session_timeout_ms: int = setting(
        MINUTE_MS, "The most that group.consumer.session.timeout.ms may be.", low=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5 * SECOND_MS,
        "How often the broker tells members with group.protocol=consumer to send a heartbeat; a "
        "change of the assignment takes about one to two of these intervals.",
        low=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5 * SECOND_MS, "The least that group.consumer.heartbeat.interval.ms may be.", low=1
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15 * SECOND_MS, "The most that group.consumer.heartbeat.interval.ms may be.", low=1
    )
    group_consumer_max_size: int = setting(
        2**31 - 1,
        "The most members of a group with group.protocol=consumer.",
        low=1,
        high=2**31 - 1,
    )
    group_consumer_assignors: str = setting(
        "uniform,range",
        "How the broker may assign partitions to members with group.protocol=consumer: uniform, "
        "range or both, comma separated. The first is used where members ask for none.",
        check=check_assignors,
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Which consumer groups may change their protocol while they have members: upgrade (from "
        "classic to consumer), downgrade, bidirectional (both) or disabled.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    offset_metadata_max_bytes: int = setting(
        4 * KIB, "The most bytes of metadata a consumer may store with a committed offset.", low=0
    )
    offsets_retention_ms: int = limit(
        7 * DAY_MS,
        "Forget a consumer group's committed offsets this long after its last member left and "
        "its last commit; groups that RECLAIM waits for are kept. -1 = never.",
        low=1,
        dynamic=True,
    )
    delivery_retention_ms: int = limit(
        30 * DAY_MS,
        "Forget the sequence numbers of a Spark query that has delivered nothing for this long; "
        "its last batch stays on disk, so a query that resumes is not appended twice. -1 = never.",
        low=1,
        dynamic=True,
    )
    transaction_max_timeout_ms: int = setting(
        15 * MINUTE_MS, "The longest a producer may let a transaction stay open.", low=1
    )
    transactional_id_expiration_ms: int = setting(
        7 * DAY_MS, "Forget a transactional id that was not used for this long.", low=1
    )
    topic_defaults: TopicDefaults = field(default=TopicDefaults())


Config = TypeVar("Config", TopicConfig, BrokerConfig)


_ROWS: Final = {
    table: {
        f.name.replace("_", "."): (f.name, str(f.type), cast(Row, f.metadata["row"]))
        for f in fields(table)
        if "row" in f.metadata
    }
    for table in (TopicConfig, BrokerConfig)
}


def rows(table: type[TopicConfig | BrokerConfig]) -> Mapping[str, tuple[str, str, Row]]:
    """The table as dotted name → (field name, type annotation, row)."""
    return _ROWS[table]


_BROKER_NAMES: Final = {
    **{name: BrokerName(name) for name in (*rows(BrokerConfig), *rows(TopicConfig))},
    **BROKER_NAMES,
}  # every name that a broker's setting may have → the setting


def broker_setting(written: str) -> BrokerName:
    """The setting that a name stands for in requests of Kafka's admin clients, and its unit."""
    return BROKER_ALIASES.get(written) or _BROKER_NAMES.get(written, BrokerName(written))


def changed(config: Config, changes: Mapping[str, object]) -> Config:
    """The config with the dotted settings changed, all or none; raises ``InvalidConfig``.

    A topic setting among the changes of a broker changes the default of topics.
    """
    if not changes:
        return config
    table = rows(type(config))
    parsed, defaults = dict[str, object](), dict[str, object]()
    for name, text in changes.items():
        if name in table:
            field_name, kind, row = table[name]
            try:
                parsed[field_name] = parse_value(kind, row, in_base_unit(name, text))
            except ValueError as error:
                raise InvalidConfig(f"{name}: {error}") from None
        elif isinstance(config, BrokerConfig) and name in _BROKER_NAMES:
            defaults[name] = text
        else:
            known = table if isinstance(config, TopicConfig) else _BROKER_NAMES
            raise InvalidConfig(f"unknown setting {name}{nearest(name, known)}")
    if isinstance(config, BrokerConfig) and defaults:
        parsed["topic_defaults"] = _changed_defaults(config.topic_defaults, defaults)
    return replace(config, **cast(Any, parsed))


def _changed_defaults(defaults: TopicDefaults, changes: Mapping[str, object]) -> TopicDefaults:
    config = defaults.config
    for written, text in changes.items():
        name, unit_ms = _BROKER_NAMES[written]
        try:
            config = changed(config, {name: in_milliseconds(text, unit_ms)})
        except InvalidConfig as error:
            reason = str(error).removeprefix(f"{name}: ")
            raise InvalidConfig(f"{written}: {reason}") from None
    if conflict := find_conflict(config):
        raise InvalidConfig(conflict)
    chosen = defaults.chosen | {_BROKER_NAMES[written].setting for written in changes}
    return TopicDefaults(config, chosen, defaults.sources)


def topic_config(defaults: TopicDefaults, own: Mapping[str, object]) -> TopicConfig:
    """The settings of a topic that sets ``own`` itself; raises ``InvalidConfig``."""
    config = changed(defaults.config, own)
    if conflict := find_conflict(config):
        raise InvalidConfig(conflict)
    return config


def topic_overrides(own: Mapping[str, object]) -> dict[str, str]:
    """The settings that a topic sets itself, as text to be stored; raises ``InvalidConfig``."""
    config, table = changed(TopicConfig(), own), rows(TopicConfig)
    return {name: format_value(table[name][2], getattr(config, table[name][0])) for name in own}


def overrides(config: TopicConfig | BrokerConfig) -> dict[str, str]:
    """The settings that differ from their defaults, as text, to be sent and shown."""
    differing = {
        name: format_value(row, getattr(config, field_name))
        for name, (field_name, _, row) in rows(type(config)).items()
        if getattr(config, field_name) != row.default
    }
    if isinstance(config, BrokerConfig):
        differing |= overrides(config.topic_defaults.config)
    return differing


class GivenSetting(NamedTuple):
    """A setting as an operator wrote it."""

    name: str
    value: object
    source: str  # file, variable or flag, with its name


def load_broker_config(
    flags: Mapping[str, object], environ: Mapping[str, str], path: str | None
) -> BrokerConfig:
    """Apply default < file < environment < flags; the first mistake raises ``ConfigError``."""
    return apply_settings(given_settings(flags, environ, path))


def apply_settings(given: Mapping[str, GivenSetting]) -> BrokerConfig:
    """The config with the given settings; the first mistake raises ``ConfigError``."""
    config = BrokerConfig()
    for name, value, source in given.values():
        try:
            config = changed(config, {name: value})
        except InvalidConfig as error:
            raise ConfigError(f"{error} ({source})") from None
    if conflict := find_timeout_conflict(config):
        raise ConfigError(conflict)
    sources = {name: given[name].source for name in config.topic_defaults.chosen}
    return replace(config, topic_defaults=replace(config.topic_defaults, sources=sources))


def given_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], path: str | None
) -> dict[str, GivenSetting]:
    """The given settings, by the name that the settings tables have; a flag wins, then a variable.

    Raises ``ConfigError`` for an unknown variable, a file that cannot be read, and a setting that
    one source gives twice, by two names.
    """
    check_environment(environ)
    variables = {name: environ.get(environment_name(name)) for name in _BROKER_NAMES}
    return {
        **(_by_setting(read_file(path), lambda _: f"file {path}") if path else {}),
        **_by_setting(variables, lambda name: f"variable {environment_name(name)}"),
        **_by_setting(flags, lambda name: f"flag {flag_name(name)}"),
    }


def _by_setting(
    given: Mapping[str, object], source: Callable[[str], str]
) -> dict[str, GivenSetting]:
    settings: dict[str, GivenSetting] = {}
    for written, value in given.items():
        if value is None:
            continue
        name = _BROKER_NAMES.get(written, BrokerName(written)).setting
        if name in settings:
            raise ConfigError(
                f"{settings[name].name} and {written} are the same setting; give one of them "
                f"({source(written)})"
            )
        settings[name] = GivenSetting(written, value, source(written))
    return settings


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for a variable that starts with CORDWOOD_ and that nothing reads."""
    check_variables(environ, {environment_name(name) for name in _BROKER_NAMES})
