"""``cordwood demo``: the two stories, from first record to proof, in a temporary directory."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cordwood.demo.stage import Stage

CHECK_FAILED = 5
TITLE = "The life of the log: bytes on disk, step by step"


def demo(
    story: Annotated[str, typer.Argument(help="cdc, timecode, or both.")] = "both",
    picture: Annotated[Path, typer.Option(help="Where to draw the log's life (SVG).")] = Path(
        "demo.svg"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the broker running to play with, until Ctrl-C.")
    ] = False,
) -> None:
    """A real broker and a real Spark session play two stories and check every step."""
    if story not in {"cdc", "timecode", "both"}:
        raise typer.BadParameter(f"{story!r} is none of cdc, timecode, both")
    from cordwood.cli.progress import progress
    from cordwood.demo.picture import draw
    from cordwood.demo.stage import Stage
    from cordwood.demo.stories import play_cdc, play_timecode

    directory = Path(tempfile.mkdtemp(prefix="cordwood-demo-"))
    started = time.monotonic()
    try:
        with Stage(directory, watch=lambda what, total: progress(what, total=total)) as stage:
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


def _summary(stage: Stage, seconds: float) -> int:
    from cordwood.cli.output import Format, show

    typer.echo("")
    show(
        [
            {
                "after": moment.step,
                "live_bytes": moment.live,
                "archived_bytes": moment.archived,
                "freed_bytes": moment.freed,
            }
            for moment in stage.moments
        ],
        Format.TABLE,
    )
    failed = sum(not holds for _, holds in stage.checks)
    passed = len(stage.checks) - failed
    typer.echo(f"\n{passed} checks held, {failed} did not, in {seconds:.0f} s")
    return failed


def _wait(stage: Stage) -> None:
    import threading

    broker = stage.broker
    typer.echo(
        f"still running: kafka {broker.kafka}, control {broker.control}, http {broker.http}; "
        "Ctrl-C ends it",
        err=True,
    )
    threading.Event().wait()
