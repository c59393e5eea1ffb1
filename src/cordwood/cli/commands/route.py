"""``cordwood route``: bind routing keys to topics, also while the pipeline runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from msgspec.structs import asdict

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    command_group,
    complete_topics,
)
from cordwood.cli.output.row_printer import Format, show
from cordwood.protocol.api.readers import ListRoutes, RemoveRoute, RouteKind, SetRoute

app = command_group(
    "Bindings of routing keys to topics; a change takes effect with the next micro-batch."
)


class BindingKind(StrEnum):
    """How a key is matched."""

    EXACT = "exact"
    PREFIX = "prefix"


KeyArgument = Annotated[
    str, typer.Argument(help="The routing key, or its part before the first dot.")
]
KindOption = Annotated[
    BindingKind | None,
    typer.Option(
        help="exact: this key alone; prefix: every key that starts with it, up to the first dot. "
        "Without it, a key with a dot is exact and one without is a prefix."
    ),
]


@app.command("set")
def set_route(
    key: KeyArgument,
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic for its records; created if missing.", autocompletion=complete_topics
        ),
    ],
    kind: KindOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Bind a key to a topic."""
    from cordwood.cli.options.connect import http_client

    how = _kind(key, kind)
    http_client(broker).call(SetRoute(how, key, topic))
    typer.echo(f"bound {_keys(how, key)} to {topic}, from the next micro-batch on", err=True)


@app.command("list")
def list_routes(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """List every binding; keys without one go to the topic named by their first part."""
    from cordwood.cli.options.connect import http_client

    rows = [asdict(row) for row in http_client(broker).call(ListRoutes()).routes]
    show(
        rows,
        form,
        empty="no bindings; keys go to the topic named by their first part. Bind one with "
        "`cordwood route set KEY TOPIC`",
    )


@app.command()
def remove(
    key: KeyArgument, kind: KindOption = None, broker: BrokerOption = DEFAULT_BROKER
) -> None:
    """Remove a binding; its keys use the default again."""
    from cordwood.cli.options.connect import http_client

    how = _kind(key, kind)
    http_client(broker).call(RemoveRoute(how, key))
    typer.echo(f"removed the binding of {_keys(how, key)}", err=True)


def _keys(kind: RouteKind, key: str) -> str:
    return f"key {key}" if kind == "exact" else f"keys that start with {key}"


def _kind(key: str, kind: BindingKind | None) -> RouteKind:
    return (kind or (BindingKind.EXACT if "." in key else BindingKind.PREFIX)).value
