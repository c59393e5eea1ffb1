"""Exit codes for an unreachable broker, a missing object and an invalid address."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from cordwood.cli import main
from cordwood.cli.app import app
from cordwood.cli.options.arguments import DEFAULT_BROKER
from cordwood.client.kafka import KafkaClient
from cordwood.testing import Broker
from support.command_lines import ASKING

NOBODY = "127.0.0.1:1"
PATIENT = {"pipeline run", "bench"}  # the first waits for a broker, the second starts its own


@pytest.fixture
def cordwood(capsys, monkeypatch, tmp_path):
    """Runs a command line through ``main``; returns its exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input").write_text("a record\n")

    def run(line: str, address: str = NOBODY) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["cordwood", *shlex.split(line)])
        monkeypatch.setenv("CORDWOOD_BROKER", address)
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command that is not a group, with its full name."""
    for child in command.list_commands(None) if hasattr(command, "list_commands") else []:
        yield from leaves(command.get_command(None, child), f"{name} {child}".strip())
    if not hasattr(command, "list_commands"):
        yield name, command


def test_no_command_that_asks_a_broker_is_left_out():
    """ASKING contains every command that has the ``--broker`` option."""
    asking = {
        name
        for name, command in leaves(typer.main.get_command(app))
        if any(option.name == "broker" for option in command.params)
    }
    options = {name for name in asking for line in ASKING if f"{line} ".startswith(f"{name} ")}
    assert asking - options == PATIENT


@pytest.mark.parametrize("line", ASKING)
def test_an_unreachable_server_fails_at_once_with_one_line(cordwood, line):
    """Every command fails with exit code 6 and a one-line error if no broker is reachable."""
    code, output = cordwood(line)
    assert code == 6
    assert output == (
        f"cordwood: no broker replies at {NOBODY} (Connection refused); start one with "
        "`cordwood serve`, or name another with --broker HOST:PORT\n"
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with only one topic."""
    with Broker() as running, KafkaClient(running.kafka) as client:
        client.create_topic("there", 1, {})
        yield running


@pytest.mark.parametrize(
    ("line", "next_step"),
    [
        ("topic describe nope", "topic list"),
        ("topic alter nope -c retention.ms=1", "topic list"),
        ("topic delete nope --yes", "topic list"),
        ("consume nope -e", "topic list"),
        ("consume there -p 7 -e", "only 0 to 0"),
        ("tail nope", "topic list"),
        ("cat nope", "topic list"),
        ("cat there -p 7", "topic list"),
        ("group describe nope", "group list"),
        ("group seek nope --to start", "--topic"),
        ("group delete nope --yes", "group"),
        ("reader list nope", "topic list"),
        ("reader register nope r", "topic list"),
        ("reader reset nope r 0", "topic list"),
        ("reader drain nobody -t there", "--register"),
        ("reader drain nobody -t nope", "topic list"),
        ("reader remove there nobody --yes", "nobody"),
        ("route remove nothing", "route list"),
        ("compact nope", "topic list"),
        ("dlq ls --from nope", "topic list"),
        ("archive verify nope", "nope"),
        ("segment verify nope --data .", "--data"),
    ],
)
def test_what_is_not_there_is_exit_code_three_and_the_next_step(cordwood, broker, line, next_step):
    """A missing object gives exit code 3 and a one-line error with the next step."""
    code, output = cordwood(line, broker.kafka)
    assert code == 3
    assert output.startswith("cordwood: ")
    assert output.count("\n") == 1
    assert next_step in output


@pytest.mark.parametrize("line", ["dlq ls --format json", "dlq sample --format json"])
def test_no_dead_letter_so_far_is_good_news(cordwood, broker, line):
    """``dlq`` commands succeed before the dead-letter topic exists."""
    assert cordwood(line, broker.kafka) == (0, "")


def test_a_group_that_was_only_asked_for_is_not_made(cordwood, broker):
    """A failed ``group seek`` does not create the group."""
    cordwood("group seek phantom --to start", broker.kafka)
    assert cordwood("group describe phantom", broker.kafka)[0] == 3


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", ":9092"])
def test_an_address_that_is_none_is_wrong_usage(cordwood, address):
    """An invalid address gives exit code 2 and the expected format, by option or environment."""
    for line, environment in (
        (f"topic list -b {address}", str(DEFAULT_BROKER)),
        ("check", address),
    ):
        code, output = cordwood(line, environment)
        assert code == 2
        assert "write HOST:PORT" in output
