"""Environment variables: unknown ones are refused, and the table of the others is complete."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
import typer

from cordwood.cli.app import app
from cordwood.config import BrokerConfig, check_environment, environment_name, rows
from cordwood.errors import ConfigError
from cordwood.settings.environment import OTHER_VARIABLES

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {environment_name(name) for name in rows(BrokerConfig)}


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("CORDWOOD_DURABILTY", "CORDWOOD_DURABILITY"),
        ("CORDWOOD_BROKR", "CORDWOOD_BROKER"),
        ("CORDWOOD_INGRES_BUFFER", "CORDWOOD_INGRESS_BUFFER"),
    ],
)
def test_unknown_variable_is_refused_with_the_nearest_name(variable: str, near: str):
    """A variable of ours that nothing reads raises ``ConfigError``, which exits with 2."""
    with pytest.raises(ConfigError) as refusal:
        check_environment({variable: "x"})
    assert str(refusal.value) == f"unknown environment variable {variable}; did you mean {near}?"
    assert refusal.value.exit_code == 2


def test_unknown_variable_that_resembles_nothing_says_where_the_names_are():
    """Without a near name the error says what to do."""
    with pytest.raises(ConfigError, match=r"CORDWOOD_X; unset it, or see docs/settings\.md"):
        check_environment({"CORDWOOD_X": "1"})


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "/", "_CORDWOOD_COMPLETE": "bash_source", "MY_CORDWOOD_X": "1"},
        {"CORDWOOD_TESTS_WITHOUT": "pyspark", "CORDWOOD_SPARK_CONF": "a=b"},
        {"CORDWOOD_SERVICE_HOST": "10.0.0.7", "CORDWOOD_SERVICE_PORT_KAFKA": "9092"},
        {"CORDWOOD_PORT": "tcp://10.0.0.7:9092", "CORDWOOD_PORT_9092_TCP_ADDR": "10.0.0.7"},
        {"CORDWOOD_HTTP_PORT": "tcp://10.0.0.7:80", "CORDWOOD_HTTP_SERVICE_HOST": "10.0.0.7"},
    ],
)
def test_variables_of_others_are_ignored(environ: dict[str, str]):
    """Other programs' variables, the table's, and Kubernetes' service links are no mistake."""
    check_environment(environ)


def test_port_that_is_not_a_service_link_is_refused():
    """``CORDWOOD_KAFKA_PORT=9093`` is a mistake, as nothing reads it."""
    with pytest.raises(ConfigError, match="CORDWOOD_KAFKA_PORT"):
        check_environment({"CORDWOOD_KAFKA_PORT": "9093"})


def test_every_variable_of_an_option_is_known():
    """The variable of each command's option is a setting or in the table."""
    root = typing.cast(typing.Any, typer.main.get_command(app))
    groups = [root.get_command(None, name) for name in root.list_commands(None)]
    commands = [
        each for group in groups for each in getattr(group, "commands", {"": group}).values()
    ]
    read = {param.envvar for command in commands for param in command.params if param.envvar}
    assert "CORDWOOD_BROKER" in read
    assert read <= SETTINGS | set(OTHER_VARIABLES)


def test_every_variable_in_the_table_is_read():
    """The table has no variable that nothing uses any more."""
    files = [path for top in ("src", "tests", "bench") for path in (ROOT / top).rglob("*.py")]
    texts = "".join(
        path.read_text()
        for path in files
        if path.name not in {"environment.py", Path(__file__).name}
    )
    words = set(re.findall(r"CORDWOOD_[A-Z_]+", texts))
    for variable in OTHER_VARIABLES:
        assert any(word.startswith(variable.removesuffix("*")) for word in words), variable
