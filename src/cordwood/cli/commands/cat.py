"""``cordwood cat``: a topic as ``seq|broker_ts|routing_key|producer_ts|n|payload`` lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    PartitionOption,
    TopicArgument,
)
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.model import TopicPartition

if TYPE_CHECKING:
    from cordwood.pipeline.source.segment_files import Chunk

PLAIN_BYTES: Final = 256 * 1024  # above this, loading the kernels pays off


def cat(
    topic: TopicArgument,
    partition: PartitionOption = 0,
    data: Annotated[
        Path | None, typer.Option(help="Read the files of this data directory, without a broker.")
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Print a topic's records as lines for awk, from the first to the last that exist now.

    Prints what a subscriber would read: no records of open or aborted transactions.
    """
    out = sys.stdout.buffer
    for chunk, end in _chunks(TopicPartition(topic, partition), data, broker):
        try:
            out.write(_lines(chunk, end))
        except CorruptBatch as error:
            raise CorruptionError(
                f"{topic}-{partition}, offsets {chunk.start_offset} to {chunk.end_offset - 1}: "
                f"{error}; run `cordwood segment verify {topic}`"
            ) from None
    out.flush()


def _chunks(tp: TopicPartition, data: Path | None, broker: str) -> Iterator[tuple[Chunk, int]]:
    """Yield the partition's batches in chunks of a few MiB, and the offset to stop at."""
    from cordwood.client.kafka import KafkaClient
    from cordwood.errors import UnknownTopic
    from cordwood.pipeline.source.log_access import open_log
    from cordwood.pipeline.source.offsets import Range
    from cordwood.pipeline.source.options import COMMITTED, parse_options

    if data is None:
        with KafkaClient(broker) as client:
            client.partitions(tp.topic)  # fails early without a broker or topic
    where = {"path": str(data)} if data else {"kafka.bootstrap.servers": broker}
    options = parse_options({**COMMITTED, "subscribe": tp.topic, **where}, streaming=False)
    with open_log(options) as log:
        if tp.partition not in log.topics().get(tp.topic, ()):
            raise UnknownTopic(f"{data or broker} has no partition {tp}; see `cordwood topic list`")
        bounds = log.bounds([tp])[tp]
        for chunk in log.chunks(Range(tp, *bounds), None):
            yield chunk, bounds.end


def _lines(chunk: Chunk, end: int) -> bytes:
    """Format with the kernels if the chunk is large enough, else record by record."""
    if len(chunk.data) > PLAIN_BYTES:
        from cordwood.batch.subscriber_lines import format_batches

        return format_batches(
            chunk.data, chunk.start_offset, chunk.aborted, end_offset=end, is_framed=False
        )
    from cordwood.batch.records import decode_committed
    from cordwood.protocol.line.framing import Framing
    from cordwood.protocol.line.records import encode_records

    aborted = [
        (each.producer_id, each.first_offset)
        for each in chunk.aborted
        if each.last_offset >= chunk.start_offset  # earlier transactions ended before this chunk
    ]
    records = decode_committed(chunk.data, aborted)
    return encode_records(
        [r for r in records if chunk.start_offset <= r.offset < end], Framing.TEXT
    )
