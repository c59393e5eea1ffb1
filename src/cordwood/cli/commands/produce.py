"""``cordwood produce``: append the lines of a file or pipe to a topic, one record per line.

A line is the value, or with ``-J`` a JSON object with key, value, headers, partition and timestamp.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from cordwood.cli.options.arguments import DEFAULT_BROKER, BrokerOption, complete_topics
from cordwood.cli.output.progress import ProgressBar, QuietOption, progress
from cordwood.cli.output.record_format import parse_separator
from cordwood.cli.output.record_json import BadLine, parse_json
from cordwood.config import KIB
from cordwood.errors import UnknownTopic
from cordwood.model import Codec, Header, Record, TopicPartition
from cordwood.plural import plural

if TYPE_CHECKING:
    from cordwood.client.kafka import KafkaClient

BATCH_RECORDS = 1000
BATCH_BYTES = 256 * KIB
LINE_BYTES_MAX = 16 * 1024 * KIB


class Compression(StrEnum):
    """Codecs by their Kafka names."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic; created if missing and auto.create.topics is on.",
            autocompletion=complete_topics,
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files to read. [default: standard input]",
            exists=True,
            dir_okay=False,
            metavar="FILE",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "-J",
            "--json",
            help="Each line is a JSON object as `consume -J` prints it: value, and if wanted key, "
            "headers, partition and timestamp.",
        ),
    ] = False,
    key: Annotated[str | None, typer.Option("-k", "--key", help="The key of every record.")] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "-K",
            "--key-separator",
            help="Split each line into key and value at this separator; \\t is a tab.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--header",
            help="A header, added to every record; repeat for more.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    null: Annotated[
        bool, typer.Option("-Z", "--null", help="Send an empty value as null, a tombstone.")
    ] = False,
    codec: Annotated[
        Compression, typer.Option("-z", "--compression", help="How batches are compressed.")
    ] = Compression.NONE,
    partition: Annotated[
        int | None,
        typer.Option("-p", "--partition", min=0, help="The partition. [default: by key]"),
    ] = None,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition", help="With -J: choose partitions by key, not as the JSON says."
        ),
    ] = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Append records: one line is one record. Each batch is durable before the next is sent.

    Copy a topic: cordwood consume FROM -e -J | cordwood produce TO -J
    """
    from cordwood.batch.records import encode_batch
    from cordwood.cli.options.connect import kafka_client

    if as_json and (key is not None or separator is not None or null):
        raise typer.BadParameter("-J takes key and value from the JSON; leave out -k, -K and -Z")
    shared = tuple(_header(text) for text in headers or [])
    sent = 0
    typed = not files and sys.stdin.isatty()
    size_bytes = _size(files)
    with (
        kafka_client(broker) as client,
        progress(f"to {topic}", total=size_bytes, unit="bytes", quiet=quiet or typed) as bar,
    ):
        count = _partition_count(client, topic)
        lines = enumerate(_lines(files, bar), 1)
        if as_json:
            placed = _parsed(lines, shared, topic, None if repartition else count)
        else:
            cut_at = None if separator is None else parse_separator(separator)
            placed = _records(lines, key, cut_at, shared, null=null)
        try:
            for group in _groups(placed):
                for number, records in _by_partition(group, count, partition).items():
                    batch = encode_batch(_numbered(records), codec=Codec[codec.name])
                    client.produce(TopicPartition(topic, number), batch)
                sent += len(group)
        except BadLine as error:
            kept = f"the first {plural(sent, 'record')} were" if sent else "nothing was"
            raise typer.BadParameter(f"{error}; {kept} appended to {topic}") from None
    typer.echo(f"appended {plural(sent, 'record')} to {topic}", err=True)


class PlacedRecord(NamedTuple):
    """A record, and the partition it names."""

    partition: int | None
    record: Record


def _partition_count(client: KafkaClient, topic: str) -> int:
    try:
        return len(client.partitions(topic))
    except UnknownTopic:
        client.create_topic(topic, -1, {})
        return len(client.partitions(topic))


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not a header, name=value")
    return Header(name, value.encode())


def _records(
    lines: Iterable[tuple[int, bytes]],
    key: str | None,
    separator: bytes | None,
    headers: tuple[Header, ...],
    *,
    null: bool,
) -> Iterator[PlacedRecord]:
    for number, line in lines:
        found_key, value = (key.encode() if key is not None else None), line
        if separator is not None:
            found_key, cut, value = line.partition(separator)
            if not cut:
                shown = line[:60].decode(errors="backslashreplace")
                raise BadLine(f"line {number} has no key separator: {shown}")
        is_null = null and not value
        yield PlacedRecord(
            None, Record(0, _now_ms(), found_key, None if is_null else value, headers)
        )


def _parsed(
    lines: Iterable[tuple[int, bytes]],
    headers: tuple[Header, ...],
    topic: str,
    count: int | None,
) -> Iterator[PlacedRecord]:
    """Parse JSON lines; ``count`` is the number of partitions if the JSON chooses them."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            parsed = parse_json(line)
        except BadLine as error:
            raise BadLine(f"line {number}: {error}") from None
        partition = None if count is None else parsed.partition
        if partition is not None and count is not None and partition >= count:
            raise BadLine(
                f"line {number}: topic {topic} has no partition {partition}, only 0 to "
                f"{count - 1}; --repartition chooses partitions by key"
            )
        when_ms = _now_ms() if parsed.timestamp_ms is None else parsed.timestamp_ms
        record = Record(0, when_ms, parsed.key, parsed.value, (*parsed.headers, *headers))
        yield PlacedRecord(partition, record)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _size(files: list[Path] | None) -> int | None:
    """Return how many bytes will be read, if known beforehand."""
    found = [path.stat() for path in files] if files else [os.fstat(sys.stdin.fileno())]
    is_known = all(stat.S_ISREG(each.st_mode) for each in found)
    return sum(each.st_size for each in found) if is_known else None


