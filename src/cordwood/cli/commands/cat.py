"""``cordwood cat``: a topic as ``seq|broker_ts|routing_key|producer_ts|n|payload`` lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from cordwood.cli.options.arguments import DEFAULT_BROKER, BrokerOption, TopicArgument
from cordwood.cli.options.tls import BrokerTarget
from cordwood.errors import CorruptBatch, CorruptionError, UnknownTopic
from cordwood.model import TopicPartition

if TYPE_CHECKING:
    from cordwood.pipeline.source.segment_files import Chunk

PLAIN_BYTES: Final = 256 * 1024  # above this, loading the kernels pays off


def cat(
    topic: TopicArgument,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Only this partition.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Read the files of this data directory, without a broker.", metavar="DIR"
        ),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Print a topic's records as lines for awk, from the first to the last that exist now.

    Prints what a subscriber would read: no records of open or aborted transactions. A topic with
    several partitions is printed partition by partition, with partition:seq as the first field.
    """
    out = sys.stdout.buffer
    for part in _parts(topic, partition, data, broker):
        try:
            out.write(_lines(part))
        except CorruptBatch as error:
            chunk = part.chunk
            raise CorruptionError(
                f"{part.tp}, offsets {chunk.start_offset} to {chunk.end_offset - 1}: "
                f"{error}; run `cordwood segment verify {topic}`"
            ) from None
    out.flush()


class _Part(NamedTuple):
    """A few MiB of one partition, the offset to stop at, and the partition to print, if any."""

    tp: TopicPartition
    chunk: Chunk
    end: int
    label: int | None


def _parts(
    topic: str, only: int | None, data: Path | None, broker: BrokerTarget
) -> Iterator[_Part]:
    """Yield the batches of one partition, or of each in turn."""
    from cordwood.cli.options.connect import kafka_client
    from cordwood.pipeline.runtime.tls_options import encode_tls
    from cordwood.pipeline.source.log_access import open_log
    from cordwood.pipeline.source.offsets import Range
    from cordwood.pipeline.source.options import COMMITTED, parse_options

    if data is None:
        with kafka_client(broker) as client:
            client.partitions(topic)  # fails early without a broker or topic
    servers = {"kafka.bootstrap.servers": broker.address, **encode_tls(broker.tls)}
    where = {"path": str(data)} if data else servers
    options = parse_options({**COMMITTED, "subscribe": topic, **where}, streaming=False)
    with open_log(options) as log:
        numbers = sorted(log.topics().get(topic, ()))
        chosen = _choose(topic, only, numbers, str(data or broker))
        all_bounds = log.bounds(chosen)
        for tp in chosen:
            bounds = all_bounds[tp]
            label = tp.partition if len(chosen) > 1 else None
            for chunk in log.chunks(Range(tp, *bounds), None):
                yield _Part(tp, chunk, bounds.end, label)


def _choose(
    topic: str, only: int | None, numbers: Sequence[int], where: str
) -> list[TopicPartition]:
    chosen = [TopicPartition(topic, number) for number in numbers if only in {None, number}]
    if not chosen:
        name = topic if only is None else f"partition {TopicPartition(topic, only)}"
        raise UnknownTopic(f"{where} has no {name}; see `cordwood topic list`")
    return chosen


def _lines(part: _Part) -> bytes:
    """Format with the kernels if the chunk is large enough, else record by record."""
    chunk, end, label = part.chunk, part.end, part.label
    if len(chunk.data) > PLAIN_BYTES:
        from cordwood.batch.subscriber_lines import format_batches

        return format_batches(
            chunk.data, chunk.start_offset, chunk.aborted,
            end_offset=end, is_framed=False, partition=label,
        )  # fmt: skip
    from cordwood.batch.records import decode_committed
    from cordwood.protocol.line.framing import Framing
    from cordwood.protocol.line.records import encode_records

    aborted = [
        (each.producer_id, each.first_offset)
        for each in chunk.aborted
        if each.last_offset >= chunk.start_offset  # earlier transactions ended before this chunk
    ]
    records = decode_committed(chunk.data, aborted)
    present = [r for r in records if chunk.start_offset <= r.offset < end]
    return encode_records(present, Framing.TEXT, label)
