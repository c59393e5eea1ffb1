"""``cordwood demo``: two checked stories on a real broker, in a temporary directory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.plural import plural

if TYPE_CHECKING:
    from cordwood.lab.demo.stage import DemoRun

CHECK_FAILED = 5
SPARK = (  # for a short run on little data: saves CPU on a busy machine
    "spark.cordwood.priority=normal",  # a user waits for it, and the broker runs in this process
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions=2",
)
TITLE = "The life of the log: bytes on disk, step by step"


def demo(
    story: Annotated[str, typer.Argument(help="cdc, timecode, or both.")] = "both",
    picture: Annotated[
        Path, typer.Option(help="Where to write a drawing of the log's life (SVG).", metavar="FILE")
    ] = Path("demo.svg"),
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the broker running for your own experiments, until Ctrl-C."
        ),
    ] = False,
) -> None:
    """Play two stories on a real broker and a real Spark session, and check every step."""
    if story not in {"cdc", "timecode", "both"}:
        raise typer.BadParameter(f"{story!r} is not a story; use cdc, timecode or both")
    from cordwood.cli.options.spark_options import spark_session
    from cordwood.cli.output.progress import progress
    from cordwood.lab.demo.picture import draw
    from cordwood.lab.demo.stage import DemoRun
    from cordwood.lab.demo.stories import play_cdc, play_timecode

    directory = Path(tempfile.mkdtemp(prefix="cordwood-demo-"))
    started = time.monotonic()
    try:
        with (
            spark_session("demo", None, SPARK) as spark,
            DemoRun(
                directory, spark, watch=lambda what, total: progress(what, total=total)
            ) as stage,
        ):
            if story in {"cdc", "both"}:
                play_cdc(stage)
            if story in {"timecode", "both"}:
                play_timecode(stage)
            picture.write_text(draw(TITLE, stage.moments), encoding="utf-8")
            failed = _summary(stage, time.monotonic() - started)
            typer.echo(f"\npicture: {picture}")
            if keep:
                _wait(stage)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if failed:
        raise typer.Exit(CHECK_FAILED)


def _summary(stage: DemoRun, seconds: float) -> int:
    from cordwood.cli.output.row_printer import Format, show

    typer.echo("\nbytes, step by step:")
    show(
        [
            {
                "after": moment.step,
                "written": moment.written,
                "active": moment.active,
                "cut": moment.cut,
                "archived": moment.archived,
                "compacted": moment.compacted,
                "reclaimed": moment.reclaimed,
            }
            for moment in stage.moments
        ],
        Format.TABLE,
    )
    failed = sum(not holds for _, holds in stage.checks)
    passed = len(stage.checks) - failed
    typer.echo(f"\n{plural(passed, 'check')} passed, {failed} failed, in {seconds:.0f} s")
    return failed


def _wait(stage: DemoRun) -> None:
    """Wait for Ctrl-C, which ends the demo and is not a failure."""
    import threading

    typer.echo(
        "\n"
        f"the broker is still running; Ctrl-C stops it and removes {stage.directory}\n"
        f"  export CORDWOOD_BROKER={stage.broker.kafka}\n"
        "  cordwood topic list\n"
        "  cordwood consume append -n 3\n"
        "  cordwood dlq ls\n"
        f"  curl http://{stage.broker.http}/metrics",
        err=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
