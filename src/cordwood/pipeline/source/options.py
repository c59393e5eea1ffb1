"""Source options, with the names, defaults and precedence of Spark's Kafka source.

``parse_options`` turns the user's options into one frozen value or raises ``InvalidOption``. Spark
passes options as a mapping with lower-cased keys, so names are compared without regard to case and
shown as documented. A pattern is a Python regular expression that must match the whole name.

Pure: no Spark, no files, no sockets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from cordwood.config import KEEP_ALL, nearest
from cordwood.errors import InvalidOption
from cordwood.model import TopicPartition, is_topic_name
from cordwood.pipeline.runtime.tls_options import TLS_OPTIONS, TLS_REFUSED, parse_tls
from cordwood.pipeline.source.schema import FIXED_COLUMNS, HEADERS, parse_columns
from cordwood.settings.units import DURATIONS_MS
from cordwood.tls import ClientTls


class Edge(Enum):
    """One end of the log; the values represent it in JSON offsets."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """One offset per partition; -2 means earliest and -1 latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a timestamp, given per partition or once for all."""

    times_ms: Mapping[TopicPartition, int] | int


Position = Edge | AtOffsets | AtTimes


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which partitions a query reads; exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        """The option as the user wrote it, for error messages."""
        if self.pattern is not None:
            return f"subscribePattern {self.pattern}"
        if self.partitions:
            return f"assign {', '.join(map(str, self.partitions))}"
        return f"subscribe {', '.join(self.topics)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All settings of a reader; small and picklable."""

    subscription: TopicSelection
    path: str | None
    servers: str | None
    tls: ClientTls | None
    starting: Position
    ending: Position
    no_match_is_latest: bool  # startingOffsetsByTimestampStrategy: latest rather than error
    columns: tuple[str, ...]
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    parallelism: int | None  # tasks that run concurrently
    fail_on_data_loss: bool
    from_offset: int  # fromOffset and beforeOffset work like filters on the offset
    before_offset: int
    committed: bool  # kafka.isolation.level: skip open and aborted transactions
    push_filters: bool | None  # filterPushdown: None means it depends on the Spark version
    commit_group: str | None
    group_id: str | None
    group_id_prefix: str
    offset_retries: int
    offset_retry_interval_ms: int
    poll_timeout_ms: int
    ignored: tuple[str, ...]  # accepted so that existing jobs run, but without effect
    data_id: str | None = None  # id of the directory the driver planned with; not an option


