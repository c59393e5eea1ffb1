"""Results as people and programs read them."""

from __future__ import annotations

import datetime as dt
import io
import json

import pytest

from cordwood.cli.commands.sql import DROPPED, statements
from cordwood.cli.output import row_printer
from cordwood.cli.output.row_printer import PrintMode, print_rows


def printed(rows, mode, names=("n", "text")):
    out = io.StringIO()
    count = print_rows(names, iter(rows), mode, out)
    return out.getvalue(), count


def test_a_table_is_as_wide_as_its_first_page(monkeypatch):
    """Later rows are printed as they come, whatever their width."""
    monkeypatch.setattr(row_printer, "PAGE_ROWS", 2)
    text, count = printed([(1, "a"), (22, "bb"), (3, "wider than before")], PrintMode.TABLE)
    assert text.splitlines() == [
        "n   text",
        "--  ----",
        "1   a",
        "22  bb",
        "3   wider than before",
    ]
    assert count == 3


def test_rows_are_printed_before_the_last_is_known():
    """A result streams: a query that fails late has shown what it found."""

    def failing():
        yield 1, "a"
        raise RuntimeError

    out = io.StringIO()
    with pytest.raises(RuntimeError):
        print_rows(("n", "text"), failing(), PrintMode.NDJSON, out)
    assert json.loads(out.getvalue()) == {"n": 1, "text": "a"}


@pytest.mark.parametrize("rows", [[], [(1, "a")], [(1, "a"), (2, None)]])
def test_json_is_one_list(rows):
    """Of any length."""
    text, _ = printed(rows, PrintMode.JSON)
    assert json.loads(text) == [{"n": n, "text": word} for n, word in rows]


def test_values_of_every_kind_are_shown():
    """Bytes as text where they are, else as digits; times as ISO 8601; the rest as JSON."""
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
    """A value cannot end its cell."""
    assert printed([(1, "a|b")], PrintMode.MARKDOWN)[0].splitlines()[-1] == "| 1 | a\\|b |"


def test_statements_end_with_a_semicolon():
    """Over lines; comments are left out, dot commands stand alone, the last may lack its end."""
    script = ["-- note\n", "select 1\n", "from t;\n", ".timer on\n", "select 2\n"]
    assert list(statements(script)) == ["select 1 from t;", ".timer on", "select 2"]


def test_ctrl_c_forgets_what_was_typed_of_a_query():
    """The next line begins a new one."""
    assert list(statements(["select 1\n", DROPPED, "select 2;\n"])) == ["select 2;"]
