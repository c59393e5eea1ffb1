"""``cordwood group``: consumer groups and their cursors."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    YesOption,
    complete_topics,
    confirm,
)
from cordwood.cli.output.row_printer import Format, show
from cordwood.errors import UnknownReader
from cordwood.plural import plural

app = typer.Typer(
    help="Consumer groups.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)

Group = Annotated[str, typer.Argument(help="The group's name.")]


@app.command("list")
def list_groups(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """List every group and its state."""
    from cordwood.cli.options.connect import kafka_client

    with kafka_client(broker) as client:
        rows = [{"group": group.group_id, "state": group.state} for group in client.groups()]
    show(rows, form, empty="no groups yet; `cordwood consume TOPIC -g GROUP` creates one")


@app.command()
def describe(
    group: Group, broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE
) -> None:
    """Show a group's cursors and lag, per partition."""
    from cordwood.cli.options.connect import kafka_client
    from cordwood.client.kafka import LATEST

    with kafka_client(broker) as client:
        described = client.describe_group(group)
        rows = []
        for cursor in client.committed(group):
            end = client.offset(cursor.partition, LATEST) or 0
            rows.append(
                {
                    "topic": cursor.partition.topic,
                    "partition": cursor.partition.partition,
                    "cursor": cursor.offset,
                    "end": end,
                    "lag": max(0, end - cursor.offset),
                }
            )
    if form is Format.TABLE:
        typer.echo(f"{group}: {described.state}, {plural(described.members, 'member')}", err=True)
    show(rows, form, empty=f"group {group} has not committed an offset")


@app.command()
def seek(
    group: Group,
    to: Annotated[
        str, typer.Option(help="start, end, an offset, or @ and a time.", metavar="WHERE")
    ],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only these topics.", autocompletion=complete_topics)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Show the result, without changing anything.")
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Move the cursors of a group that has no members; shows before and after.

    An offset before the log start or past the end becomes the nearest valid one, as with Kafka's
    own tool.
    """
    from cordwood.cli.options.connect import kafka_client
    from cordwood.cli.options.offset_spec import clamp_place, find_place, parse_place

    place = parse_place(to)
    with kafka_client(broker) as client:
        now = {cursor.partition: cursor.offset for cursor in client.committed(group)}
        wanted = [tp for tp in now if not topic or tp.topic in topic]
        wanted += [tp for name in topic or [] for tp in client.partitions(name) if tp not in now]
        if not wanted:
            raise UnknownReader(
                f"group {group} has no committed offsets; name its topics with --topic"
            )
        asked = {tp: find_place(client, tp, place) for tp in wanted}
        after = {tp: clamp_place(client, tp, offset) for tp, offset in asked.items()}
        if not dry_run:
            client.commit(group, after)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "before": now.get(tp), "after": offset}
        for tp, offset in sorted(after.items())
    ]
    for tp in sorted(tp for tp in wanted if asked[tp] != after[tp]):
        typer.echo(f"{tp} has no offset {asked[tp]}; using the nearest, {after[tp]}", err=True)
    show(rows, form)
    if form is Format.TABLE:
        did = "would move" if dry_run else "moved"
        typer.echo(f"{did} group {group} on {plural(len(after), 'partition')}", err=True)


@app.command()
def delete(
    group: Group,
    yes: YesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Delete a group and its cursors."""
    from cordwood.cli.options.connect import kafka_client

    confirm(f"Delete group {group} and its committed offsets?", yes=yes)
    with kafka_client(broker) as client:
        client.delete_group(group)
    typer.echo(f"deleted group {group} and its committed offsets", err=True)
