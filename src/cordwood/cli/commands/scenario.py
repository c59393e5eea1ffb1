"""``cordwood scenario``: play one of the stories the tests play, and see for yourself."""

from __future__ import annotations

from typing import Annotated

import typer

CHECK_FAILED = 5


def scenario(
    name: Annotated[str, typer.Argument(help="Which one; `list` names them all.")],
    seed: Annotated[int | None, typer.Option(help="Repeat a run's chances.")] = None,
) -> None:
    """Run a scenario against a real broker: logfmt lines, and an exit code that tells the truth."""
    from cordwood.lab.scenarios import SCENARIOS, Failed, ScenarioRun

    if name == "list":
        for known, play in SCENARIOS.items():
            typer.echo(f"{known:<20} {(play.__doc__ or '').splitlines()[0]}")
        return
    if name not in SCENARIOS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(SCENARIOS)}")
    try:
        with ScenarioRun(name, seed) as stage:
            SCENARIOS[name](stage)
    except Failed as error:
        typer.echo(f"cordwood: {error}", err=True)
        raise typer.Exit(CHECK_FAILED) from None
