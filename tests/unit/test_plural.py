"""Counts with their noun, and their use in messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cordwood.plural import plural

SOURCE = Path(__file__).resolve().parents[2] / "src" / "cordwood" / "cli"
# A count in braces before a plural noun; limits are never 1.
COUNTED = re.compile(
    r"\{(?![\w.]*(?:_MAX|_max|limit)\})[^{}]*\} "
    r"(?:records|lines|topics|partitions|segments|letters|members|batches|files|bundles|readers"
    r"|groups|rows|keys|offsets|problems|clients|producers|deliveries|connections)\b"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (plural(0, "record"), "0 records"),
        (plural(1, "record"), "1 record"),
        (plural(2, "record"), "2 records"),
        (plural(1, "batch", "batches"), "1 batch"),
        (plural(2, "batch", "batches"), "2 batches"),
    ],
)
def test_one_is_singular(text, expected):
    """One record is ``1 record``; every other count takes the plural."""
    assert text == expected


def test_messages_of_commands_count_with_plural():
    """No message of the command line puts a count before a plural noun by itself."""
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if COUNTED.search(line)
    ]
    assert found == []
