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
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import typer

from cordwood import config, errors
from cordwood.broker.metrics import METRICS
from cordwood.cli.app import app
from cordwood.metadata import keys
from cordwood.pipeline.sink import options as sink_options
from cordwood.pipeline.source import options as source_options
from cordwood.protocol.kafka import schema
from cordwood.protocol.line.commands import COMMANDS
from cordwood.server.http_api import ROUTES
from cordwood.settings.environment import OTHER_VARIABLES
from cordwood.settings.kafka_names import BROKER_ALIASES, BROKER_NAMES, TOPIC_SETTINGS

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file: bench is not on the path
_BLOCK: Final = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end: \2 -->)", re.DOTALL)


def broker_settings() -> str:
    """One line for each setting, in the order of the table in the code."""
    lines = (
        [
            f"`{name}`",
            f"`{_default(row)}`",
            "yes" if row.is_dynamic else "",
            _allowed(kind, row),
            row.doc,
        ]
        for name, (_, kind, row) in config.rows(config.BrokerConfig).items()
    )
    return _table(["setting", "default", "dynamic", "allowed", "meaning"], lines)


def broker_aliases() -> str:
    """One line for each of Kafka's names that has another name here."""
    lines = (
        [f"`{name}`", f"`{each.setting}`", "" if each.unit_ms == 1 else "in minutes"]
        for name, each in sorted(BROKER_ALIASES.items())
    )
    return _table(["Kafka's name", "setting", "unit"], lines)


def topic_settings() -> str:
    """One line for each topic setting, with Kafka's default where Kafka has the setting."""
    lines = (
        [
            f"`{name}`",
            f"`{_default(row)}`",
            _kafka_default(name),
            _kafka_broker_name(name),
            _allowed(kind, row),
            row.doc,
        ]
        for name, (_, kind, row) in config.rows(config.TopicConfig).items()
    )
    heads = ["setting", "default", "Kafka's default", "Kafka's broker setting", "allowed"]
    return _table([*heads, "what it does here"], lines)


def _kafka_default(name: str) -> str:
    known = TOPIC_SETTINGS.get(name)
    return "not in Kafka" if known is None else f"`{known.default}`" if known.default else '`""`'


def _kafka_broker_name(name: str) -> str:
    known = TOPIC_SETTINGS.get(name)
    names = [known.broker_name] if known and known.broker_name else []
    names += [
        written
        for written, (setting, unit_ms) in BROKER_NAMES.items()
        if setting == name and unit_ms > 1
    ]
    return ", ".join(f"`{each}`" for each in names)


def other_variables() -> str:
    """One line for each environment variable that is not a setting."""
    lines = ([f"`{name}`", doc] for name, doc in OTHER_VARIABLES.items())
    return _table(["variable", "meaning"], lines)


def error_families() -> str:
    """The five families, with what a client and a shell see."""
    return _error_table(_families())


def error_members() -> str:
    """Every error under the heading of its family."""
    members = {
        family: [kind for kind in errors.error_classes() if family in kind.__bases__]
        for family in _families()
    }
    return "\n".join(
        f"### {family.__name__}\n\n{_error_table(kinds)}" for family, kinds in members.items()
    )


def kafka_apis() -> str:
    """What ApiVersions tells Kafka clients."""
    lines = (
        [name, str(key), f"{first}-{last}" if first != last else str(first)]
        for name, key, first, last in schema.api_table()
    )
    return _table(["API", "key", "versions"], lines)


def line_commands() -> str:
    """What the control listener understands, as HELP says it."""
    lines = (
        [f"`{command.usage}`", f"`{command.reply}`", command.summary]
        for command in COMMANDS.values()
    )
    return _table(["command", "reply", "meaning"], lines)


def metrics_table() -> str:
    """Every metric of a scrape, with its labels."""
    lines = (
        [f"`{name}`", row.kind, ", ".join(f"`{label}`" for label in row.labels), row.doc]
        for name, row in METRICS.items()
    )
    return _table(["metric", "kind", "labels", "meaning"], lines)


def http_paths() -> str:
    """Every path of the HTTP listener, with its handler's first sentence."""
    lines = (
        [
            route.method,
            f"`{route.path}`",
            f"`{route.takes}`" if route.takes else "",
            _sentences(route.handler),
        ]
        for route in ROUTES
    )
    return _table(["method", "path", "takes", "answer"], lines)


