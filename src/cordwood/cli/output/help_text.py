"""What ``--help`` calls the values of options and arguments: ``-n N``, ``--data DIR``, ``TOPIC``.

Typer would show Python's types. A parameter without a metavar of its own is named here: by its
choices or type, and a text by the option's own name. Every command with ``--format`` that can print
JSON also accepts ``-J``.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

_BY_TYPE = {int: "N", float: "NUMBER", bool: "true|false"}


def name_values(command: Any) -> None:
    """Name the values of a command's parameters, and of all its subcommands'."""
    for child in getattr(command, "commands", {}).values():
        name_values(child)
    kinds = get_type_hints(command.callback) if command.callback else {}
    for param in command.params:
        kind = _kind(kinds.get(param.name))
        if param.param_type_name == "argument":
            _name_argument(param, kind)
        elif param.metavar is None and not param.is_flag:
            param.metavar = value_name(kind, param.name)
        if "--format" in param.opts and param.default == "table":
            _accept_j(command, param)


def value_name(kind: Any, name: str) -> str:
    """Return the name of a value: its choices, what its type is for, or the option's name."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(each.value) for each in kind)
    if isinstance(kind, type) and issubclass(kind, Path):
        return "PATH"
    return _BY_TYPE.get(kind, name.upper().replace("_", "-"))


def _kind(annotation: Any) -> Any:
    """Return the type of one value: that of a list's elements, or of an optional value."""
    inner = [each for each in get_args(annotation) if each is not type(None)]
    return _kind(inner[0]) if inner else annotation


def _name_argument(param: Any, kind: Any) -> None:
    """Show an argument by its name alone, in brackets if it can be left out."""
    is_choice = isinstance(kind, type) and issubclass(kind, Enum)
    name = param.metavar or param.name.upper().replace("_", "-")
    param.metavar = name
    if is_choice:
        param.help = f"{param.help} One of {value_name(kind, name).replace('|', ', ')}."
    shown = name if param.required else f"[{name}]"
    usage = f"{shown}..." if param.nargs == -1 else shown
    describe = param.get_help_record
    param.get_usage_pieces = lambda _ctx: [usage]
    param.get_help_record = lambda ctx: (name, describe(ctx)[1])


def _accept_j(command: Any, form: Any) -> None:
    """Make ``-J`` a short form of ``--format json``."""
    make_parser = command.make_parser

    def with_j(ctx: Any) -> Any:
        parser = make_parser(ctx)
        parser.add_option(form, ["-J"], form.name, action="store_const", const="json")
        return parser

    command.make_parser = with_j
