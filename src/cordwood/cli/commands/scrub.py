"""``cordwood segment scrub``: make the broker read its sealed segments now."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    OnlyTopicArgument,
    TopicArgument,
    YesOption,
    confirm,
)
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.cli.output.row_printer import Format, show
from cordwood.plural import plural
from cordwood.protocol.api.topics import AcceptDamage, GetScrub, ScrubStatus, StartScrub

PROBLEMS = 5
POLL_S = 0.1


def scrub(
    topic: OnlyTopicArgument = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Make the broker read every sealed segment now; exit 5 on damage that was not accepted."""
    from cordwood.cli.options.connect import http_client

    http = http_client(broker)
    run = http.call(StartScrub(topic))
    with progress("scrubbing", total=run.total_bytes, unit="bytes", quiet=quiet) as bar:
        while run.running:
            time.sleep(POLL_S)
            run = http.call(GetScrub())
            bar.reach(run.bytes)
    show(_rows(run), form)
    if form is Format.TABLE:
        typer.echo(
            f"read {plural(run.segments, 'sealed segment')}, {plural(run.bytes, 'byte')}: "
            f"{plural(len(run.damaged), 'damaged range')}",
            err=True,
        )
    if run.failed or any(not each.accepted for each in run.damaged):
        raise typer.Exit(PROBLEMS)


def accept_damage(
    topic: TopicArgument,
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    segment: Annotated[int, typer.Argument(min=0, help="The base offset of the segment.")],
    yes: YesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Accept a segment's damaged records as lost: still unreadable, but no longer a problem."""
    from cordwood.cli.options.connect import http_client

    where = f"segment {segment} of {topic}-{partition}"
    confirm(f"Accept the loss of the damaged records of {where}?", yes=yes)
    request = AcceptDamage(topic, partition, segment)
    for damage in http_client(broker).call(request).accepted:
        first, last = damage.start_offset, damage.end_offset - 1
        typer.echo(f"accepted: offsets {first} to {last} of {topic}-{partition}", err=True)


def _rows(run: ScrubStatus) -> list[dict[str, Any]]:
    """One row per damaged range, and one per segment that could not be read."""
    rows = [
        {
            "partition": damage.partition,
            "segment": damage.segment,
            "first_offset": damage.start_offset,
            "last_offset": damage.end_offset - 1,
            "accepted": damage.accepted,
            "problem": damage.problem,
        }
        for damage in run.damaged
    ]
    for where, error in run.failed.items():
        rows.append({"partition": where, "problem": error})
    return rows