def _lines(files: list[Path] | None, bar: ProgressBar) -> Iterator[bytes]:
    if not files:
        yield from _lines_of(sys.stdin.buffer, bar)
    for path in files or []:
        with path.open("rb") as file:
            yield from _lines_of(file, bar)


def _lines_of(file: BinaryIO, bar: ProgressBar) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX):
        yield line.removesuffix(b"\n").removesuffix(b"\r")
        bar.advance(len(line))


def _groups(records: Iterator[PlacedRecord]) -> Iterator[list[PlacedRecord]]:
    """Group records into batches of a good size; on a terminal each line is sent immediately."""
    limit = 1 if sys.stdin.isatty() else BATCH_RECORDS
    group: list[PlacedRecord] = []
    size = 0
    for placed in records:
        group.append(placed)
        record = placed.record
        size += len(record.value or b"") + len(record.key or b"")
        if len(group) >= limit or size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _by_partition(
    group: list[PlacedRecord], count: int, partition: int | None
) -> dict[int, list[Record]]:
    """A key always maps to one partition; the first value of a group places its keyless records."""
    chosen: dict[int, list[Record]] = {}
    spread = zlib.crc32(group[0].record.value or b"") % count
    for named, record in group:
        if partition is not None:
            number = partition
        elif named is not None:
            number = named
        else:
            number = spread if record.key is None else _hash(record.key) % count
        chosen.setdefault(number, []).append(record)
    return chosen


def _hash(key: bytes) -> int:
    """Kafka's default partitioner: murmur2, made positive."""
    return _murmur2(key) & 0x7FFFFFFF


def _murmur2(data: bytes) -> int:
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ (word >> 24)) * multiplier & mask
        state = (state * multiplier & mask) ^ word
    rest = data[whole:]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * multiplier & mask
    state = (state ^ (state >> 13)) * multiplier & mask
    return state ^ (state >> 15)


def _numbered(records: list[Record]) -> list[Record]:
    return [Record(i, r.timestamp_ms, r.key, r.value, r.headers) for i, r in enumerate(records)]
