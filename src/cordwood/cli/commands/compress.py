"""``cordwood segment compress``: make the broker compress a topic's sealed segments now."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    complete_topics,
)
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.cli.output.row_printer import Format, show
from cordwood.plural import plural
from cordwood.protocol.api.compression import (
    CompressedSegment,
    CompressionProgress,
    GetCompression,
    StartCompression,
)

FAILED = 1
POLL_S = 0.1


def compress(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic; its compression.type must not be producer.",
            autocompletion=complete_topics,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which segments are due; change nothing.")
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Make the broker compress a topic's sealed segments now, without delay or rate limit.

    The broker does the same in the background. Records, offsets and timestamps do not change.
    """
    from cordwood.cli.options.connect import http_client

    http = http_client(broker)
    run = http.call(StartCompression(topic, dry=dry_run))
    with progress("compressing", total=run.total_bytes, unit="bytes", quiet=quiet) as bar:
        while run.running:
            time.sleep(POLL_S)
            run = http.call(GetCompression())
            bar.reach(run.bytes)
    show([_row(each) for each in run.segments], form, empty=f"{topic} has no sealed segments")
    if form is Format.TABLE and run.segments:
        typer.echo(_summary(run, dry_run=dry_run), err=True)
    if any(each.error for each in run.segments):
        raise typer.Exit(FAILED)


def _row(segment: CompressedSegment) -> dict[str, Any]:
    return {
        "partition": segment.partition,
        "segment": segment.segment,
        "status": segment.status,
        "bytes_before": segment.bytes_before,
        "bytes": segment.bytes,
        "ratio": format_ratio(segment.bytes, segment.bytes_before),
        "error": segment.error,
    }


def _summary(run: CompressionProgress, *, dry_run: bool) -> str:
    segments = plural(len(run.segments), "sealed segment")
    due = [each for each in run.segments if each.status == "due"]
    if dry_run:
        return f"{segments}: {plural(sum(each.bytes for each in due), 'byte')} due"
    saved = sum(each.bytes_before - each.bytes for each in run.segments)
    return f"{segments}: {plural(saved, 'byte')} saved by compression"


def format_ratio(size_bytes: int, bytes_before: int) -> str:
    """The size of a segment relative to what it was before compression."""
    return f"{size_bytes / bytes_before:.2f}" if bytes_before else "1.00"
