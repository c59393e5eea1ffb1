"""``cordwood scenario``: run one of the test suite's scenarios."""

from __future__ import annotations

from typing import Annotated

import typer

CHECK_FAILED = 5


def scenario(
    name: Annotated[str, typer.Argument(help="Which scenario; `list` shows all.")],
    seed: Annotated[
        int | None, typer.Option(help="Repeat a run with the same random choices.", metavar="N")
    ] = None,
) -> None:
    """Run a scenario against a real broker: logfmt output, and exit code 5 if a check fails."""
    from cordwood.lab.scenarios import SCENARIOS, Failed, ScenarioRun

    if name == "list":
        for known, play in SCENARIOS.items():
            typer.echo(f"{known:<20} {(play.__doc__ or '').splitlines()[0]}")
        return
    if name not in SCENARIOS:
        raise typer.BadParameter(f"{name!r} is not a scenario; use one of {', '.join(SCENARIOS)}")
    try:
        with ScenarioRun(name, seed) as stage:
            SCENARIOS[name](stage)
    except Failed as error:
        typer.echo(f"cordwood: {error}", err=True)
        raise typer.Exit(CHECK_FAILED) from None
