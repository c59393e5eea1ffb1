"""``cordwood completion``: shell completion of commands and topic names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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
