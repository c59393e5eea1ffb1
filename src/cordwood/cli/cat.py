"""``cordwood cat``: a topic as ``seq|broker_ts|routing_key|producer_ts|n|payload`` lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.output import DEFAULT_BROKER, BrokerOption
from cordwood.model import TopicPartition


def cat(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Option("-p", "--partition", min=0)] = 0,
    data: Annotated[
        Path | None, typer.Option(help="Read this data directory's files; no broker needed.")
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Print a topic's records as lines for awk, from the first to the last there is now."""
    from cordwood.batch.records import decode_batches
    from cordwood.wire.line.framing import Framing
    from cordwood.wire.line.records import encode_records

    tp = TopicPartition(topic, partition)
    for chunk in _from_files(data, tp) if data else _from_broker(broker, tp):
        sys.stdout.buffer.write(encode_records(decode_batches(chunk), Framing.TEXT))
    sys.stdout.buffer.flush()


def _from_broker(broker: str, tp: TopicPartition) -> Iterator[bytes]:
    from cordwood.batch.header import parse_headers
    from cordwood.client.kafka import EARLIEST, LATEST, KafkaClient

    with KafkaClient(broker) as client:
        offset = client.offset(tp, EARLIEST) or 0
        end = client.offset(tp, LATEST) or 0
        while offset < end:
            data = bytes(client.fetch({tp: offset}, max_wait_ms=0)[tp].records or b"")
            if not data:
                return
            yield data
            offset = parse_headers(data)[-1].end_offset


def _from_files(data: Path, tp: TopicPartition) -> Iterator[bytes]:
    from cordwood.errors import UnknownTopic
    from cordwood.log.scan import scan

    directory = data / str(tp)
    if not directory.is_dir():
        raise UnknownTopic(f"{data} has no partition {tp}")
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        yield content[: scan(content).valid_bytes]
