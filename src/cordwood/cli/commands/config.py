"""``cordwood config``: the settings and their sources."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cordwood.cli.options.arguments import FormatOption, command_group
from cordwood.cli.output.row_printer import Format, show
from cordwood.config import (
    BrokerConfig,
    environment_name,
    format_value,
    load_broker_config,
    read_file,
    rows,
)

app = command_group("Settings of the broker.")


@app.callback()
def _group() -> None:
    """Keep ``show`` a subcommand."""


@app.command("show")
def show_config(
    config: Annotated[
        str | None, typer.Option(help="A TOML file of settings.", metavar="FILE")
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show every broker setting as `cordwood serve` would use it here, and its source."""
    loaded = load_broker_config({}, os.environ, config)
    in_file = read_file(config) if config else {}
    shown = []
    for name, (field, _, row) in rows(BrokerConfig).items():
        source = "file" if name in in_file else "default"
        if environment_name(name) in os.environ:
            source = "environment"
        value = format_value(row, getattr(loaded, field))
        shown.append({"setting": name, "value": value, "source": source})
    show(shown, form)
