"""``cordwood segment scrub``: make the broker read its sealed segments now."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from cordwood.cli.commands.completion import complete_topics
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.cli.output.tables import (
    DEFAULT_BROKER,
    BrokerOption,
    Format,
    FormatOption,
    confirm,
    show,
)

PROBLEMS = 5
POLL_S = 0.1


def scrub(
    topic: Annotated[
        str | None, typer.Argument(help="Only this topic.", autocompletion=complete_topics)
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Make the broker read every sealed segment now; exit 5 on damage that was not accepted."""
    from cordwood.cli.options.connect import http_client

    http = http_client(broker)
    run = http.post("/api/scrub", {} if topic is None else {"topic": topic})
    with progress("scrubbing", total=run["total_bytes"], unit="bytes", quiet=quiet) as bar:
        while run["running"]:
            time.sleep(POLL_S)
            run = http.get("/api/scrub")
            bar.reach(run["bytes"])
    show(_rows(run), form)
    if form is Format.TABLE:
        typer.echo(f"read {run['segments']} sealed segments, {run['bytes']} bytes", err=True)
    if run["failed"] or any(not found["accepted"] for found in run["damaged"]):
        raise typer.Exit(PROBLEMS)


def accept_damage(
    topic: Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)],
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    segment: Annotated[int, typer.Argument(min=0, help="The base offset of the segment.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Accept a segment's damaged records as lost: still unreadable, but no longer a problem."""
    from cordwood.cli.options.connect import http_client

    where = f"segment {segment} of {topic}-{partition}"
    confirm(f"Go on without the damaged records of {where}?", yes=yes)
    body = {"topic": topic, "partition": partition, "segment": segment}
    for found in http_client(broker).post("/api/accept-damage", body)["accepted"]:
        first, last = found["start_offset"], found["end_offset"] - 1
        typer.echo(f"accepted: offsets {first} to {last} of {topic}-{partition}", err=True)


def _rows(run: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per damaged range, and one per segment that could not be read."""
    rows = [
        {
            "partition": found["partition"],
            "segment": found["segment"],
            "first_offset": found["start_offset"],
            "last_offset": found["end_offset"] - 1,
            "accepted": found["accepted"],
            "problem": found["problem"],
        }
        for found in run["damaged"]
    ]
    for where, error in run["failed"].items():
        rows.append({"partition": where, "problem": error})
    return rows
