"""The help of every command names its values, and refusals are sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from cordwood.cli import main
from cordwood.cli.app import app


def leaves(command: Any, name: str = "cordwood") -> Iterator[tuple[str, Any]]:
    """Yield every command without subcommands, with its name."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    for child in command.list_commands(None):
        yield from leaves(command.get_command(None, child), f"{name} {child}")


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.fixture
def refused(capsys, monkeypatch):
    """Runs a command line that is refused; returns its exit code and stderr."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["cordwood", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_type_of_python(name):
    """Help names values by what they are: N, DIR, HOST:PORT; never <int> or TEXT."""
    command = COMMANDS[name]
    text = command.get_help(command.context_class(command, info_name=name))
    assert not re.search(r"<[a-z]|\b(TEXT|INTEGER|FLOAT|STR|INT)\b|class '", text), text
    assert not re.search(r"\{[a-z_]+\}\.*$", text.splitlines()[0]), text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    """Every option and argument says what it is for."""
    assert all(param.help for param in COMMANDS[name].params)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("consume",), "TOPIC is missing; see `cordwood consume -h`"),
        (("consume", "t", "-n", "0"), "--num must be at least 1; see `cordwood consume -h`"),
        (("consume", "t", "-n", "x"), "--num must be a whole number; see `cordwood consume -h`"),
        (
            ("produce", "t", "-z", "xz"),
            "--compression: 'xz' is not one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'",
        ),
        (("topic", "list", "--frob"), "no such option: --frob; see `cordwood topic list -h`"),
        (("topic", "alter", "t"), "nothing to change; use --config, --unset or --partitions"),
        (
            ("produce", "t", "-J", "-k", "a"),
            "-J takes key and value from the JSON; leave out -k, -K and -Z",
        ),
    ],
)
def test_a_refusal_is_one_sentence(refused, words, sentence):
    """A wrong option exits with 2 and one line: what is wrong, and what to do or where to look."""
    code, text = refused(*words)
    assert code == 2
    assert text.startswith(f"cordwood: {sentence}")
    assert text.count("\n") == 1


def test_a_group_without_a_command_prints_its_help(refused):
    """``cordwood topic`` alone prints the help of its subcommands."""
    code, text = refused("topic")
    assert code == 2
    assert text.startswith("Usage: cordwood topic")
