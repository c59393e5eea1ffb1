"""``cordwood topic``: create, list, describe, alter, delete, accept-loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    YesOption,
    command_group,
    complete_topics,
    confirm,
    parse_settings,
)
from cordwood.cli.options.tls import BrokerTarget
from cordwood.cli.output.held_text import held_text
from cordwood.cli.output.row_printer import Format, show
from cordwood.plural import plural
from cordwood.protocol.api.compaction import ListCompaction
from cordwood.protocol.api.status import GetPipeline
from cordwood.protocol.api.topics import (
    AcceptLoss,
    HeldSegments,
    ListHeld,
    ListTopics,
    PartitionDetail,
    PartitionProblem,
    TopicDetail,
)

app = command_group("Topics and their settings.")

Topic = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=complete_topics)]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", help="A setting of the topic; repeat for more.", metavar="NAME=VALUE"
    ),
]
STATES = ("offline", "read-only", "damaged")  # worst first


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many.")] = 1,
    config: ConfigOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Create a topic."""
    from cordwood.cli.options.connect import kafka_client

    with kafka_client(broker) as client:
        client.create_topic(topic, partitions, parse_settings(config or []))
    with_settings = f", {', '.join(config)}" if config else ""
    typer.echo(f"created topic {topic}: {plural(partitions, 'partition')}{with_settings}", err=True)


