"""``cordwood audit``: gaps, repeats, and whether every ingested record was routed."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    complete_topics,
)
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.output.row_printer import Format, show

PROBLEMS = 5
_WINDOW = re.compile(r"[1-9]\d* (second|minute|hour|day|week)s?")


def audit(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            help="Look for gaps only in this topic; repeat for more. [default: all]",
            autocompletion=complete_topics,
        ),
    ] = None,
    window: Annotated[
        str,
        typer.Option(help="Report the router's totals per window of this length.", metavar="TIME"),
    ] = "1 day",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="A topic with copies of routed records; repeat for more.", metavar="TOPIC"
        ),
    ] = None,
    books: Annotated[
        bool, typer.Option(help="Also check that every record was routed exactly once.")
    ] = True,
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
    from cordwood.pipeline.audit import audit_topics, balance_books

    if not _WINDOW.fullmatch(window):
        raise typer.BadParameter(
            f"{window!r} is not a time window; use for example 1 hour or 7 days",
            param_hint="--window",
        )
    with broker_context(broker, master=master) as api:
        wanted = topics or sorted(api.partition_counts())
        with spark_session("audit", master, conf) as spark:
            partitions = audit_topics(spark, api, wanted)
            found = (
                balance_books(spark, api, ignored=ignore or (), window=window) if books else None
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
        typer.echo("No router has read the ingress topic, so there is nothing to check.")
    for sample in report["samples"]:
        typer.echo(
            f"{sample['verdict']}: source partition {sample['partition']}, "
            f"offset {sample['offset']}"
        )
    verdict = (
        "Every record is accounted for." if report["ok"] else "Records are missing or repeated."
    )
    typer.echo(f"\n{verdict}")