OPTIONS: Final = {  # documented name → what it does
    "subscribe": "Topics, comma separated.",
    "subscribePattern": "Topics by a Python regular expression that matches the whole name.",
    "assign": 'Partitions as JSON: `{"orders": [0, 1]}`. Exactly one of these three is set.',
    "path": "A data directory: segment files are read directly, without a broker.",
    "kafka.bootstrap.servers": (
        "The broker; if `path` is also set, records come over the network where `path` is not "
        "the broker's data directory."
    ),
    "bootstrap.servers": "The same.",
    "startingOffsets": (
        "`earliest`, `latest` or JSON (`-2` is the earliest, `-1` the latest offset). Default: "
        "batch `earliest`, stream `latest`."
    ),
    "startingTimestamp": (
        "Start at the first record at or after this time (ms), in all partitions. Overrides the "
        "next two."
    ),
    "startingOffsetsByTimestamp": "The same per partition, as JSON. Overrides `startingOffsets`.",
    "startingOffsetsByTimestampStrategy": (
        "What to do where no record is at or after that time: `error` (default) or `latest`."
    ),
    "endingOffsets": "Batch: `latest` (default) or JSON.",
    "endingTimestamp": "Batch: end before the first record at or after this time (ms).",
    "endingOffsetsByTimestamp": "Batch: the same per partition, as JSON.",
    "fromOffset": "Batch: no records before this offset, in whichever partition.",
    "beforeOffset": "Batch: no records at or after this offset.",
    "maxOffsetsPerTrigger": "Stream: the most records per micro-batch.",
    "minOffsetsPerTrigger": "Stream: wait for at least this many records …",
    "maxTriggerDelay": "… but no longer than this. Default: `15m`.",
    "minPartitions": "The fewest tasks. Default: chosen by size.",
    "maxRecordsPerPartition": "The most records per task.",
    "failOnDataLoss": (
        "Whether to fail (default `true`) or continue when records were deleted before they were "
        "read, or a topic was deleted or recreated."
    ),
    "parallelism": "The number of parallel tasks. Default: the driver's cores.",
    "includeHeaders": "Add the column `headers`. Default: `false`.",
    "columns": "Decode only these columns, comma separated.",
    "filterPushdown": (
        "`auto` (default), `true`, `false`: whether filters on offset, partition, topic and "
        "timestamp narrow what is read."
    ),
    "commitGroup": (
        "Stream: commit this group's cursor at each micro-batch, so lag shows and RECLAIM waits."
    ),
    "groupIdPrefix": "Prefix of the client id. Default: `cordwood-spark`.",
    "kafka.group.id": "The group id.",
    "kafka.isolation.level": (
        "`read_uncommitted` (default) or `read_committed`: skip records of open or aborted "
        "transactions. Cordwood's own jobs read committed."
    ),
    **TLS_OPTIONS,
    "fetchOffset.numRetries": "How often a failed request is retried. Default: `3`.",
    "fetchOffset.retryIntervalMs": "Pause between retries. Default: `1000`.",
    "kafkaConsumer.pollTimeoutMs": "How long a task waits for the broker. Default: `120000`.",
}
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}  # set by cordwood's own jobs
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY: Final = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "fromOffset",
    "beforeOffset",
)
TUNING: Final = (  # settings of the Java consumer; ignored, as ours has no such settings
    "kafka.client.id",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.heartbeat.interval.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.interval.ms",
    "kafka.max.poll.records",
    "kafka.metadata.max.age.ms",
    "kafka.receive.buffer.bytes",
    "kafka.request.timeout.ms",
    "kafka.session.timeout.ms",
    "kafkaConsumer.consumeGroupMaxWaitMs",
)
REFUSED: Final = {
    "kafka.auto.offset.reset": "set startingOffsets to earliest or latest instead",
    "kafka.key.deserializer": "keys are binary; decode them in the query",
    "kafka.value.deserializer": "values are binary; decode them in the query",
    "kafka.enable.auto.commit": "set commitGroup to commit a cursor at each micro-batch",
    "kafka.interceptor.classes": "transform records in the query",
    **TLS_REFUSED,
}
_BY_LOWER: Final = {
    name.lower(): name for name in (*OPTIONS, *TUNING, *REFUSED)
}  # name as Spark passes it → documented name
_TIME_UNITS_MS: Final = {**DURATIONS_MS, "": 1, "min": DURATIONS_MS["m"]}


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and validate all options; raises ``InvalidOption``."""
    values = _known(options)
    starting = _parse_position(
        values, "starting", default=Edge.LATEST if streaming else Edge.EARLIEST
    )
    ending = _parse_position(values, "ending", default=Edge.LATEST)
    if streaming:
        _refuse_any(values, _BATCH_ONLY, "not valid in streaming queries: a stream has no end")
    else:
        _check_batch(starting, ending)
    parsed = SourceOptions(
        subscription=_parse_subscription(values),
        path=values.get("path"),
        servers=_parse_servers(values),
        tls=parse_tls(values),
        starting=starting,
        ending=ending,
        no_match_is_latest=_parse_choice(
            values, "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "latest",
        columns=_wanted(values),
        max_offsets_per_trigger=_parse_count(values, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_parse_count(values, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=parse_duration_ms(
            "maxTriggerDelay", values.get("maxTriggerDelay", "15m")
        ),
        min_partitions=_parse_count(values, "minPartitions"),
        max_records_per_partition=_parse_count(values, "maxRecordsPerPartition"),
        parallelism=_parse_count(values, "parallelism"),
        fail_on_data_loss=_parse_bool(values, "failOnDataLoss", default=True),
        from_offset=_parse_int(values, "fromOffset", 0),
        before_offset=_parse_int(values, "beforeOffset", KEEP_ALL),
        committed=_parse_choice(
            values, "kafka.isolation.level", ("read_uncommitted", "read_committed")
        )
        == "read_committed",
        push_filters={"auto": None, "true": True, "false": False}[
            _parse_choice(values, "filterPushdown", ("auto", "true", "false"))
        ],
        commit_group=values.get("commitGroup"),
        group_id=values.get("kafka.group.id"),
        group_id_prefix=values.get("groupIdPrefix", "cordwood-spark"),
        offset_retries=_parse_int(values, "fetchOffset.numRetries", 3),
        offset_retry_interval_ms=_parse_int(values, "fetchOffset.retryIntervalMs", 1000),
        poll_timeout_ms=_parse_int(values, "kafkaConsumer.pollTimeoutMs", 120_000),
        ignored=_ignored(values, streaming=streaming),
    )
    _check_whole(parsed)
    return parsed


def parse_duration_ms(name: str, text: str) -> int:
    """Parse ``15m``, ``500ms`` or plain milliseconds, as Spark parses durations."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _TIME_UNITS_MS:
        raise InvalidOption(f"option {name}: {text!r} is not a time such as 15m, 30s or 500ms")
    return int(match[1]) * _TIME_UNITS_MS[match[2]]


