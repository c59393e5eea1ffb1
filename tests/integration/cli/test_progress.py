"""Long-running commands show progress on terminals only."""

import subprocess

from cordwood.cli.commands.segment import _verified
from cordwood.cli.output.progress import ProgressBar
from cordwood.testing import Broker
from support.terminal import Terminal

AT_ONCE = """
import sys
from cordwood.cli import main
from cordwood.cli.output import progress
progress.DELAY_S = 0
sys.argv = ["cordwood", *sys.argv[1:]]
main()
"""


def test_produce_shows_what_has_gone_until_the_pipe_ends():
    """``produce`` shows progress on stderr while it reads input, and the count at the end."""
    with Broker() as broker, Terminal() as terminal:
        child = terminal.start("-c", AT_ONCE, "produce", "t", "-b", broker.kafka)
        child.stdin.write(b"x" * 999 + b"\n")
        child.stdin.flush()
        assert "to t" in terminal.wait_for("1.0 kB")
        child.communicate(timeout=60)
        assert terminal.text().rstrip().endswith("appended 1 record to t")


def test_consume_shows_its_share_beside_a_pipe_and_not_among_records():
    """``consume`` shows progress only if its records do not go to the same terminal."""
    with Broker() as broker, Terminal() as terminal:
        read = ("consume", "t", "-n", "4", "-b", broker.kafka)
        produce(broker, b"1\n2\n")
        child = terminal.start("-c", AT_ONCE, *read)
        assert "from t" in terminal.wait_for(" 50%")
        produce(broker, b"3\n4\n")
        assert child.communicate(timeout=60)[0] == b"1\n2\n3\n4\n"
    with Broker() as broker, Terminal() as terminal:
        produce(broker, b"1\n2\n3\n4\n")
        child = terminal.start(
            "-c", AT_ONCE, "consume", "t", "-n", "4", "-b", broker.kafka, stdout=terminal.theirs
        )
        child.communicate(timeout=60)
        assert terminal.text().split() == ["1", "2", "3", "4"]


def produce(broker, lines):
    child = [*("-m", "cordwood", "produce", "t", "-b"), broker.kafka]
    with Terminal() as terminal:
        terminal.start(*child, stdin=subprocess.PIPE).communicate(lines, timeout=60)


def test_verify_counts_every_byte_also_those_behind_damage(tmp_path):
    """The progress bar counts all bytes of a file, also those after damage."""
    with Broker() as broker:
        produce(broker, b"1\n2\n")
        (log,) = (broker.data / "t-0").glob("*.log")
        damaged = tmp_path / log.name
        damaged.write_bytes(log.read_bytes() + b"what is this?" * 10)
    bar = ProgressBar("verifying", None, "bytes")
    row = _verified(damaged, bar)
    assert bar.done == row["bytes"] > row["valid_bytes"]
    assert row["end"] == "corrupt"
