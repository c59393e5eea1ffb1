"""Prints rows for people or programs: results of commands, and of queries as they arrive.

``json`` is one list, so that ``jq '.[]'`` works; ``ndjson`` is one object per line, ``csv`` has a
header and lines. The first page decides the column widths of a table; later pages keep them. Bytes
are shown as text if they are UTF-8, else in hexadecimal. Data goes to stdout.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import IO, Any

PAGE_ROWS = 500

Row = tuple[Any, ...]


class Format(StrEnum):
    """Output formats of a command's rows."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


class PrintMode(StrEnum):
    """Output formats of a query's result."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    MARKDOWN = "markdown"


def show(rows: Sequence[Mapping[str, Any]], form: Format, *, empty: str = "") -> None:
    """Print the rows of a command; those of one table have the same names.

    Where a table would have no rows, ``empty`` says so on stderr; as JSON it is an empty list.
    """
    if form in {Format.JSON, Format.NDJSON}:
        _write_objects(rows, PrintMode(form), sys.stdout)
    elif rows:
        names = [name.upper() if form is Format.TABLE else name for name in rows[0]]
        print_rows(names, (tuple(row[name] for name in rows[0]) for row in rows), PrintMode(form))
    elif form is Format.TABLE and empty:
        print(empty, file=sys.stderr)


def print_rows(
    names: Sequence[str], rows: Iterable[Row], mode: PrintMode, out: IO[str] | None = None
) -> int:
    """Print every row as it arrives; return how many there were."""
    out = out or sys.stdout
    counted = _Counted(rows)
    if mode in {PrintMode.JSON, PrintMode.NDJSON}:
        _write_objects((dict(zip(names, row, strict=True)) for row in counted), mode, out)
    else:
        _PRINTERS[mode](names, iter(counted), out)
    out.flush()
    return counted.count


def format_time(time_ms: int | None) -> str | None:
    """Format a time as ISO 8601 in UTC with milliseconds; None for a time that is not known."""
    if time_ms is None or time_ms < 0:
        return None
    moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Counted:
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


def plain(value: Any) -> Any:
    """Convert a value to what JSON can represent."""
    if isinstance(value, bytes | bytearray):
        return text_of(bytes(value))
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def text_of(data: bytes) -> str:
    """Return bytes as text, or in hexadecimal after ``0x``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _cell(value: Any) -> str:
    simple = plain(value)
    if simple is None:
        return ""
    text = simple if isinstance(simple, str) else json.dumps(simple, ensure_ascii=False)
    return text.replace("\n", "\\n")


def _print_table(names: Sequence[str], rows: Iterator[Row], out: IO[str]) -> None:
    """Print columns as wide as on the first page; numbers are right-aligned."""
    first = list(itertools.islice(rows, PAGE_ROWS))
    columns = list(zip(*first, strict=True)) or [()] * len(names)
    widths = [
        max(len(name), *(len(_cell(value) or "-") for value in column), 0)
        for name, column in zip(names, columns, strict=True)
    ]
    is_number = [_is_numeric(column) for column in columns]
    print(_joined(names, widths, is_number), file=out)
    for row in itertools.chain(first, rows):
        print(_joined([_cell(value) or "-" for value in row], widths, is_number), file=out)


def _is_numeric(values: Sequence[object]) -> bool:
    """Whether a column has only numbers; some may be missing."""
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)


def _joined(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, is_number, strict=True)
    )
    return "  ".join(padded).rstrip()


def _print_markdown(names: Sequence[str], rows: Iterator[Row], out: IO[str]) -> None:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    print(line(names), line("---" for _ in names), sep="\n", file=out)
    for row in rows:
        print(line(_cell(value) for value in row), file=out)


def _print_csv(names: Sequence[str], rows: Iterator[Row], out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)


def _write_objects(rows: Iterable[Mapping[str, Any]], mode: PrintMode, out: IO[str]) -> None:
    """Print one object per line; as JSON they are the elements of one list."""
    lines = (json.dumps(plain(dict(row)), ensure_ascii=False) for row in rows)
    if mode is PrintMode.NDJSON:
        for line in lines:
            print(line, file=out)
        return
    print("[", end="", file=out)
    for number, line in enumerate(lines):
        print("," if number else "", line, sep="\n", end="", file=out)
    print("\n]", file=out)


_PRINTERS: dict[PrintMode, Callable[[Sequence[str], Iterator[Row], IO[str]], None]] = {
    PrintMode.TABLE: _print_table,
    PrintMode.CSV: _print_csv,
    PrintMode.MARKDOWN: _print_markdown,
}
