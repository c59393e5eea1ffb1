"""``cordwood completion``: completion for shells, of commands and of topic names."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from cordwood.cli.output import DEFAULT_BROKER

ANSWER_S = 1.0  # nobody waits longer for a completion


class Shell(StrEnum):
    """Shells a script can be made for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")],
) -> None:
    """Print a script; `eval "$(cordwood completion bash)"` completes commands and topic names."""
    from typer._completion_shared import get_completion_script

    typer.echo(
        get_completion_script(
            prog_name="cordwood", complete_var="_CORDWOOD_COMPLETE", shell=shell.value
        )
    )


def complete_topics(incomplete: str) -> list[str]:
    """Topic names that begin so; none when no broker answers at once."""
    from cordwood.client.kafka import KafkaClient
    from cordwood.errors import CordwoodError

    try:
        with KafkaClient(
            os.environ.get("CORDWOOD_BROKER", DEFAULT_BROKER), timeout_s=ANSWER_S
        ) as client:
            names = [topic.name or "" for topic in client.topics()]
    except CordwoodError:
        return []
    return [name for name in names if name.startswith(incomplete)]
