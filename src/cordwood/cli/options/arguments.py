"""Arguments and options that several commands share, and how their values are checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cordwood.cli.options.tls import BrokerTarget, with_tls
from cordwood.cli.output.row_printer import Format
from cordwood.errors import CordwoodError, RequestError

COMPLETION_S = 1.0  # a user does not wait longer for a completion
DEFAULT_BROKER = BrokerTarget("127.0.0.1:9092")


def check_address(text: str) -> str:
    """Return a valid address unchanged; raise ``BadParameter`` for any other text."""
    from cordwood.address import parse_address

    try:
        parse_address(text)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def parse_broker(text: str | BrokerTarget) -> BrokerTarget:
    """Parse the value of ``--broker``; its TLS options are added later, by ``with_tls``."""
    return BrokerTarget(check_address(str(text)))


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the matching topics of the given broker; none if it does not reply."""
    from cordwood.client.kafka import KafkaClient

    broker = ctx.params.get("broker") or DEFAULT_BROKER
    try:
        with KafkaClient(broker.address, timeout_s=COMPLETION_S, tls=broker.tls) as client:
            names = [topic.name or "" for topic in client.topics()]
    except CordwoodError:
        return []
    return [name for name in names if name.startswith(incomplete)]


BrokerOption = Annotated[
    BrokerTarget,
    typer.Option(
        "--broker",
        "-b",
        parser=parse_broker,
        callback=with_tls,
        envvar="CORDWOOD_BROKER",
        help="The broker's Kafka address.",
        metavar="HOST:PORT",
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="Output format: table for reading; json (short: -J), ndjson or csv for programs.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
PartitionOption = Annotated[int, typer.Option("-p", "--partition", min=0, help="The partition.")]
TopicArgument = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)]
OnlyTopicArgument = Annotated[
    str | None, typer.Argument(help="Only this topic.", autocompletion=complete_topics)
]


def command_group(about: str) -> typer.Typer:
    """Create a command whose subcommands are added to it; alone, it prints its help."""
    return typer.Typer(
        help=about, no_args_is_help=True, rich_markup_mode=None, add_completion=False
    )


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal ``--yes`` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Confirm with --yes, because stdin is not a terminal")
    typer.confirm(question, abort=True, err=True)


def size_in_bytes(text: str | int) -> int:
    """Parse an option that takes a size: bytes, or 64KiB, 512MiB, 10GB."""
    from cordwood.settings.units import parse_size

    if str(text).isdecimal():
        return int(text)
    try:
        return parse_size(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def some_bytes(text: str | int) -> int:
    """Parse an option that takes a size of at least one byte."""
    if (size := size_in_bytes(text)) < 1:
        raise typer.BadParameter("must be at least 1")
    return size


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``name=value`` words to a dictionary."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not a setting; write NAME=VALUE")
        settings[name] = value
    return settings
