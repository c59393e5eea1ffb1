"""The settings table: each field is one row, and every form of a setting derives from that row.

``segment_bytes`` in code is ``segment.bytes`` in TOML and in Kafka's DescribeConfigs,
``--segment-bytes`` on the command line, ``CORDWOOD_SEGMENT_BYTES`` in the environment and a line of
``docs/settings.md``. Precedence: flag, then environment, then file, then default. An unknown
setting is refused with the nearest known name. Several settings change together or not at all.

A parsed value of ``-1`` means no limit and becomes ``KEEP_ALL``, so policies need no special case.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from cordwood.errors import ConfigError, InvalidConfig

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
KEEP_ALL: Final = 2**63 - 1  # the parsed form of -1: larger than any size or age

Value = int | float | bool | str | frozenset[str]


class Row(NamedTuple):
    """The default, documentation and bounds of a setting."""

    default: Value
    doc: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    limit: bool  # whether -1 means no limit


def setting(
    default: Value,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] = (),
    limit: bool = False,
) -> Any:
    """Declare one row; the field's annotation gives its type."""
    row = Row(default, doc, low, high, tuple(choices), limit)
    return field(default=default, metadata={"row": row})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of a topic; the names are Kafka's where Kafka has the setting."""

    cleanup_policy: frozenset[str] = setting(
        frozenset({"delete"}),
        "What makes sealed records go: delete (age or size), compact (superseded by key), consume "
        "(only what every registered reader has passed). They combine.",
        choices=("delete", "compact", "consume"),
    )
    segment_bytes: int = setting(
        GIB, "Cut before the active segment passes this size.", low=14, high=2**31 - 1
    )
    segment_ms: int = setting(
        7 * DAY_MS, "Cut when the active segment's first record is this old.", low=1
    )
    segment_entries: int = setting(
        1_000_000, "Cut once the active segment holds this many records.", low=1
    )
    retention_ms: int = setting(
        7 * DAY_MS,
        "With delete: drop sealed segments whose newest record is older. -1 keeps them.",
        low=0,
        limit=True,
    )
    retention_bytes: int = setting(
        KEEP_ALL,
        "With delete: drop the oldest sealed segments above this total. -1 keeps them.",
        low=0,
        limit=True,
    )
    retention_hard_bytes: int = setting(
        KEEP_ALL,
        "Drop the oldest sealed segments above this total even if a registered reader has not "
        "passed them; reported as data loss. -1 is off.",
        low=0,
        limit=True,
    )
    archive_required: bool = setting(
        False,
        "Keep sealed segments until they are in an archive bundle that was read back and verified.",
    )
    archive_verified_by: str = setting(
        "broker",
        "With archive.required: who must have read a bundle before its segments may go: broker "
        "(this broker, at the archive's place) or job (the archiving job is believed, for places "
        "the broker cannot reach).",
        choices=("broker", "job"),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Compact when the dirty part is more than this share of the log.", low=0, high=1
    )
    min_compaction_lag_ms: int = setting(0, "Records younger than this are not compacted.", low=0)
    max_compaction_lag_ms: int = setting(
        KEEP_ALL, "Records older than this are compacted whatever the ratio.", low=1, limit=True
    )
    delete_retention_ms: int = setting(
        DAY_MS, "How long a tombstone stays after the first compaction that met it.", low=0
    )
    max_message_bytes: int = setting(
        MIB + 12, "The largest batch a producer may send, as compressed.", low=0, high=2**31 - 1
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whose clock records carry: the producer's or the broker's at the append.",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        KEEP_ALL,
        "Refuse a producer's record whose timestamp is older than this. -1 refuses none.",
        low=0,
        limit=True,
    )
    message_timestamp_after_max_ms: int = setting(
        KEEP_ALL,
        "Refuse a producer's record whose timestamp is further ahead of the broker's clock than "
        "this. -1 refuses none.",
        low=0,
        limit=True,
    )
    compression_type: str = setting(
        "producer",
        "How sealed segments are stored when compaction rewrites them; producer keeps each batch's "
        "own codec.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    flush_mode: str = setting(
        "broker",
        "When an append counts as durable: fsync (on the device), os (in the page cache), or what "
        "the broker's durability says.",
        choices=("broker", "fsync", "os"),
    )
    index_interval_bytes: int = setting(
        4096, "A sparse index entry is made after more than this many bytes.", low=0
    )
    producer_id_expiration_ms: int = setting(
        7 * DAY_MS,
        "Forget the sequence numbers of a producer idle for this long and in no transaction.",
        low=1,
    )
    file_delete_delay_ms: int = setting(
        MINUTE_MS, "How long a dropped or replaced file stays for readers already in it.", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process."""

    data: str = setting("data", "The data directory; one process at a time may hold it.")
    file_mode: str = setting(
        "owner",
        "Who may read the data directory: owner (0600 and 0700), or group (0640 and 2750, and what "
        "Spark jobs stage 0660 and 2770), for shared volumes and jobs under another user.",
        choices=("owner", "group"),
    )
    kafka: str = setting("127.0.0.1:9092", "Kafka protocol listeners, comma separated; off = none.")
    ingress: str = setting("127.0.0.1:5673", "Line ingress listeners; off = none.")
    control: str = setting("127.0.0.1:5675,127.0.0.1:5676", "Line command listeners; off = none.")
    http: str = setting("127.0.0.1:8080", "HTTP listeners for metrics and health; off = none.")
    kafka_tls: str = setting("off", "Kafka protocol listeners with TLS.")
    ingress_tls: str = setting("off", "Line ingress listeners with TLS.")
    control_tls: str = setting("off", "Line command listeners with TLS.")
    http_tls: str = setting("off", "HTTP listeners with TLS.")
    http_allowed_hosts: str = setting(
        "",
        "Names, comma separated, under which HTTP clients may reach this broker, beside IP "
        "addresses, localhost and the names in http, http.tls and advertised.kafka. *.example.org "
        "is any name below it, * any at all.",
    )
    tls_cert: str = setting("", "Path of the server certificate (PEM), needed by TLS listeners.")
    tls_key: str = setting("", "Path of the certificate's key (PEM).")
    tls_client_ca: str = setting(
        "", "Path of a CA (PEM): clients must show a certificate it signed (mutual TLS)."
    )
    advertised_kafka: str = setting(
        "", "HOST:PORT told to Kafka clients; empty = the address they connected to."
    )
    pipeline: str = setting(
        "embedded",
        "Run the Spark pipeline as a child (embedded), or leave it to you (off).",
        choices=("embedded", "off"),
    )
    durability: str = setting(
        "fsync",
        "When an append is acknowledged: fsync (on the device) or os (in the page cache: a power "
        "cut can lose records, tear a transaction and leave offsets ahead of the data).",
        choices=("fsync", "os"),
    )
    auto_create_topics: bool = setting(
        True, "Create a topic on the first write or metadata request for it."
    )
    num_partitions: int = setting(1, "Partitions of a topic created on sight.", low=1, high=10_000)
    ingress_topic: str = setting("append", "The topic ingress lines are appended to.")
    dead_letter_topic: str = setting(
        "dead_letter", "Where lines that do not parse and records that do not route go."
    )
    ingress_overflow: str = setting(
        "block",
        "When the buffer before the writer is full: block (stop reading the socket) or drop_oldest "
        "(drop and count).",
        choices=("block", "drop_oldest"),
    )
    ingress_buffer: int = setting(
        8192,
        "Records that may wait between the ingress listener and the writer (and 16 MiB of them).",
        low=1,
    )
    line_bytes_max: int = setting(
        MIB,
        "The longest line or frame; a longer one is refused or dead-lettered.",
        low=64,
        high=16 * MIB - 1,
    )
    socket_request_max_bytes: int = setting(
        100 * MIB, "The largest Kafka request; a longer one closes its connection.", low=1 * KIB
    )
    request_elements_max: int = setting(
        50_000,
        "The most topics, partitions and other array elements one Kafka request may name; one with "
        "more closes its connection.",
        low=1_000,
        high=10_000_000,
    )
    queued_max_request_bytes: int = setting(
        256 * MIB,
        "Memory for Kafka requests that are arriving or wait for their turn, over all connections; "
        "then more is left in the sockets. At least socket.request.max.bytes is taken.",
        low=1 * MIB,
    )
    message_inflated_bytes_max: int = setting(
        64 * MIB,
        "The most a producer's compressed batch may inflate to; a larger one is refused. One is "
        "inflated at a time, in up to twice this memory.",
        low=1 * MIB,
        high=256 * MIB,
    )
    connections_max: int = setting(4096, "Connections a listener accepts at once.", low=1)
    idle_timeout_ms: int = setting(
        10 * MINUTE_MS,
        "Close a connection that sent nothing whole for this long (a drip does not count). "
        "-1 = never.",
        low=1,
        limit=True,
    )
    handshake_timeout_ms: int = setting(
        10 * SECOND_MS, "Close a connection whose TLS handshake takes longer.", low=1
    )
    monitor_interval_ms: int = setting(
        10 * SECOND_MS, "How often cuts by age and reclaims are looked for.", low=10
    )
    scrub_bytes_per_second: int = setting(
        8 * MIB,
        "How fast sealed segments are read in the background to find damage before a reader does. "
        "0 = off: only segments in which damage was met are read again.",
        low=0,
    )
    scrub_interval_ms: int = setting(
        7 * DAY_MS, "How often the scrub reads each sealed segment.", low=1
    )
    compaction_interval_ms: int = setting(
        5 * MINUTE_MS, "How often the pipeline looks for partitions due for compaction.", low=10
    )
    compaction_delay_ms: int = setting(
        MINUTE_MS, "How long after its start the pipeline first looks for compaction.", low=0
    )
    shutdown_timeout_ms: int = setting(
        10 * SECOND_MS, "How long a stop waits for connections to drain.", low=0
    )
    group_min_session_timeout_ms: int = setting(
        6 * SECOND_MS, "The shortest session a consumer group's member may ask for.", low=1
    )
    group_max_session_timeout_ms: int = setting(
        30 * MINUTE_MS, "The longest session a consumer group's member may ask for.", low=1
    )
    group_initial_rebalance_delay_ms: int = setting(
        100, "How long the first rebalance of an empty group waits for more members.", low=0
    )
    group_max_size: int = setting(
        2**31 - 1, "Members a consumer group may have.", low=1, high=2**31 - 1
    )
    offset_metadata_max_bytes: int = setting(
        4 * KIB, "The longest note a reader may leave with a committed offset.", low=0
    )
    offsets_retention_ms: int = setting(
        7 * DAY_MS,
        "Forget a consumer group's committed offsets this long after its last member left and its "
        "last commit; groups that RECLAIM waits for are kept. -1 keeps all.",
        low=1,
        limit=True,
    )
    delivery_retention_ms: int = setting(
        30 * DAY_MS,
        "Forget the sequence numbers of a Spark query that delivered nothing for this long; its "
        "last batch is remembered on disk, so one that comes back is not appended twice. -1 keeps "
        "all in memory.",
        low=1,
        limit=True,
    )
    transaction_max_timeout_ms: int = setting(
        15 * MINUTE_MS, "The longest a producer may let a transaction stay open.", low=1
    )
    transactional_id_expiration_ms: int = setting(
        7 * DAY_MS, "Forget a transactional id that was not used for this long.", low=1
    )


Config = TypeVar("Config", TopicConfig, BrokerConfig)


def rows(table: type[TopicConfig | BrokerConfig]) -> Mapping[str, tuple[str, str, Row]]:
    """The table as dotted name → (field name, type annotation, row)."""
    return _ROWS[table]


def _rows(table: type[TopicConfig | BrokerConfig]) -> dict[str, tuple[str, str, Row]]:
    return {
        f.name.replace("_", "."): (f.name, str(f.type), cast(Row, f.metadata["row"]))
        for f in fields(table)
    }


_ROWS: Final = {TopicConfig: _rows(TopicConfig), BrokerConfig: _rows(BrokerConfig)}


def parse_value(kind: str, row: Row, text: object) -> Value:
    """Parse a setting from a file, flag, variable or Kafka request; raises ``ValueError``."""
    value = _PARSERS[kind](text)
    if row.limit and value == -1:
        return KEEP_ALL
    parts = value if isinstance(value, frozenset) else {value}
    if row.choices and not parts <= set(row.choices):
        raise ValueError(f"{text!r} is not one of {', '.join(row.choices)}")
    if row.low is not None and cast(float, value) < row.low:
        raise ValueError(f"{text} is below {row.low}")
    if row.high is not None and cast(float, value) > row.high:
        raise ValueError(f"{text} is above {row.high}")
    return value


def format_value(row: Row, value: Value) -> str:
    """The setting as Kafka and TOML users write it; the inverse of ``parse_value``."""
    if row.limit and value == KEEP_ALL:
        return "-1"
    if isinstance(value, frozenset):
        return ",".join(choice for choice in row.choices if choice in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def changed(config: Config, changes: Mapping[str, object]) -> Config:
    """The config with the dotted settings changed, all or none; raises ``InvalidConfig``."""
    if not changes:
        return config
    table = rows(type(config))
    parsed: dict[str, Value] = {}
    for name, text in changes.items():
        if name not in table:
            raise InvalidConfig(f"there is no setting {name}{nearest(name, table)}")
        field_name, kind, row = table[name]
        try:
            parsed[field_name] = parse_value(kind, row, text)
        except ValueError as error:
            raise InvalidConfig(f"{name}: {error}") from None
    return replace(config, **cast(Any, parsed))


def overrides(config: TopicConfig | BrokerConfig) -> dict[str, str]:
    """The settings that differ from their defaults, as text, to be stored and shown."""
    return {
        name: format_value(row, getattr(config, field_name))
        for name, (field_name, _, row) in rows(type(config)).items()
        if getattr(config, field_name) != row.default
    }


def load_broker_config(
    flags: Mapping[str, object], environ: Mapping[str, str], path: str | None
) -> BrokerConfig:
    """Apply default < file < environment < flags; the first mistake raises ``ConfigError``."""
    table = rows(BrokerConfig)
    said: dict[str, object] = dict(read_file(path)) if path else {}
    for name in table:
        variable = environment_name(name)
        if variable in environ:
            said[name] = environ[variable]
    said.update({name: value for name, value in flags.items() if value is not None})
    try:
        return changed(BrokerConfig(), said)
    except InvalidConfig as error:
        where = f" (file {path})" if path else ""
        raise ConfigError(f"{error}{where}") from None


def environment_name(name: str) -> str:
    """``segment.bytes`` → ``CORDWOOD_SEGMENT_BYTES``."""
    return "CORDWOOD_" + name.replace(".", "_").upper()


def nearest(name: str, names: Iterable[str]) -> str:
    """A suffix for an error message: the closest known name, or nothing if none is close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def read_file(path: str) -> dict[str, object]:
    """The settings of a TOML file by dotted name, unparsed."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file at {os.fspath(path)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not TOML: {error}") from None
    return _flatten(tables, "")


def _flatten(table: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Nested TOML tables → dotted names, so ``[ingress] buffer`` is ``ingress.buffer``."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _parse_int(text: object) -> int:
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"{text!r} is not a whole number")
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if not -KEEP_ALL <= number <= KEEP_ALL:  # int64 on the wire and in kernels
        raise ValueError(f"{text} does not fit in 64 bits")
    return number


def _parse_float(text: object) -> float:
    try:
        number = float(cast(str, text))
    except (TypeError, ValueError):
        raise ValueError(f"{text!r} is not a number") from None
    if math.isnan(number):  # NaN would pass every bounds check
        raise ValueError(f"{text!r} is not a number")
    return number


def _parse_bool(text: object) -> bool:
    word = str(text).lower()
    if word not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return word == "true"


def _parse_set(text: object) -> frozenset[str]:
    words = text if isinstance(text, list | frozenset) else str(text).split(",")
    return frozenset(str(word).strip() for word in words if str(word).strip())


_PARSERS: dict[str, Callable[[object], Value]] = {
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "str": str,
    "frozenset[str]": _parse_set,
}
