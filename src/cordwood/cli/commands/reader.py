"""``cordwood reader``: the named readers that RECLAIM waits for."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    OnlyTopicArgument,
    PartitionOption,
    TopicArgument,
    YesOption,
    command_group,
    confirm,
)
from cordwood.cli.output.row_printer import Format, show
from cordwood.protocol.api.readers import ChangeReader, ListReaders

app = command_group(
    "Named readers: RECLAIM waits for them on topics whose cleanup.policy includes consume."
)

Reader = Annotated[
    str, typer.Argument(help="The reader's name; a consumer group is also a reader.")
]


@app.command("list")
def list_readers(
    topic: OnlyTopicArgument = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """List every registered reader: its cursor, its lag and the bytes it retains."""
    from cordwood.cli.options.connect import http_client
    from cordwood.client.kafka import KafkaClient

    if topic:
        with KafkaClient(broker) as client:
            client.topics([topic])  # a topic without readers has no rows; a missing one is an error
    rows = [asdict(row) for row in http_client(broker).call(ListReaders(topic)).readers]
    show(rows, form, empty="no readers yet; add one with `cordwood reader register TOPIC READER`")


@app.command()
def register(topic: TopicArgument, reader: Reader, broker: BrokerOption = DEFAULT_BROKER) -> None:
    """Register a reader: from now on RECLAIM waits for it."""
    _change(broker, ChangeReader("register", topic, reader))
    typer.echo(f"registered reader {reader} on {topic}: RECLAIM waits for it", err=True)


@app.command()
def reset(
    topic: TopicArgument,
    reader: Reader,
    offset: Annotated[int, typer.Argument(min=0, help="The next offset the reader will read.")],
    partition: PartitionOption = 0,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Move a reader's cursor to any offset up to the end of the partition."""
    _change(broker, ChangeReader("reset", topic, reader, partition, offset))
    typer.echo(f"moved reader {reader} on {topic}-{partition} to offset {offset}", err=True)


@app.command()
def remove(
    topic: TopicArgument,
    reader: Reader,
    yes: YesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Remove a reader: RECLAIM may delete what only this reader retained."""
    confirm(
        f"Remove reader {reader} from {topic}, so that RECLAIM no longer waits for it?", yes=yes
    )
    _change(broker, ChangeReader("remove", topic, reader))
    typer.echo(f"removed reader {reader} from {topic}", err=True)


def _change(broker: str, change: ChangeReader) -> None:
    from cordwood.cli.options.connect import http_client

    http_client(broker).call(change)