@app.command("list")
def list_topics(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """List every topic with its size and state."""
    rows = [_summary(topic) for topic in _topics(broker)]
    show(rows, form, empty="no topics yet; create one with `cordwood topic create NAME`")


@app.command()
def describe(
    topic: Topic,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Also show the settings that nobody has set.")
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show a topic's partitions, its compaction state, and its settings with their sources.

    The source of a setting is the topic, the broker (a default for all of its topics) or default.
    """
    (found,) = _topics(broker, topic)
    cleaning = _cleaning(broker, found)
    rows = {part.partition: {**_partition(part), **_saved(part)} for part in found.partitions}
    for problem in found.problems:
        number = problem.partition
        rows.setdefault(number, {"partition": number})["state"] = problem.state
    partitions = [{**rows[number], **cleaning.get(number, {})} for number in sorted(rows)]
    settings = _settings(found, defaults=defaults)
    if form in {Format.JSON, Format.NDJSON}:
        show([{"topic": topic, "partitions": partitions, "settings": settings}], form)
        return
    if form is Format.TABLE:
        typer.echo(f"topic {topic}: {plural(found.partition_count, 'partition')}")
    show(partitions, form)
    if form is not Format.TABLE:
        return
    if settings:
        typer.echo("")
    show(settings, form)
    for problem in found.problems:
        _print_problem(f"{topic}-{problem.partition}", problem)
    for held in _held(broker, topic):
        typer.echo(f"{topic}-{held.partition}: {held_text(held)}", err=True)
    if cleaning and (reason := _why_not_compacting(broker)):
        typer.echo(f"not compacted: {reason}", err=True)


def _settings(topic: TopicDetail, *, defaults: bool) -> list[dict[str, str]]:
    """Return the settings that are set, with their sources; with ``defaults`` all of them."""
    given = {name: (value, topic.sources[name]) for name, value in topic.config.items()}
    if defaults:
        from cordwood.config import TopicConfig, format_value, rows

        unset = {
            name: (format_value(row, row.default), "default")
            for name, (_, _, row) in rows(TopicConfig).items()
        }
        given = unset | given
    return [
        {"setting": name, "value": value, "source": source}
        for name, (value, source) in given.items()
    ]


def _print_problem(partition: str, problem: PartitionProblem) -> None:
    """Print the problems of one partition, one per line."""
    for condition, reason in problem.problems.items():
        typer.echo(f"{partition} {condition}: {reason}", err=True)
    for damage in problem.damage:
        first, last = damage.start_offset, damage.end_offset - 1
        what = "damaged, accepted" if damage.accepted else "damaged"
        typer.echo(f"{partition} {what}: offsets {first} to {last}: {damage.problem}", err=True)


@app.command()
def alter(
    topic: Topic,
    config: ConfigOption = None,
    unset: Annotated[
        list[str] | None, typer.Option(help="A setting to reset to its default.", metavar="NAME")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Raise the number of partitions to this.")
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Change settings (all or none), or add partitions."""
    from cordwood.cli.options.connect import kafka_client

    changes: dict[str, str | None] = {**parse_settings(config or [])}
    changes |= dict.fromkeys(unset or [])
    if not changes and partitions is None:
        raise typer.BadParameter("nothing to change; use --config, --unset or --partitions")
    with kafka_client(broker) as client:
        if changes:
            client.alter_topic(topic, changes)
        if partitions is not None:
            client.add_partitions(topic, partitions)
    done = [f"{name}={value}" for name, value in changes.items() if value is not None]
    done += [f"{name} is its default again" for name, value in changes.items() if value is None]
    done += [] if partitions is None else [plural(partitions, "partition")]
    typer.echo(f"altered topic {topic}: {', '.join(done)}", err=True)


@app.command()
def delete(
    topic: Topic,
    yes: YesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Delete a topic, its records and all of its metadata."""
    from cordwood.cli.options.connect import kafka_client

    confirm(f"Delete topic {topic} and all its records?", yes=yes)
    with kafka_client(broker) as client:
        client.delete_topic(topic)
    typer.echo(f"deleted topic {topic} and its records", err=True)


@app.command("accept-loss")
def accept_loss(
    topic: Topic,
    partition: Annotated[int, typer.Argument(min=0, help="The partition that is offline.")],
    yes: YesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Serve an offline partition without the records that are missing from its directory."""
    from cordwood.cli.options.connect import http_client

    confirm(f"Accept the loss of the missing records of {topic}-{partition}?", yes=yes)
    kept = http_client(broker).call(AcceptLoss(topic, partition))
    typer.echo(
        f"{topic}-{partition} is online: offsets {kept.log_start_offset} to {kept.kept_end} (end "
        f"not included) are kept, the next record gets {kept.next_offset}",
        err=True,
    )


def _topics(broker: BrokerTarget, name: str | None = None) -> tuple[TopicDetail, ...]:
    from cordwood.cli.options.connect import http_client

    return http_client(broker).call(ListTopics(name)).topics


def _cleaning(broker: BrokerTarget, topic: TopicDetail) -> dict[int, dict[str, Any]]:
    """Return the compaction state per partition; empty for a topic that is not compacted."""
    if "compact" not in topic.config.get("cleanup.policy", ""):
        return {}
    from cordwood.cli.commands.compact import plan_row
    from cordwood.cli.options.connect import http_client

    rows = http_client(broker).call(ListCompaction(topic.name)).partitions
    return {row.partition: plan_row(row) for row in rows}


def _held(broker: BrokerTarget, topic: str) -> tuple[HeldSegments, ...]:
    from cordwood.cli.options.connect import http_client

    return http_client(broker).call(ListHeld(topic)).held


def _why_not_compacting(broker: BrokerTarget) -> str:
    from cordwood.cli.options.connect import http_client

    return http_client(broker).call(GetPipeline()).not_compacting


def _summary(topic: TopicDetail) -> dict[str, Any]:
    parts = topic.partitions
    return {
        "topic": topic.name,
        "partitions": topic.partition_count,
        "records": sum(s.records for part in parts for s in part.segments),
        "bytes": sum(part.size_bytes for part in parts),
        "segments": sum(len(part.segments) for part in parts),
        "policy": topic.config.get("cleanup.policy", "delete"),
        "state": _worst(topic.problems),
    }


def _worst(problems: Sequence[PartitionProblem]) -> str:
    """Return the worst state of any partition."""
    states = {problem.state for problem in problems}
    return next((state for state in STATES if state in states), "online")


def _saved(part: PartitionDetail) -> dict[str, Any]:
    """Return what compression saves; empty if the broker has compressed no segment."""
    saved = [each.bytes_before - each.size_bytes for each in part.segments if each.codec]
    return {"saved_bytes": sum(saved)} if saved else {}


def _partition(part: PartitionDetail) -> dict[str, Any]:
    return {
        "partition": part.partition,
        "start": part.log_start_offset,
        "end": part.high_watermark,
        "records": sum(segment.records for segment in part.segments),
        "bytes": part.size_bytes,
        "segments": len(part.segments),
        "state": "online",
    }
