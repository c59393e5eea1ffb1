"""``cordwood audit``: gaps, repeats, and whether every ingested record was routed."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from cordwood.cli.commands.completion import complete_topics
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.output.tables import DEFAULT_BROKER, BrokerOption, Format, FormatOption, show

PROBLEMS = 5
_WINDOW = re.compile(r"[1-9]\d* (second|minute|hour|day|week)s?")


def audit(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            help="Look for gaps in these only. [default: all]", autocompletion=complete_topics
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(help="Balance the books by stretches of this length.", metavar="TIME")
    ] = "1 day",
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="A topic that holds copies of routed records; repeat for more."),
    ] = None,
    books: Annotated[bool, typer.Option(help="Balance the router's books, too.")] = True,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Check every partition for gaps and repeats, and that ingested = routed + dead-lettered.

    Exits with 5 if a record is missing, duplicated or of unknown origin.
    """
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.decide.audit import is_whole
    from cordwood.pipeline.audit.job import audit_topics, balance_books

    if not _WINDOW.fullmatch(window):
        raise typer.BadParameter(
            f"{window!r} is no window; use 1 hour, 7 days", param_hint="--window"
        )
    with broker_context(broker) as service:
        wanted = topics or sorted(service.api.partition_counts())
        with spark_session("audit", master, conf) as spark:
            partitions = audit_topics(spark, service.api, service.where, wanted)
            found = (
                balance_books(
                    spark, service.api, service.where, ignored=ignore or (), window=window
                )
                if books
                else None
            )
    windows = found.windows if found else []
    whole = is_whole(partitions, windows)
    report = {
        "ok": whole,
        "partitions": [{**each._asdict(), "ok": each.is_sound} for each in partitions],
        "books": [{**each._asdict(), "ok": each.is_balanced} for each in windows],
        "samples": found.samples if found else [],
    }
    if form is Format.TABLE:
        _print(report, has_books=found is not None)
    else:
        _show(report, form)
    if not whole:
        raise typer.Exit(PROBLEMS)


def _show(report: dict[str, Any], form: Format) -> None:
    """Print for programs: json is complete, ndjson has one line per finding, csv the partitions."""
    if form is Format.JSON:
        typer.echo(json.dumps(report, indent=1))
    elif form is Format.NDJSON:
        kinds = ("partitions", "books", "samples")
        show([{"of": kind, **row} for kind in kinds for row in report[kind]], form)
    else:
        show(report["partitions"], form)


def _print(report: dict[str, Any], *, has_books: bool) -> None:
    show(report["partitions"], Format.TABLE)
    typer.echo("")
    if has_books:
        show(report["books"], Format.TABLE)
    else:
        typer.echo("No router has read the ingress topic: there are no books to balance.")
    for sample in report["samples"]:
        typer.echo(
            f"{sample['verdict']}: source partition {sample['partition']}, "
            f"offset {sample['offset']}"
        )
    typer.echo("\nEverything is accounted for." if report["ok"] else "\nThe books do not balance.")
