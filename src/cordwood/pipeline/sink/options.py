"""Sink options, with the names of Spark's Kafka sink, and the columns that rows may have.

Pure: no Spark, no files, no sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cordwood.config import nearest
from cordwood.errors import InvalidOption
from cordwood.log.format.manifest import is_job_name
from cordwood.model import Codec, is_topic_name
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.runtime.tls_options import TLS_OPTIONS, TLS_REFUSED, parse_tls
from cordwood.pipeline.source.schema import COLUMNS as SOURCE_COLUMNS
from cordwood.pipeline.source.schema import HEADERS

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {  # name → accepted types
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    HEADERS: (SOURCE_COLUMNS[HEADERS],),
    "topic": ("string",),
    "partition": ("int",),
}
OPTIONS: Final = {  # documented name → what it does
    "kafka.bootstrap.servers": "The broker to write to.",
    "bootstrap.servers": "The same.",
    "http": "The broker's HTTP address instead, `host:port` or `https://host:port`.",
    "topic": "The topic of every row; overrides a column `topic`.",
    "queryId": (
        "Batch, with `batchId`: a repeated write is stored only once, as in `foreachBatch`."
    ),
    "batchId": "Batch, with `queryId`: counts up from 0.",
    "includeHeaders": "Accepted for Kafka compatibility: a column `headers` is always written.",
    "kafka.compression.type": "`none` (default), `gzip`, `snappy`, `lz4` or `zstd`.",
    "checkpointLocation": "Stream: where Spark stores the query's progress.",
    **TLS_OPTIONS,
}
TUNING: Final = (  # settings of the Java producer; ignored, as deliveries have no such settings
    "kafka.acks",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.client.id",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.linger.ms",
    "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.request.size",
    "kafka.request.timeout.ms",
    "kafka.retries",
)
REFUSED: Final = {
    "path": "the sink writes through a broker; set kafka.bootstrap.servers",
    "kafka.key.serializer": "keys must be binary or string; encode them in the query",
    "kafka.value.serializer": "values must be binary or string; encode them in the query",
    "kafka.transactional.id": "a streaming query always writes exactly once",
    "kafka.partitioner.class": "give the rows a partition column",
    **TLS_REFUSED,
}
_BY_LOWER: Final = {name.lower(): name for name in (*OPTIONS, *TUNING, *REFUSED)}
_BATCH_ONLY: Final = ("queryId", "batchId")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All settings of a writer; small and picklable."""

    where: BrokerAddress
    topic: str | None
    codec: Codec
    query: str | None  # with ``batch``: an idempotent batch write, as in foreachBatch
    batch: int | None


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse and validate all options; raises ``InvalidOption``."""
    known = _known(options)
    for name in _BATCH_ONLY if streaming else ():
        if name in known:
            raise InvalidOption(
                f"option {name} is for batch writes: a streaming query has its own, from its "
                "checkpoint"
            )
    if ("queryId" in known) != ("batchId" in known):
        raise InvalidOption("set queryId and batchId together, to make a batch write repeatable")
    where = _where(known)
    if where.servers is None and where.http is None:
        raise InvalidOption("set kafka.bootstrap.servers (or http) to the broker to write to")
    return SinkOptions(
        where=where,
        topic=_topic(known),
        codec=_codec(known),
        query=_query(known),
        batch=_batch(known),
    )


def check_columns(fields: Sequence[Any], options: SinkOptions) -> None:
    """Raise ``InvalidOption`` if a column prevents rows from becoming records."""
    kinds = {field.name: field.dataType.simpleString() for field in fields}
    if "value" not in kinds:
        close = nearest("value", kinds)
        raise InvalidOption(f"the rows have no column value{close} (binary or string)")
    for name, kind in kinds.items():
        if name in COLUMNS and kind not in COLUMNS[name]:
            takes = " or ".join(COLUMNS[name])
            raise InvalidOption(
                f"column {name} has type {kind}, but must be {takes}: cast it in the query"
            )
        if name not in COLUMNS and name not in SOURCE_COLUMNS and nearest(name, COLUMNS):
            raise InvalidOption(f"there is no record field {name}{nearest(name, COLUMNS)}")
    if options.topic is None and "topic" not in kinds:
        raise InvalidOption("set the option topic, or give the rows a column topic")


def _known(options: Mapping[str, str]) -> dict[str, str]:
    known: dict[str, str] = {}
    for key, value in options.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            shown = {option.lower(): option for option in (*OPTIONS, *TUNING)}
            close = nearest(key.lower(), shown)
            for lower, option in shown.items():
                close = close.replace(f" {lower}?", f" {option}?")
            raise InvalidOption(f"unknown sink option {key}{close}")
        if name in REFUSED:
            raise InvalidOption(f"option {name} is not for the sink: {REFUSED[name]}")
        known[name] = value
    return known


def _where(known: Mapping[str, str]) -> BrokerAddress:
    servers, http, tls = _servers(known), known.get("http"), parse_tls(known)
    if http is not None and tls is not None and "://" not in http:
        http = f"https://{http.strip()}"  # kafka.security.protocol is for both listeners
    return BrokerAddress(servers, http, tls)


def _servers(known: Mapping[str, str]) -> str | None:
    servers = known.get("kafka.bootstrap.servers", known.get("bootstrap.servers"))
    for name, text in (("kafka.bootstrap.servers", servers), ("http", known.get("http"))):
        for server in text.split(",") if text is not None else ():
            if not re.fullmatch(r"\s*\S+:\d{1,5}\s*", server):
                raise InvalidOption(f"option {name}: {server!r} is not host:port")
    return servers


def _topic(known: Mapping[str, str]) -> str | None:
    topic = known.get("topic")
    if topic is not None and not is_topic_name(topic):
        raise InvalidOption(f"option topic: {topic!r} is not a valid topic name")
    return topic


def _codec(known: Mapping[str, str]) -> Codec:
    text = known.get("kafka.compression.type", "none")
    if text.upper() not in Codec.__members__:
        names = ", ".join(name.lower() for name in Codec.__members__)
        raise InvalidOption(f"option kafka.compression.type: {text!r} is not one of {names}")
    return Codec[text.upper()]


def _query(known: Mapping[str, str]) -> str | None:
    query = known.get("queryId")
    if query is not None and not is_job_name(query):
        raise InvalidOption(f"option queryId: {query!r} may only have letters, digits, . _ and -")
    return query


def _batch(known: Mapping[str, str]) -> int | None:
    batch = known.get("batchId")
    if batch is not None and not batch.isdecimal():
        raise InvalidOption(f"option batchId: {batch!r} is not a whole number from 0")
    return None if batch is None else int(batch)