def parse_partition_numbers(name: str, text: str) -> dict[TopicPartition, int]:
    """Parse JSON such as ``{"topic": {"0": 23, "1": -1}}``."""
    parsed: dict[TopicPartition, int] = {}
    for topic, partitions in _parse_object(name, text).items():
        if not isinstance(partitions, dict):
            raise _malformed(name, text)
        for partition, number in partitions.items():
            if not partition.isdecimal() or not _is_int(number):
                raise _malformed(name, text)
            parsed[TopicPartition(topic, int(partition))] = number
    return parsed


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Map documented names to values; raises ``InvalidOption`` for the first unknown name."""
    values: dict[str, str] = {}
    for key, value in options.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            shown = [*OPTIONS, *TUNING]
            close = nearest(key.lower(), [known.lower() for known in shown])
            for known in shown:
                close = close.replace(f" {known.lower()}?", f" {known}?")
            raise InvalidOption(f"unknown option {key}{close}")
        if name in REFUSED:
            raise InvalidOption(f"option {name} is not supported: {REFUSED[name]}")
        values[name] = value
    return values


def _parse_subscription(values: Mapping[str, str]) -> TopicSelection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(given) != 1:
        count = f"found {' and '.join(given)}" if given else "found none"
        raise InvalidOption(f"set exactly one of subscribe, subscribePattern and assign; {count}")
    text = values[given[0]].strip()
    if given[0] == "subscribe":
        return TopicSelection(topics=_parse_topics(text))
    if given[0] == "assign":
        return TopicSelection(partitions=_parse_assign(text))
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(
            f"option subscribePattern: {text!r} is not a Python regular expression: {error}"
        ) from None
    if not text:
        raise InvalidOption("option subscribePattern is empty")
    return TopicSelection(pattern=text)


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise InvalidOption(f"option subscribe: {text!r} names no topic")
    for topic in topics:
        _check_topic("subscribe", topic)
    return topics


def _parse_assign(text: str) -> tuple[TopicPartition, ...]:
    assigned: list[TopicPartition] = []
    for topic, partitions in _parse_object("assign", text).items():
        _check_topic("assign", topic)
        if not isinstance(partitions, list) or not all(_is_int(p) and p >= 0 for p in partitions):
            raise InvalidOption(f'option assign: {text!r} is not JSON such as {{"t": [0, 1]}}')
        assigned += [TopicPartition(topic, partition) for partition in partitions]
    if not assigned:
        raise InvalidOption(f"option assign: {text!r} names no partition")
    return tuple(dict.fromkeys(assigned))


def _check_topic(name: str, topic: str) -> None:
    if not is_topic_name(topic):
        raise InvalidOption(f"option {name}: {topic!r} is not a valid topic name")


def _parse_position(values: Mapping[str, str], side: str, *, default: Edge) -> Position:
    """Timestamp, then offsets by timestamp, then offsets: the first that is set wins."""
    one_time, times, offsets = (
        f"{side}Timestamp",
        f"{side}OffsetsByTimestamp",
        f"{side}Offsets",
    )
    if one_time in values:
        return AtTimes(_parse_int(values, one_time, 0))
    if times in values:
        return AtTimes(parse_partition_numbers(times, values[times]))
    text = values.get(offsets, default.name).strip()
    if text.upper() in Edge.__members__:
        return Edge[text.upper()]
    parsed = parse_partition_numbers(offsets, text)
    if any(offset < Edge.EARLIEST.value for offset in parsed.values()):
        raise InvalidOption(f"option {offsets}: an offset below -2 in {text}")
    return AtOffsets(parsed)


def _check_batch(starting: Position, ending: Position) -> None:
    """Raise ``InvalidOption`` unless the start and end of a batch query are in order."""
    if _touches(starting, Edge.LATEST):
        raise InvalidOption("startingOffsets cannot be latest in a batch query")
    if _touches(ending, Edge.EARLIEST):
        raise InvalidOption("endingOffsets cannot be earliest in a batch query")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_pairs("Offsets", starting.offsets, ending.offsets)
    if (
        isinstance(starting, AtTimes)
        and isinstance(ending, AtTimes)
        and isinstance(starting.times_ms, Mapping)
        and isinstance(ending.times_ms, Mapping)
    ):
        _check_pairs("OffsetsByTimestamp", starting.times_ms, ending.times_ms)


def _check_pairs(
    what: str, starting: Mapping[TopicPartition, int], ending: Mapping[TopicPartition, int]
) -> None:
    if starting.keys() != ending.keys():
        raise InvalidOption(f"starting{what} and ending{what} must name the same partitions")
    for tp, start in starting.items():
        if start >= 0 and 0 <= ending[tp] < start:
            raise InvalidOption(
                f"starting{what} of {tp} is {start}, after ending{what} {ending[tp]}"
            )


def _touches(position: Position, edge: Edge) -> bool:
    if isinstance(position, AtOffsets):
        return edge.value in position.offsets.values()
    return position is edge


def _check_whole(options: SourceOptions) -> None:
    if options.path is None and options.servers is None:
        raise InvalidOption(
            "set kafka.bootstrap.servers (a broker), or path (a data directory, no broker needed)"
        )
    if options.commit_group is not None and options.servers is None:
        raise InvalidOption("commitGroup needs kafka.bootstrap.servers: the broker keeps cursors")
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise InvalidOption(f"minOffsetsPerTrigger {low} is above maxOffsetsPerTrigger {high}")


def _parse_servers(values: Mapping[str, str]) -> str | None:
    servers = values.get("kafka.bootstrap.servers", values.get("bootstrap.servers"))
    if servers is None:
        return None
    for server in servers.split(","):
        if not re.fullmatch(r"\s*\S+:\d{1,5}\s*", server):
            raise InvalidOption(f"option kafka.bootstrap.servers: {server!r} is not host:port")
    return servers


def parse_wanted(options: Mapping[str, str]) -> tuple[str, ...]:
    """The requested columns; checks all option names, but only the values that select columns."""
    return _wanted(_known(options))


def _wanted(values: Mapping[str, str]) -> tuple[str, ...]:
    """The option ``columns``, else the fixed columns, plus headers with ``includeHeaders``."""
    include_headers = _parse_bool(values, "includeHeaders", default=False)
    if "columns" in values:
        return parse_columns(values["columns"])
    return (*FIXED_COLUMNS, HEADERS) if include_headers else FIXED_COLUMNS


def _parse_bool(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    word = values.get(name, str(default)).strip().lower()
    if word not in {"true", "false"}:
        raise InvalidOption(f"option {name}: {values[name]!r} is not true or false")
    return word == "true"


def _parse_int(values: Mapping[str, str], name: str, default: int) -> int:
    try:
        number = int(values.get(name, default))
    except ValueError:
        raise InvalidOption(f"option {name}: {values[name]!r} is not a whole number") from None
    if number < 0:
        raise InvalidOption(f"option {name}: {number} is below 0")
    return number


def _parse_count(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    number = _parse_int(values, name, 0)
    if number == 0:
        raise InvalidOption(f"option {name}: must be at least 1")
    return number


def _parse_choice(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Parse one of the choices; the first is the default."""
    word = values.get(name, choices[0]).strip().lower()
    if word not in choices:
        raise InvalidOption(f"option {name}: {values[name]!r} is not one of {', '.join(choices)}")
    return word


def _parse_object(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        raise _malformed(name, text) from None
    if not isinstance(parsed, dict):
        raise _malformed(name, text)
    return parsed


def _malformed(name: str, text: str) -> InvalidOption:
    edges = "earliest, latest or " if name.endswith("Offsets") else ""
    example = '{"t": [0, 1]}' if name == "assign" else '{"t": {"0": 23, "1": 42}}'
    return InvalidOption(f"option {name}: {text!r} is not {edges}JSON such as {example}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_any(values: Mapping[str, str], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in values:
            raise InvalidOption(f"option {name} is {why}")


def _ignored(values: Mapping[str, str], *, streaming: bool) -> tuple[str, ...]:
    without_effect = TUNING if streaming else (*TUNING, *_STREAM_ONLY)
    return tuple(name for name in without_effect if name in values)
