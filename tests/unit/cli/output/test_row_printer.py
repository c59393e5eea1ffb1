"""Printing of result rows as a table, CSV, Markdown, JSON and NDJSON."""

from __future__ import annotations

import datetime as dt
import io
import json

import pytest

from cordwood.cli.commands.sql import DROPPED, statements
from cordwood.cli.output import row_printer
from cordwood.cli.output.row_printer import Format, PrintMode, format_time, print_rows, show


def printed(rows, mode, names=("n", "text")):
    out = io.StringIO()
    count = print_rows(names, iter(rows), mode, out)
    return out.getvalue(), count


def test_a_table_is_as_wide_as_its_first_page():
    """Column widths come from the first page. Later rows are printed even if they are wider."""
    page = [(1, "a"), *((22, "bb") for _ in range(row_printer.PAGE_ROWS - 1))]
    text, count = printed([*page, (3, "wider than before")], PrintMode.TABLE)
    lines = text.splitlines()
    assert lines[:3] == [" n  text", " 1  a", "22  bb"]
    assert lines[-1] == " 3  wider than before"
    assert count == len(page) + 1


def test_rows_are_printed_before_the_last_is_known():
    """Rows are printed as they arrive, so a query that fails late has printed its first rows."""

    def failing():
        yield 1, "a"
        raise RuntimeError

    out = io.StringIO()
    with pytest.raises(RuntimeError):
        print_rows(("n", "text"), failing(), PrintMode.NDJSON, out)
    assert json.loads(out.getvalue()) == {"n": 1, "text": "a"}


@pytest.mark.parametrize("rows", [[], [(1, "a")], [(1, "a"), (2, None)]])
def test_json_is_one_list(rows):
    """JSON output is one list, for any number of rows."""
    text, _ = printed(rows, PrintMode.JSON)
    assert json.loads(text) == [{"n": n, "text": word} for n, word in rows]


def test_values_of_every_kind_are_shown():
    """Bytes print as UTF-8 text or hex, times as ISO 8601, and nested values as JSON."""
    when = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)
    rows = [(b"text", b"\xff"), (when, {"a": [1, b"x"]}), (None, "two\nlines")]
    text, _ = printed(rows, PrintMode.CSV)
    assert text.splitlines() == [
        "n,text",
        "text,0xff",
        '2026-11-15T00:00:00+00:00,"{""a"": [1, ""x""]}"',
        ",two\\nlines",
    ]


def test_markdown_escapes_its_bars():
    """A bar inside a value is escaped, so it does not end the cell."""
    assert printed([(1, "a|b")], PrintMode.MARKDOWN)[0].splitlines()[-1] == "| 1 | a\\|b |"


def test_statements_end_with_a_semicolon():
    """A statement ends with a semicolon or at the end of the input, and may span lines.

    Comments are dropped, and a dot command is a statement of its own.
    """
    script = ["-- note\n", "select 1\n", "from t;\n", ".timer on\n", "select 2\n"]
    assert list(statements(script)) == ["select 1 from t;", ".timer on", "select 2"]


def test_ctrl_c_forgets_what_was_typed_of_a_query():
    """Ctrl-C discards the unfinished statement, and the next line begins a new one."""
    assert list(statements(["select 1\n", DROPPED, "select 2;\n"])) == ["select 2;"]


def test_a_command_prints_its_rows_like_a_query_but_with_large_headings(capsys):
    """Tables have upper-case headings, dashes for nulls and right-aligned numbers.

    JSON is one list.
    """
    rows = [{"name": "a", "bytes": 5}, {"name": None, "bytes": 1000}]
    show(rows, Format.TABLE)
    show(rows, Format.JSON)
    table, _, objects = capsys.readouterr().out.partition("[")
    assert table.splitlines() == ["NAME  BYTES", "a         5", "-      1000"]
    assert json.loads("[" + objects) == rows


def test_rows_of_several_kinds_are_objects_with_their_own_names(capsys):
    """NDJSON prints each row with its own field names, so rows of different kinds can be mixed."""
    show([{"of": "a", "x": 1}, {"of": "b", "y": 2}], Format.NDJSON)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"of": "a", "x": 1}, {"of": "b", "y": 2}]


@pytest.mark.parametrize("form", [Format.TABLE, Format.CSV])
def test_no_rows_print_nothing(capsys, form):
    """Without rows, table and CSV output is empty and has no heading."""
    show([], form)
    assert capsys.readouterr().out == ""


def test_a_time_is_printed_as_iso_8601_in_utc():
    """A time is printed as ISO 8601 in UTC with milliseconds. An unknown time gives ``None``."""
    assert format_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert (format_time(None), format_time(-1)) == (None, None)
