"""Progress of long work: one line on a terminal's stderr, with amount, rate and time left.

    with progress("compacting orders", total=1_000_000, unit="records") as bar:
        bar.advance(1_000)

The worker only updates a number, so it may report as often as it likes; a thread reads the number
and draws. Work that ends quickly draws nothing. Nothing is drawn either if stderr is not a terminal
or with ``quiet``. The line disappears when the work ends; the command itself reports the result.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY_S = 0.3  # shorter work ends before a line could be read
REFRESH_S = 0.1
_SCALES = ("kB", "MB", "GB", "TB")
NARROW_COLUMNS = 72  # below this the amount is left out

QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Do not show progress.")]


class ProgressBar:
    """The progress of some work. Reporting takes no lock and draws nothing."""

    def __init__(self, about: str, total: int | None, unit: str) -> None:
        self.about = about
        self.total = total
        self.unit = unit
        self.done = 0

    def advance(self, count: int = 1) -> None:
        """Add ``count`` to the amount done."""
        self.done += count

    def reach(self, done: int, *, total: int | None = None, about: str | None = None) -> None:
        """Set the amount done; a different ``about`` starts a stage with its own rate."""
        self.done = done
        self.total = self.total if total is None else total
        self.about = about or self.about

    def stage(self, about: str, done: int, total: int) -> None:
        """Set the stage, its amount done and its total."""
        self.reach(done, total=total, about=about)

    def watch(self, done: int, total: int) -> None:
        """Set the amount done and the total."""
        self.reach(done, total=total)


@contextmanager
def progress(
    about: str, *, total: int | None = None, unit: str = "records", quiet: bool = False
) -> Iterator[ProgressBar]:
    """Show a bar while the body runs; without ``total`` it shows amount and rate only.

    ``unit`` is a plural noun; ``bytes`` are shown as kB, MB and GB.
    """
    bar = ProgressBar(about, total, unit)
    if quiet or not is_terminal():
        yield bar
        return
    ended = threading.Event()
    # Duplicate the descriptor now: starting Spark redirects stderr for a while.
    with os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding) as terminal:
        drawer = threading.Thread(
            target=_draw, args=(bar, ended, terminal), name="progress", daemon=True
        )
        drawer.start()
        try:
            yield bar
        finally:
            ended.set()
            drawer.join()


def is_terminal() -> bool:
    """Whether stderr is a terminal on which a line can be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


def show_amount(count: float, unit: str) -> str:
    """Format ``1,234 records``; bytes are scaled: ``1.2 MB``."""
    if unit != "bytes":
        return f"{count:,.0f} {unit}"
    if count < 1000:
        return f"{count:.0f} bytes"
    thousands = min(int(math.log10(count) // 3), len(_SCALES))
    return f"{count / 1000**thousands:.1f} {_SCALES[thousands - 1]}"


def _draw(bar: ProgressBar, ended: threading.Event, terminal: IO[str]) -> None:
    """Draw the bar until the work has ended."""
    if ended.wait(DELAY_S):
        return
    with _display(terminal) as display:
        task = display.add_task(bar.about, total=bar.total, share="", amount="", rate="")
        while not ended.wait(REFRESH_S):
            _update(display, task, bar)


def _display(terminal: IO[str]) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(file=terminal)

    def words(text: str) -> TextColumn:
        return TextColumn(text, markup=False, table_column=Column(no_wrap=True))

    amount = [] if console.width < NARROW_COLUMNS else [words("{task.fields[amount]}")]
    return Progress(
        words("{task.description}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        words("{task.fields[share]}"),
        *amount,
        words("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        auto_refresh=False,
        transient=True,
        expand=True,
        redirect_stdout=False,  # they belong to the worker thread
        redirect_stderr=False,
    )


def _update(display: Progress, task: TaskID, bar: ProgressBar) -> None:
    drawn = display.tasks[0]
    if drawn.description != bar.about:
        display.reset(task, total=bar.total, description=bar.about)
    share = f"{100 * bar.done // bar.total:3d}%" if bar.total else ""
    display.update(
        task,
        completed=bar.done,
        total=bar.total,
        share=share,
        amount=show_amount(bar.done, bar.unit) if bar.done or bar.total else "",
        rate="" if drawn.speed is None else _rate(drawn.speed, bar.unit),
    )
    display.refresh()


def _rate(speed: float, unit: str) -> str:
    return f"{show_amount(speed, unit)}/s" if unit == "bytes" else f"{speed:,.0f}/s"
