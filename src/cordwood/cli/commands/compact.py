"""``cordwood compact``: compact a topic on demand, or explain when and why it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    complete_topics,
)
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.output.progress import ProgressBar, QuietOption, progress
from cordwood.cli.output.row_printer import Format, format_time, show
from cordwood.protocol.api.compaction import ListCompaction, PartitionCompaction

if TYPE_CHECKING:
    from cordwood.pipeline.runtime.broker_api import BrokerApi

FAILED = 1


def compact(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic; its cleanup.policy must include compact.",
            autocompletion=complete_topics,
        ),
    ],
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Seal the active segments first, and compact everything eligible, due or not.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what would be removed and how many bytes that frees; change nothing.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show which rule decides and when the next compaction is due."
        ),
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Compact a topic: keep only the newest record of every key, at its offset.

    Without --now, only partitions that are due. The broker keeps serving meanwhile.
    """
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.pipeline.compact import ANSWER_S, PassLimits, on_spark, run_due
    from cordwood.pipeline.runtime.session import parallelism

    with broker_context(broker, master=master, answer_s=ANSWER_S) as api:
        if explain:
            show([plan_row(row) for row in _partitions(api, topic)], form)
            return
        if not now and not any(row.is_due for row in _partitions(api, topic)):
            show([plan_row(row) for row in _partitions(api, topic)], form)
            typer.echo("no partition is due; use --now to compact anyway", err=True)
            return
        with (
            spark_session("compact", master, conf) as spark,
            progress(f"compacting {topic}", unit="bytes", quiet=quiet) as bar,
        ):
            stages = _Stages(bar)
            outcomes = run_due(
                api,
                on_spark(spark, None if quiet else stages.watch),
                topic=topic,
                demand=now,
                dry=dry_run,
                progress=stages.begin,
                limits=PassLimits(parallelism(spark)),
            )
        if not outcomes:
            show([plan_row(row) for row in _partitions(api, topic)], form)
            typer.echo("nothing was compacted; the table gives the reasons", err=True)
            return
    show([_outcome_row(outcome) for outcome in outcomes], form)
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(FAILED)


def _partitions(api: BrokerApi, topic: str) -> tuple[PartitionCompaction, ...]:
    return api.call(ListCompaction(topic)).partitions


def plan_row(row: PartitionCompaction) -> dict[str, Any]:
    """Format one partition: dirty ratio, last compaction, bytes freed, and when it is due next."""
    state = row.state
    return {
        "partition": row.partition,
        "dirty_ratio": row.dirty_ratio,
        "last_compacted": format_time(state.last_ms) if state.passes else None,
        "freed_bytes": state.freed_bytes,
        "next_due": "now" if row.is_due else format_time(row.next_due_ms),
        "explain": row.explain,
    }


def _outcome_row(outcome: Any) -> dict[str, Any]:
    return {
        "partition": outcome.tp.partition,
        "rule": outcome.rule,
        "records_before": outcome.records_before,
        "records_after": outcome.records_after,
        "bytes_before": outcome.bytes_before,
        "bytes_after": outcome.bytes_after,
        "frees": outcome.freed_bytes,
        "segments": f"{outcome.segments_rewritten} -> {outcome.segments_staged}",
        "seconds": round(outcome.seconds, 2),
        "error": outcome.error,
    }


class _Stages:
    """Shows the stages of a pass on one bar, in log bytes; every task counts as equally large."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._stage_bytes = 0

    def begin(self, stage: str, done_bytes: int, stage_bytes: int) -> None:
        """A stage started or ended."""
        self._stage_bytes = stage_bytes
        self._bar.reach(done_bytes, total=stage_bytes, about=stage)

    def watch(self, done: int, total: int) -> None:
        """``done`` of ``total`` tasks of the stage have ended."""
        self._bar.reach(self._stage_bytes * done // total)
