"""Long-running commands show progress on a terminal and then their result."""

import shlex
import subprocess

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.testing import Broker
from support.terminal import Terminal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AT_ONCE = """
import sys
from cordwood.cli import main
from cordwood.cli.output import progress
progress.DELAY_S = 0
sys.argv = ["cordwood", *sys.argv[1:]]
main()
"""
NOW = " --conf spark.cordwood.priority=normal"  # full speed, also on a busy machine
STORY = [  # a command, its progress text after Spark has started, and its last line
    ("table users --out {tmp}/table" + NOW, "reading users", "100 keys; 2000 offsets read"),
    ("dlq replay --to mended --set-key \"'k'\"" + NOW, "replaying dead_letter", "1"),
    ("archive create users --cut --dest {tmp}/archive" + NOW, "archiving users", "1 bundle in"),
    ("archive verify --dest {tmp}/archive", "checking users", "0 problems"),
    ("archive restore users --to x --dest {tmp}/archive" + NOW, "restoring users", "2000 records"),
    ("compact users --now" + NOW, "digest", ""),
]


def run(broker, line, stdin=b""):
    """Run a command on a terminal and return everything it displays."""
    with Terminal() as terminal:
        words = [*shlex.split(line), "-b", broker.kafka]
        child = terminal.start("-c", AT_ONCE, *words, stdout=subprocess.DEVNULL)
        child.stdin.write(stdin)
        child.stdin.close()
        seen = terminal.see_off(child)
        assert child.returncode == 0, seen
        return seen


def test_jobs_show_what_they_do_and_then_what_they_did(tmp_path):
    """Each command shows the start of Spark if it uses it, its own stages, then the result."""
    with Broker() as broker, KafkaClient(broker.kafka) as client:
        client.create_topic("users", 1, {"cleanup.policy": "compact"})
        rows = b"".join(b"%d:row\n" % (number % 100) for number in range(2000))
        run(broker, "produce users -K:", rows)
        run(broker, "produce dead_letter", b"no key\n")
        for line, drawn, last in STORY:
            seen = run(broker, line.format(tmp=tmp_path))
            assert ("starting Spark" in seen) == ("verify" not in line), line
            assert drawn in seen, line
            assert last in seen.rstrip().splitlines()[-1], line
