"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood import __version__
from cordwood.cli import certs, scenario, serve

app = typer.Typer(
    name="cordwood",
    help="A durable message log: Kafka's protocol and plain lines in front, Spark behind.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: quicker, and the same on every terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"cordwood {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    del version


app.command("serve")(serve.serve)
app.command("scenario")(scenario.scenario)
app.add_typer(certs.app, name="certs")
