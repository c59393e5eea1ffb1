"""Ctrl-C and Ctrl-D at the SQL prompt on a terminal."""

import pytest

from cordwood.testing import Broker
from support.terminal import Terminal

pytestmark = pytest.mark.spark

CTRL_C, CTRL_D = "\x03", "\x04"
ON_ITS_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
from cordwood.cli import main
sys.argv = ["cordwood", *sys.argv[1:]]
main()
"""


def test_ctrl_c_ends_a_statement_or_a_line_and_ctrl_d_the_prompt():
    """Ctrl-C cancels the statement or line and keeps the session; Ctrl-D exits."""
    with Broker(durability="os") as broker, Terminal() as terminal:
        child = terminal.start(
            *("-c", ON_ITS_TERMINAL, "sql", "-b", broker.kafka, "--mode", "csv"),
            stdin=terminal.theirs,
            stdout=terminal.theirs,
            start_new_session=True,
        )
        terminal.wait_for("cordwood> ")
        for round_trip in (1, 2):
            terminal.type("select sum(id % 7) from range(1000000000000000);\n")
            terminal.wait_for("sum((id % 7))\r\n")
            terminal.type(CTRL_C)
            terminal.wait_for("cancelled\r\ncordwood> ")
            terminal.type(f"select 'answer', {round_trip} + 40;\n")
            terminal.wait_for(f"answer,{round_trip + 40}\r\ncordwood> ")
            terminal.raw = b""

        terminal.type("select 'half typed\n")
        terminal.wait_for("typed\r\ncordwood> ")
        terminal.press_until(CTRL_C, "typed\r\ncordwood> \r\ncordwood> ")
        terminal.type("select 'a new', 'line';\n")
        assert "error" not in terminal.wait_for("a new,line\r\ncordwood> ").lower()
        terminal.type(CTRL_D)
        assert child.wait(60) == 0
        assert "Traceback" not in terminal.text()
