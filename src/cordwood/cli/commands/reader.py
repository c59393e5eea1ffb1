"""``cordwood reader``: the named readers that RECLAIM waits for."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.commands.completion import complete_topics
from cordwood.cli.output.tables import (
    DEFAULT_BROKER,
    BrokerOption,
    Format,
    FormatOption,
    confirm,
    show,
)

app = typer.Typer(
    help="Named readers: RECLAIM waits for them where cleanup.policy says consume.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

Topic = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)]
Reader = Annotated[str, typer.Argument(help="The reader's name; a consumer group is one too.")]


@app.command("list")
def list_readers(
    topic: Annotated[
        str | None, typer.Argument(help="Only this topic.", autocompletion=complete_topics)
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """List every registered reader: its cursor, its lag and the bytes it retains."""
    from cordwood.cli.options.connect import http_client
    from cordwood.client.kafka import KafkaClient

    if topic:
        with KafkaClient(broker) as client:
            client.topics([topic])  # a topic without readers has no rows; a missing one is an error
    show(
        http_client(broker).get("/api/readers", **({"topic": topic} if topic else {}))["readers"],
        form,
    )


@app.command()
def register(topic: Topic, reader: Reader, broker: BrokerOption = DEFAULT_BROKER) -> None:
    """Register a reader: from now on RECLAIM waits for it."""
    _change(broker, action="register", topic=topic, reader=reader)


@app.command()
def reset(
    topic: Topic,
    reader: Reader,
    offset: Annotated[int, typer.Argument(min=0, help="The next offset it will read.")],
    partition: Annotated[int, typer.Option("-p", "--partition", min=0)] = 0,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Move a reader's cursor to any offset up to the end of the partition."""
    _change(broker, action="reset", topic=topic, reader=reader, partition=partition, offset=offset)


@app.command()
def remove(
    topic: Topic,
    reader: Reader,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Remove a reader: RECLAIM may delete what only this reader retained."""
    confirm(f"Forget reader {reader} on {topic}, and release what it holds?", yes=yes)
    _change(broker, action="remove", topic=topic, reader=reader)


def _change(broker: str, **change: str | int) -> None:
    from cordwood.cli.options.connect import http_client

    http_client(broker).post("/api/readers", change)
