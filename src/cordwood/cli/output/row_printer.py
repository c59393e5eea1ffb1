"""Prints rows as they arrive, for people or programs.

The first page decides the column widths of a table; later pages keep them. Bytes are shown as text
if they are UTF-8, else in hexadecimal.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import IO, Any

PAGE_ROWS = 500

Row = tuple[Any, ...]


class PrintMode(StrEnum):
    """Output formats of a result."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    MARKDOWN = "markdown"


def print_rows(
    names: Sequence[str], rows: Iterable[Row], mode: PrintMode, out: IO[str] | None = None
) -> int:
    """Print every row; return how many there were."""
    out = out or sys.stdout
    counted = _Counted(rows)
    _PRINTERS[mode](names, iter(counted), out)
    out.flush()
    return counted.count


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
    found = plain(value)
    if found is None:
        return ""
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return text.replace("\n", "\\n")


def _print_table(names: Sequence[str], rows: Iterator[Row], out: IO[str]) -> None:
    page = [[_cell(value) for value in row] for row in itertools.islice(rows, PAGE_ROWS)]
    widths = [
        max(len(name), *(len(row[at]) for row in page)) if page else len(name)
        for at, name in enumerate(names)
    ]
    line = "  ".join("-" * width for width in widths)
    later = ([_cell(value) for value in row] for row in rows)
    print(_joined(names, widths), line, sep="\n", file=out)
    for row in itertools.chain(page, later):
        print(_joined(row, widths), file=out)


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
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


def _print_ndjson(names: Sequence[str], rows: Iterator[Row], out: IO[str]) -> None:
    for row in rows:
        print(_object(names, row), file=out)


def _print_json(names: Sequence[str], rows: Iterator[Row], out: IO[str]) -> None:
    """Print one list, element by element."""
    print("[", end="", file=out)
    for number, row in enumerate(rows):
        print("," if number else "", _object(names, row), sep="\n", end="", file=out)
    print("\n]", file=out)


def _object(names: Sequence[str], row: Row) -> str:
    values = {name: plain(value) for name, value in zip(names, row, strict=True)}
    return json.dumps(values, ensure_ascii=False)


_PRINTERS: dict[PrintMode, Callable[[Sequence[str], Iterator[Row], IO[str]], None]] = {
    PrintMode.TABLE: _print_table,
    PrintMode.JSON: _print_json,
    PrintMode.NDJSON: _print_ndjson,
    PrintMode.CSV: _print_csv,
    PrintMode.MARKDOWN: _print_markdown,
}
