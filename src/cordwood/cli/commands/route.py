"""``cordwood route``: bind routing keys to topics, also while the pipeline runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cordwood.cli.commands.completion import complete_topics
from cordwood.cli.output.tables import DEFAULT_BROKER, BrokerOption, Format, FormatOption, show

app = typer.Typer(
    help="Bindings of routing keys to topics; the next micro-batch obeys a change.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


class BindingKind(StrEnum):
    """How a key is matched."""

    EXACT = "exact"
    PREFIX = "prefix"


KeyArgument = Annotated[str, typer.Argument(help="The routing key, or its part before the dot.")]
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
            help="Where its records go; created on sight.", autocompletion=complete_topics
        ),
    ],
    kind: KindOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Bind a key to a topic."""
    from cordwood.cli.options.connect import http_client

    said = {"kind": _kind(key, kind), "key": key, "topic": topic}
    http_client(broker).post("/api/routes", said)


@app.command("list")
def list_routes(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """List every binding; keys without one go to the topic named by their first part."""
    from cordwood.cli.options.connect import http_client

    show(http_client(broker).get("/api/routes")["routes"], form)


@app.command()
def remove(
    key: KeyArgument, kind: KindOption = None, broker: BrokerOption = DEFAULT_BROKER
) -> None:
    """Remove a binding; its keys use the default again."""
    from cordwood.cli.options.connect import http_client

    http_client(broker).delete("/api/routes", kind=_kind(key, kind), key=key)


def _kind(key: str, kind: BindingKind | None) -> str:
    return (kind or (BindingKind.EXACT if "." in key else BindingKind.PREFIX)).value
