"""Prints the results of commands: a table for people, JSON or CSV for programs.

Rows are dictionaries with the same keys. ``json`` prints a plain list, so that ``jq '.[]'`` works;
``ndjson`` prints one object per line, ``csv`` a header and lines. Data goes to stdout.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from cordwood.errors import RequestError


class Format(StrEnum):
    """Output formats of rows."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


FormatOption = Annotated[
    Format, typer.Option("--format", help="table for people; json, ndjson or csv for programs.")
]


def _address(text: str) -> str:
    """Return a valid address unchanged; raise ``BadParameter`` for any other text."""
    from cordwood.client.effects import parse_address

    try:
        parse_address(text)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from None
    return text


BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker",
        "-b",
        callback=_address,
        envvar="CORDWOOD_BROKER",
        help="The broker's Kafka address.",
        metavar="HOST:PORT",
    ),
]
DEFAULT_BROKER = "127.0.0.1:9092"


def show(rows: Sequence[Mapping[str, Any]], form: Format) -> None:
    """Print rows to stdout."""
    if form is Format.JSON:
        print(json.dumps(list(rows), indent=1))
    elif form is Format.NDJSON:
        for row in rows:
            print(json.dumps(row))
    elif form is Format.CSV:
        _show_csv(rows)
    else:
        _show_table(rows)


def _show_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print columns as wide as their contents; numbers are right-aligned."""
    if not rows:
        return
    names = list(rows[0])
    cells = [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]
    is_number = [_is_numeric([row[name] for row in rows]) for name in names]
    for line in [[name.upper() for name in names], *cells]:
        padded = [
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, is_number, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _is_numeric(values: Sequence[object]) -> bool:
    """Whether a column holds only numbers; some may be missing."""
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal ``--yes`` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Say --yes to do it without a terminal.")
    typer.confirm(question, abort=True, err=True)


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``name=value`` words to a dictionary."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not a setting, name=value")
        found[name] = value
    return found
