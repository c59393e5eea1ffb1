"""Fill the generated parts of the documents, or say which are stale.

A document holds a block between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``; the text
between comes from the function ``BLOCKS`` names, and everything outside is written by hand. A
block nobody asks for and a name nobody fills are both mistakes.

``make docs`` writes; ``scripts/docs.py --check`` only compares, and fails when something is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from cordwood import config, errors
from cordwood.wire.kafka import schema
from cordwood.wire.line import COMMANDS

ROOT: Final = Path(__file__).resolve().parent.parent
_BLOCK: Final = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end: \2 -->)", re.DOTALL)


def settings_table(table: type[config.TopicConfig | config.BrokerConfig]) -> str:
    """One line for each setting, in the order of the table in the code."""
    lines = (
        [f"`{name}`", f"`{_default(row)}`", _allowed(kind, row), row.doc]
        for name, (_, kind, row) in config.rows(table).items()
    )
    return _table(["setting", "default", "allowed", "meaning"], lines)


def error_families() -> str:
    """The five families, with what a client and a shell see."""
    return _error_table(_subclasses(errors.CordwoodError))


def error_members() -> str:
    """Every error under the heading of its family."""
    return "\n".join(
        f"### {family.__name__}\n\n{_error_table(_subclasses(family))}"
        for family in _subclasses(errors.CordwoodError)
        if _subclasses(family)
    )


def kafka_apis() -> str:
    """What ApiVersions tells Kafka clients."""
    lines = (
        [name, str(key), f"{first}-{last}" if first != last else str(first)]
        for name, key, first, last in schema.api_table()
    )
    return _table(["API", "key", "versions"], lines)


def line_commands() -> str:
    """What the control door understands, as HELP says it."""
    lines = (
        [f"`{command.usage}`", f"`{command.reply}`", command.summary]
        for command in COMMANDS.values()
    )
    return _table(["command", "reply", "meaning"], lines)


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "topic-settings": lambda: settings_table(config.TopicConfig),
    "broker-settings": lambda: settings_table(config.BrokerConfig),
    "error-families": error_families,
    "error-members": error_members,
    "kafka-apis": kafka_apis,
    "line-commands": line_commands,
}


def filled(text: str) -> str:
    """The document with every generated block made new."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[4]}", text)


def documents() -> Iterator[Path]:
    """Where blocks may stand."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def stale() -> list[Path]:
    """Documents that differ from what they would be made; raises KeyError for an unknown block."""
    asked = {found[2] for page in documents() for found in _BLOCK.finditer(page.read_text())}
    unplaced = set(BLOCKS) - asked
    assert not unplaced, f"no document has a block for {', '.join(sorted(unplaced))}"
    return [page for page in documents() if filled(page.read_text()) != page.read_text()]


def main(arguments: Iterable[str]) -> int:
    """Write the stale documents, or with ``--check`` only name them."""
    check = "--check" in arguments
    pages = stale()
    for page in pages:
        print(f"{'stale' if check else 'written'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(filled(page.read_text()))
    if pages and check:
        print("run `make docs` and commit what it writes")
    return 1 if pages and check else 0


def _subclasses(family: type[errors.CordwoodError]) -> list[type[errors.CordwoodError]]:
    return [kind for kind in family.__subclasses__() if kind.__module__ == errors.__name__]


def _error_table(kinds: Iterable[type[errors.CordwoodError]]) -> str:
    lines = (
        [
            f"`{kind.__name__}`",
            f"`{kind.name}`",
            str(kind.code),
            "yes" if kind.retriable else "no",
            str(kind.exit_code),
            inspect.cleandoc(kind.__doc__ or "").replace("``", "`"),
        ]
        for kind in kinds
    )
    return _table(["error", "line protocol", "Kafka code", "retriable", "exit", "means"], lines)


def _default(row: config.Row) -> str:
    return config.format_value(row, row.default) or '""'


def _allowed(kind: str, row: config.Row) -> str:
    if row.choices:
        several = " (any of, comma separated)" if kind.startswith("frozenset") else ""
        return ", ".join(f"`{choice}`" for choice in row.choices) + several
    bounds = [f"≥ {row.low}" if row.low is not None else "", f"≤ {row.high}" if row.high else ""]
    words = {"int": "whole number", "float": "number", "bool": "`true`, `false`", "str": "text"}
    unlimited = "-1" if row.limit else ""
    return ", ".join(part for part in [words[kind], *bounds] if part) + (
        f"; `{unlimited}` for no limit" if unlimited else ""
    )


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(_escaped(line))} |\n" for line in cells)


def _escaped(line: list[str]) -> list[str]:
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in line]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