def meta_keys() -> str:
    """The key layout of the metadata store, from the table in its module's docstring."""
    found = re.findall(r"^``([^`]+)`` +(\S.*)$", inspect.getdoc(keys) or "", re.MULTILINE)
    return _table(["key", "value"], ([f"`{key}`", meaning] for key, meaning in found))


def option_table(known: Mapping[str, str], refused: Mapping[str, str]) -> str:
    """The options of a Spark source or sink: what they do, and what to do instead."""
    lines = [[f"`{name}`", doc] for name, doc in known.items()]
    lines += [[f"`{name}`", f"Refused: {why}."] for name, why in refused.items()]
    return _table(["option", "meaning"], lines)


def commands() -> str:
    """The whole tree of commands, each with its arguments and source_options."""
    root = cast(Any, typer.main.get_command(app))
    parts: list[str] = []
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        children = getattr(command, "commands", {})
        parts.append(_command(f"cordwood {name}", command))
        parts += [_command(f"cordwood {name} {child}", children[child]) for child in children]
    return "\n".join(parts)


def _command(words: str, command: Any) -> str:
    heading = "###" if hasattr(command, "commands") or words.count(" ") == 1 else "####"
    text = inspect.cleandoc((command.help or "").partition("\f")[0])
    if hasattr(command, "commands"):
        return f"{heading} `{words}`\n\n{text}\n"
    tables = (config.BrokerConfig, config.TopicConfig)
    settings = {row[0] for table in tables for row in config.rows(table).values()}
    is_serve = words == "cordwood serve"  # it has a flag for every setting, listed elsewhere
    shown = [
        each
        for each in command.params
        if not (each.hidden or each.name == "help" or (is_serve and each.name in settings))
    ]
    rows = [[_option_name(each), _option_default(each), each.help or ""] for each in shown]
    table = "\n" + _table(["option", "default", "meaning"], rows) if rows else ""
    return f"{heading} `{words}`\n\n{text}\n{table}"


def _option_name(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.metavar}{'…' if option.nargs == -1 else ''}`"
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    variable = f" (`{option.envvar}`)" if option.envvar else ""
    return names + variable


def _option_default(option: Any) -> str:
    if option.required:
        return "required"
    value = getattr(option.default, "value", option.default)
    return "" if value in {None, False, ""} or callable(value) else f"`{value}`"


def _sentences(handler: object) -> str:
    """What a handler's docstring says, in one line."""
    return " ".join(inspect.cleandoc(inspect.getdoc(handler) or "").split()).replace("``", "`")


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "topic-settings": topic_settings,
    "broker-settings": broker_settings,
    "broker-aliases": broker_aliases,
    "other-variables": other_variables,
    "error-families": error_families,
    "error-members": error_members,
    "kafka-apis": kafka_apis,
    "line-commands": line_commands,
    "metrics": metrics_table,
    "http-paths": http_paths,
    "meta-keys": meta_keys,
    "source-options": lambda: option_table(source_options.OPTIONS, source_options.REFUSED),
    "sink-options": lambda: option_table(sink_options.OPTIONS, sink_options.REFUSED),
    "commands": commands,
    **import_module("bench.publish").BLOCKS,
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


def _families() -> list[type[errors.CordwoodError]]:
    return [kind for kind in errors.error_classes() if errors.CordwoodError in kind.__bases__]


def _error_table(kinds: Iterable[type[errors.CordwoodError]]) -> str:
    lines = (
        [
            f"`{kind.__name__}`",
            f"`{kind.name}`",
            str(kind.code),
            str(kind.http_status),
            "yes" if kind.retriable else "no",
            str(kind.exit_code),
            inspect.cleandoc(kind.__doc__ or "").replace("``", "`"),
        ]
        for kind in kinds
    )
    heads = ["error", "line protocol", "Kafka code", "HTTP", "retriable", "exit", "means"]
    return _table(heads, lines)


def _default(row: config.Row) -> str:
    return config.format_value(row, row.default) or '""'


def _allowed(kind: str, row: config.Row) -> str:
    if row.choices:
        several = " (any of, comma separated)" if kind.startswith("frozenset") else ""
        return ", ".join(f"`{choice}`" for choice in row.choices) + several
    bounds = [f"≥ {row.low}" if row.low is not None else "", f"≤ {row.high}" if row.high else ""]
    words = {"int": "whole number", "float": "number", "bool": "`true`, `false`", "str": "text"}
    words["frozenset[str]"] = "list"
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
