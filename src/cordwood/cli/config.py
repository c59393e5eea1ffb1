"""``cordwood config``: what is set, and where it was set."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cordwood.cli.output import Format, FormatOption, show
from cordwood.config import (
    BrokerConfig,
    environment_name,
    format_value,
    load_broker_config,
    rows,
)

app = typer.Typer(
    help="Settings of the broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Keep ``show`` a command of its own."""


@app.command("show")
def show_config(
    config: Annotated[str | None, typer.Option(help="A TOML file of settings.")] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Every broker setting as `cordwood serve` would take it here, and its source."""
    loaded = load_broker_config({}, os.environ, config)
    without = load_broker_config({}, {}, config)
    shown = []
    for name, (field, _, row) in rows(BrokerConfig).items():
        value = getattr(loaded, field)
        source = "default"
        if environment_name(name) in os.environ:
            source = "environment"
        elif getattr(without, field) != row.default:
            source = "file"
        shown.append({"setting": name, "value": format_value(row, value), "source": source})
    show(shown, form)
