"""``cordwood config``: the settings and their sources."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cordwood.cli.options.arguments import FormatOption, command_group
from cordwood.cli.output.row_printer import Format, show
from cordwood.config import apply_settings, format_value, given_settings, rows

app = command_group("Settings of the broker.")

_SOURCES = {"file": "file", "variable": "environment", "default": "default"}


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
    """Show every setting as `cordwood serve` would use it here, and its source.

    Settings of topics are the defaults for topics that do not set them.
    """
    given = given_settings({}, os.environ, config)
    loaded = apply_settings(given)
    shown = []
    for values in (loaded, loaded.topic_defaults.config):
        for name, (field, _, row) in rows(type(values)).items():
            source = given[name].source.partition(" ")[0] if name in given else "default"
            value = format_value(row, getattr(values, field))
            shown.append({"setting": name, "value": value, "source": _SOURCES[source]})
    show(shown, form)
