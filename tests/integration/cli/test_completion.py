"""Shell completion offers commands and topics, and prints nothing without a broker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.testing import Broker
from support.terminal import Terminal

NOBODY = "127.0.0.1:1"
BASH = """
eval "$(cordwood completion bash)"
COMP_WORDS=({line} '{word}'); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_cordwood_completion cordwood; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "cordwood completion fish | source; complete -C '{line} {word}'"
ZSH = 'autoload -U compinit; compinit -u -D; eval "$(cordwood completion zsh)"; echo rea""dy\n'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with two topics."""
    with Broker() as running, KafkaClient(running.kafka) as client:
        client.create_topic("orders", 1, {})
        client.create_topic("users", 1, {})
        yield running


def environ(address: str) -> dict[str, str]:
    """Return an environment with the command on PATH and the broker's address."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CORDWOOD_BROKER": address}


def offered(shell: str, address: str, line: str, word: str) -> list[str]:
    """Return the completions of ``word`` after ``line``; stderr must be empty."""
    script = {"bash": BASH, "fish": FISH}[shell].format(line=line, word=word)
    flags = {"bash": ["--norc"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *flags, "-c", script],
        env=environ(address),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [found.partition("\t")[0] for found in done.stdout.splitlines() if found]


SHELLS = ["bash", pytest.param("fish", marks=pytest.mark.needs("fish"))]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "word", "names"),
    [
        ("cordwood", "pro", ["produce"]),
        ("cordwood topic", "de", ["delete", "describe"]),
        ("cordwood consume", "or", ["orders"]),
        ("cordwood produce", "or", ["orders"]),
        ("cordwood cat", "or", ["orders"]),
        ("cordwood topic describe", "or", ["orders"]),
        ("cordwood reader register", "or", ["orders"]),
        ("cordwood table", "us", ["users"]),
        ("cordwood archive create", "us", ["users"]),
        ("cordwood dlq replay --to", "or", ["orders"]),
    ],
)
def test_commands_and_topics_are_offered(broker, shell, line, word, names):
    """Completion offers command names and the topics of the running broker."""
    assert sorted(offered(shell, broker.kafka, line, word)) == names


@pytest.mark.parametrize("shell", SHELLS)
def test_the_broker_on_the_line_is_the_one_asked(broker, shell):
    """Completion prefers ``--broker`` over CORDWOOD_BROKER."""
    line = f"cordwood consume --broker {broker.kafka}"
    assert offered(shell, NOBODY, line, "us") == ["users"]


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_broker_completion_offers_and_prints_nothing(shell):
    """An unreachable broker gives no completions and no error output."""
    assert offered(shell, NOBODY, "cordwood consume", "or") == []


@pytest.mark.needs("zsh")
def test_zsh_completes_as_it_is_typed(broker, tmp_path):
    """Tab in zsh completes topics and commands; without a broker no error is printed."""
    for address, keys, seen in (
        (broker.kafka, "cordwood consume or\t", "cordwood consume orders"),
        (broker.kafka, "cordwood topic desc\t", "cordwood topic describe"),
        (NOBODY, "cordwood consume or\t\x15echo no''body\n", "nobody"),
    ):
        with Terminal() as terminal:
            env = {**environ(address), "HOME": str(tmp_path), "PS1": "$ "}
            shell = terminal.run("zsh", "-f", "-i", env=env)
            try:
                terminal.type(ZSH)
                terminal.wait_for("ready")
                terminal.type(keys)
                assert "cordwood: " not in terminal.wait_for(seen)
            finally:
                shell.kill()
                shell.wait()
