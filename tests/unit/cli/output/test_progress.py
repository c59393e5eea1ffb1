"""The progress bar is drawn only on a terminal, and adds almost no cost to the work."""

import os
import subprocess
import sys

import pytest

from cordwood.cli.commands.produce import _size
from cordwood.cli.output.progress import ProgressBar, show_amount
from support.terminal import Terminal

WORK = """
import sys
from cordwood.cli.output import progress as at
at.DELAY_S = 0
with at.progress("counting", total={total}, unit={unit!r}, quiet={quiet}) as bar:
    bar.advance({done})
    sys.stdin.readline()
    {then}
print("counted")
"""


def work(total=1000, unit="records", done=400, quiet=False, then="pass"):
    return "-c", WORK.format(total=total, unit=unit, done=done, quiet=quiet, then=then)


def finish(child):
    out, _ = child.communicate(b"\n", timeout=60)
    assert (child.returncode, out) == (0, b"counted\n")


def test_a_terminal_shows_share_amount_and_what_is_done():
    """The bar is one line on stderr. It is erased when the work ends, and never goes to stdout."""
    with Terminal() as terminal:
        child = terminal.start(*work())
        seen = terminal.wait_for("400 records")
        assert "counting" in seen
        assert " 40%" in seen
        finish(child)
        terminal.text()
        assert terminal.raw.endswith(b"\x1b[1A\x1b[2K")


def test_rate_and_time_left_come_with_the_second_look():
    """Rate and remaining time appear from the second update on. Bytes use decimal units."""
    then = "bar.advance(500_000); sys.stdin.readline(); bar.advance(1); sys.stdin.readline()"
    with Terminal() as terminal:
        child = terminal.start(*work(10_000_000, "bytes", 500_000, then=then))
        terminal.wait_for("500.0 kB")
        child.stdin.write(b"\n")
        child.stdin.flush()
        seen = terminal.wait_for("B/s ")
        assert " 10%" in seen
        assert "1.0 MB" in seen
        child.stdin.write(b"\n")
        finish(child)


def test_a_bar_stays_on_the_terminal_while_stderr_is_turned_away(tmp_path):
    """The bar still reaches the terminal while file descriptor 2 is redirected.

    Commands redirect it while Spark starts, to hide Java's start-up messages.
    """
    away = f"import os; os.dup2(os.open({str(tmp_path / 'away')!r}, os.O_CREAT | os.O_WRONLY), 2)"
    code = WORK.format(total=1000, unit="records", done=400, quiet=False, then="pass")
    with Terminal() as terminal:
        child = terminal.start("-c", code.replace("bar.advance", f"{away}\n    bar.advance"))
        terminal.wait_for("400 records")
        finish(child)
    assert (tmp_path / "away").read_bytes() == b""


def test_a_stage_has_its_own_name_and_total():
    """``reach`` sets the progress, and may change the total and the name of the stage."""
    with Terminal() as terminal:
        then = 'bar.reach(3, total=4, about="writing"); sys.stdin.readline()'
        child = terminal.start(*work(then=then))
        terminal.wait_for("counting")
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert "writing" in terminal.wait_for(" 75%")
        finish(child)


def test_sixty_columns_are_one_line():
    """A narrow terminal shows fewer columns, and the bar never wraps."""
    with Terminal(columns=60) as terminal:
        child = terminal.start(*work())
        seen = terminal.wait_for(" 40%")
        assert "400 records" not in seen
        assert all(len(line) <= 60 for line in seen.replace("\r", "\n").split("\n"))
        finish(child)


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {}])
def test_quiet_and_dumb_terminals_see_nothing(env):
    """Nothing is written with ``--quiet`` or when ``TERM`` is ``dumb``."""
    with Terminal() as terminal:
        finish(terminal.start(*work(quiet=not env), env=env))
        assert terminal.text() == ""


def test_a_locale_without_unicode_gets_ascii():
    """The bar uses only ASCII characters if the locale has no Unicode."""
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with Terminal() as terminal:
        child = terminal.start(*work(), env=old)
        assert terminal.wait_for(" 40%").isascii()
        finish(child)


def test_no_color_has_no_colours():
    """``NO_COLOR`` (https://no-color.org) removes the colours but not the bar."""
    with Terminal() as terminal:
        child = terminal.start(*work(), env={"NO_COLOR": "1"})
        terminal.wait_for(" 40%")
        assert b"\x1b[9" not in terminal.raw
        assert b"\x1b[3" not in terminal.raw
        finish(child)


def test_a_pipe_sees_nothing_and_rich_is_not_imported():
    """When stderr is a pipe, nothing is written to it and ``rich`` is not imported."""
    then = 'assert "rich" not in sys.modules'
    child = subprocess.run(
        [sys.executable, *work(then=then)], input=b"\n", capture_output=True, check=True, timeout=60
    )
    assert (child.stdout, child.stderr) == (b"counted\n", b"")


def test_a_report_is_an_addition_and_draws_nothing():
    """``advance`` only adds to a counter. Redraws follow a timer, however often it is called."""
    then = "[bar.advance() for _ in range(100_000)]; sys.stdin.readline()"
    with Terminal() as terminal:
        child = terminal.start(*work(100_400, then=then))
        child.stdin.write(b"\n")
        child.stdin.flush()
        seen = terminal.wait_for("100%")
        assert seen.count("counting") < 1000
        finish(child)


def test_a_total_is_known_for_files_and_not_for_pipes(tmp_path):
    """``produce`` shows a percentage only if the size of every input is known in advance."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    assert _size([tmp_path / "a", tmp_path / "b"]) == 10
    assert _size([tmp_path / "a", tmp_path / "pipe"]) is None


def test_reach_keeps_the_options_that_are_not_given():
    """``reach`` keeps the current total and name unless new ones are given."""
    bar = ProgressBar("counting", 10, "records")
    bar.reach(4)
    assert (bar.done, bar.total, bar.about) == (4, 10, "counting")


@pytest.mark.parametrize(
    ("count", "unit", "shown"),
    [
        (0, "bytes", "0 bytes"),
        (999, "bytes", "999 bytes"),
        (1000, "bytes", "1.0 kB"),
        (1_234_567, "bytes", "1.2 MB"),
        (5 * 10**15, "bytes", "5000.0 TB"),
        (1_234_567, "records", "1,234,567 records"),
    ],
)
def test_amounts_are_read_at_a_glance(count, unit, shown):
    """Counts have thousands separators, and byte counts have decimal units."""
    assert show_amount(count, unit) == shown
