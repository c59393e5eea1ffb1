"""``cordwood config``: the settings and their sources."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.options.arguments import FormatOption, command_group
from cordwood.cli.output.row_printer import Format, show
from cordwood.config import apply_settings, format_value, given_settings, rows
from cordwood.decide.dynamic_settings import combine, usable_levels

app = command_group("Settings of the broker.")

_SOURCES = {
    "file": "file",
    "variable": "environment",
    "dynamic": "dynamic",
    "default": "default",
}


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

    Settings of topics are the defaults for topics that do not set them. The source is dynamic
    where a Kafka client set the value while the broker ran; it is read from the data directory.
    """
    from cordwood.log.lifecycle.directory import META
    from cordwood.metadata.read_only import peek_configs

    given = given_settings({}, os.environ, config)
    started_with = apply_settings(given)
    stored = peek_configs(Path(started_with.data) / META)
    levels, _ = usable_levels(started_with, lambda *where: stored.get(where, {}))
    loaded = combine(started_with, levels)
    shown = []
    for values in (loaded, loaded.topic_defaults.config):
        for name, (field, _, row) in rows(type(values)).items():
            source = given[name].source.partition(" ")[0] if name in given else "default"
            if name in levels.all_brokers or name in levels.this_broker:
                source = "dynamic"
            value = format_value(row, getattr(values, field))
            shown.append({"setting": name, "value": value, "source": _SOURCES[source]})
    show(shown, form)
