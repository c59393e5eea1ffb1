"""Progress of long work: one line on a terminal's stderr, with amount, rate and time left.

    with progress("compacting orders", total=1_000_000, unit="records") as bar:
        bar.advance(1_000)

The work adds to a number and does no more, so it may report as often as it likes; a thread looks
at the number and draws. Work that ends at once draws nothing, and neither does any where stderr is
not a terminal or with ``quiet``. The line is gone when the work ends: what came of it is for the
command to say.
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

DELAY_S = 0.3  # shorter work is over before anyone has read its line
REFRESH_S = 0.1
_SCALES = ("kB", "MB", "GB", "TB")
NARROW_COLUMNS = 72  # below this the percentage stands for the amount

QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress.")]


class ProgressBar:
    """How far some work has come. Reporting is free of locks and of drawing."""

    def __init__(self, about: str, total: int | None, unit: str) -> None:
        self.about = about
        self.total = total
        self.unit = unit
        self.done = 0

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self.done += count

    def reach(self, done: int, *, total: int | None = None, about: str | None = None) -> None:
        """So much is done in all; another ``about`` begins a stage with a rate of its own."""
        self.done = done
        self.total = self.total if total is None else total
        self.about = about or self.about

    def stage(self, about: str, done: int, total: int) -> None:
        """So much of so much of a stage is done."""
        self.reach(done, total=total, about=about)

    def watch(self, done: int, total: int) -> None:
        """So much of so much is done."""
        self.reach(done, total=total)


@contextmanager
def progress(
    about: str, *, total: int | None = None, unit: str = "records", quiet: bool = False
) -> Iterator[ProgressBar]:
    """A bar while the body runs; without ``total`` it shows amount and rate only.

    ``unit`` is a noun in the plural; ``bytes`` are shown as kB, MB and GB.
    """
    bar = ProgressBar(about, total, unit)
    if quiet or not is_terminal():
        yield bar
        return
    ended = threading.Event()
    # A descriptor of our own, taken now: starting Spark turns stderr away for a while.
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
    """Whether stderr is a terminal whose lines can be drawn again."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


def show_amount(count: float, unit: str) -> str:
    """``1,234 records``; bytes by thousands: ``1.2 MB``."""
    if unit != "bytes":
        return f"{count:,.0f} {unit}"
    if count < 1000:
        return f"{count:.0f} bytes"
    thousands = min(int(math.log10(count) // 3), len(_SCALES))
    return f"{count / 1000**thousands:.1f} {_SCALES[thousands - 1]}"


def _draw(bar: ProgressBar, ended: threading.Event, terminal: IO[str]) -> None:
    """Draw what the bar says until the work has ended."""
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
        redirect_stdout=False,  # they belong to the thread that works
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
