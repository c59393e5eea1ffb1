"""Kill an appending process with SIGKILL repeatedly: every acknowledged record survives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.config import TopicConfig
from support.lines import select_nothing
from support.logs import open_partition, read_all

CONFIG = TopicConfig(segment_entries=40, index_interval_bytes=200)
ROUNDS = 50

CHILD = """
import os, sys
from pathlib import Path
from cordwood.config import TopicConfig
from cordwood.log.files.disk import Files
from support.logs import a_batch, append_data, open_partition

root = Path(sys.argv[1])
log = open_partition(
    root, TopicConfig(segment_entries=40, index_interval_bytes=200), files=Files()
)
os.write(1, b"open %d\\n" % log.log_end_offset)
while True:
    first = log.log_end_offset
    count = 1 + first % 5
    append_data(log, a_batch(*[b"value-%d" % o for o in range(first, first + count)]))
    os.write(1, b"ack %d\\n" % log.high_watermark)
    if first % 97 == 0 and len(log.segments()) > 6:
        log.drop([log.segments()[0].base_offset])
"""


def one_round(root: Path, seconds: float) -> tuple[int, int]:
    """Run and kill the child; return its log end at the start and its last acknowledgement."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)],
        stdout=subprocess.PIPE,
        env=environment,
    ) as child:
        opened = child.stdout.readline().split()
        select_nothing(seconds)  # not a wait for anything: the time of the kill
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read()
    lines = rest[: rest.rfind(b"\n") + 1].split(b"\n")[:-1]  # the last line may be incomplete
    assert opened[0] == b"open", "the child could not open the log"
    return int(opened[1]), int(lines[-1].split()[1]) if lines else int(opened[1])


@pytest.mark.slow
def test_fifty_kills_lose_nothing_acknowledged(tmp_path, randomly_seed_or_zero):
    """Every acknowledged record has its offset and value, and offsets have no gap."""
    chance = random.Random(randomly_seed_or_zero)
    acked = 0
    for nth in range(ROUNDS):
        began, last = one_round(tmp_path, chance.uniform(0, 0.1))
        assert began >= acked, f"round {nth}: {acked} were acknowledged, {began} came back"
        acked = max(acked, last)
    log = open_partition(tmp_path, CONFIG)
    assert log.high_watermark >= acked > ROUNDS
    found = read_all(log)
    assert [record.offset for record in found] == list(
        range(log.log_start_offset, log.high_watermark)
    )
    assert all(record.value == b"value-%d" % record.offset for record in found)


@pytest.fixture
def randomly_seed_or_zero(request) -> int:
    """Return the seed that pytest-randomly prints, so that a failure can be repeated."""
    seed = request.config.getoption("randomly_seed", 0)
    return seed if isinstance(seed, int) else 0
