"""``cordwood completion``: shell completion of commands and topic names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cordwood.cli.output.tables import DEFAULT_BROKER

ANSWER_S = 1.0  # a user does not wait longer for a completion


class ShellName(StrEnum):
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(
    shell: Annotated[ShellName, typer.Argument(help="The shell to complete in.")],
) -> None:
    """Print a script that completes commands, options and topic names.

    In ~/.bashrc: eval "$(cordwood completion bash)". In ~/.zshrc, after compinit:
    eval "$(cordwood completion zsh)". In fish: cordwood completion fish | source.
    """
    from typer._completion_shared import get_completion_script

    typer.echo(
        get_completion_script(
            prog_name="cordwood", complete_var="_CORDWOOD_COMPLETE", shell=shell.value
        )
    )


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the matching topics of the given broker; none if it does not answer."""
    from cordwood.client.kafka import KafkaClient
    from cordwood.errors import CordwoodError

    try:
        with KafkaClient(ctx.params.get("broker", DEFAULT_BROKER), timeout_s=ANSWER_S) as client:
            names = [topic.name or "" for topic in client.topics()]
    except CordwoodError:
        return []
    return [name for name in names if name.startswith(incomplete)]
