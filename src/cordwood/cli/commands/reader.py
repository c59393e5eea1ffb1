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
    complete_topics,
    confirm,
)
from cordwood.cli.options.tls import BrokerTarget
from cordwood.cli.output.row_printer import Format, show
from cordwood.plural import plural
from cordwood.protocol.api.readers import ChangeReader, DrainReader, ListReaders

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
    from cordwood.cli.options.connect import http_client, kafka_client

    if topic:
        with kafka_client(broker) as client:
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
def drain(
    reader: Reader,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Drain this topic instead of all routes; repeat for more.",
            autocompletion=complete_topics,
            metavar="TOPIC",
        ),
    ] = None,
    ingress: Annotated[bool, typer.Option("--ingress", help="The ingress topic, too.")] = False,
    register: Annotated[
        bool, typer.Option("--register", help="Also where the reader is not registered yet.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be released; change nothing.")
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Acknowledge all routes for a reader in one step: move its cursors to the ends, all or none.

    A route is a topic that the router delivers to or that a routing key is bound to; not the
    dead-letter topic. RECLAIM deletes the released segments in its next round.
    """
    from cordwood.cli.options.connect import http_client

    request = DrainReader(
        reader, tuple(topic or ()), ingress=ingress, register=register, dry_run=dry_run
    )
    drained = http_client(broker).call(request)
    show([asdict(row) for row in drained.partitions], form)
    for name in drained.skipped:
        typer.echo(f"skipped {name}: {reader} is not registered on it (--register)", err=True)
    records = plural(sum(row.records for row in drained.partitions), "record")
    segments = plural(sum(row.released_segments for row in drained.partitions), "segment")
    size = plural(sum(row.released_bytes for row in drained.partitions), "byte")
    act = "would acknowledge" if dry_run else "acknowledged"
    typer.echo(f"{act} {records} for reader {reader}, releasing {segments} ({size})", err=True)


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


def _change(broker: BrokerTarget, change: ChangeReader) -> None:
    from cordwood.cli.options.connect import http_client

    http_client(broker).call(change)
