"""``cordwood topic``: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cordwood.cli.completion import complete_topics
from cordwood.cli.output import (
    DEFAULT_BROKER,
    BrokerOption,
    Format,
    FormatOption,
    confirm,
    parse_settings,
    show,
)

app = typer.Typer(
    help="Topics and their settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

Topic = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=complete_topics)]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="A setting, name=value; repeat for more."),
]
_DYNAMIC = 1  # a setting's source: the topic itself


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many.")] = 1,
    config: ConfigOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Create a topic."""
    from cordwood.client.kafka import KafkaClient

    with KafkaClient(broker) as client:
        client.create_topic(topic, partitions, parse_settings(config or []))
    typer.echo(f"created {topic}", err=True)


@app.command("list")
def list_topics(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """Every topic with its size and end."""
    show([_summary(topic) for topic in _topics(broker)], form)


@app.command()
def describe(
    topic: Topic, broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE
) -> None:
    """A topic's partitions, how compaction stands, and settings that differ from the defaults."""
    found = _topics(broker, topic)[0]
    cleaning = _cleaning(broker, found)
    show([{**_partition(p), **cleaning.get(p["partition"], {})} for p in found["partitions"]], form)
    if form is Format.TABLE:
        for name, value in found["config"].items():
            typer.echo(f"{name}={value}", err=True)


@app.command()
def alter(
    topic: Topic,
    config: ConfigOption = None,
    unset: Annotated[
        list[str] | None, typer.Option(help="A setting to give its default back.")
    ] = None,
    partitions: Annotated[int | None, typer.Option(help="Raise the count to this.")] = None,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Change settings (all or none), or add partitions."""
    from cordwood.client.kafka import KafkaClient

    changes: dict[str, str | None] = {**parse_settings(config or [])}
    changes |= dict.fromkeys(unset or [])
    with KafkaClient(broker) as client:
        if changes:
            client.alter_topic(topic, changes)
        if partitions is not None:
            client.add_partitions(topic, partitions)
    typer.echo(f"altered {topic}", err=True)


@app.command()
def delete(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Delete a topic, its records and everything known of it."""
    from cordwood.client.kafka import KafkaClient

    confirm(f"Delete topic {topic} and all its records?", yes=yes)
    with KafkaClient(broker) as client:
        client.delete_topic(topic)
    typer.echo(f"deleted {topic}", err=True)


def _topics(broker: str, name: str | None = None) -> list[dict[str, Any]]:
    from cordwood.cli.connect import http_client

    found = http_client(broker).get("/api/topics", **({"name": name} if name else {}))
    topics: list[dict[str, Any]] = found["topics"]
    return topics


def _cleaning(broker: str, topic: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Partition → how compaction stands; nothing for a topic that is not compacted."""
    if "compact" not in topic["config"].get("cleanup.policy", ""):
        return {}
    from cordwood.cli.compact import plan_row
    from cordwood.cli.connect import http_client

    rows = http_client(broker).get("/api/compaction", topic=topic["name"])["partitions"]
    return {row["partition"]: plan_row(row) for row in rows}


def _summary(topic: dict[str, Any]) -> dict[str, Any]:
    parts = topic["partitions"]
    return {
        "topic": topic["name"],
        "partitions": topic["partition_count"],
        "records": sum(s["records"] for part in parts for s in part["segments"]),
        "bytes": sum(part["size_bytes"] for part in parts),
        "segments": sum(len(part["segments"]) for part in parts),
        "policy": topic["config"].get("cleanup.policy", "delete"),
    }


def _partition(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "partition": part["partition"],
        "start": part["log_start_offset"],
        "end": part["high_watermark"],
        "records": sum(segment["records"] for segment in part["segments"]),
        "bytes": part["size_bytes"],
        "segments": len(part["segments"]),
    }
