"""Kill a process with SIGKILL during cursor commits: confirmed commits survive completely."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cordwood.clock import SystemClock
from cordwood.metadata.front import Metadata
from cordwood.metadata.keys import ReaderPartition
from cordwood.metadata.sqlite import SqliteStore

COMMITTER = """
import sys
from pathlib import Path
from cordwood.clock import SystemClock
from cordwood.metadata.front import Metadata
from cordwood.metadata.keys import Cursor, ReaderPartition, Topic
from cordwood.metadata.sqlite import SqliteStore

metadata = Metadata(SqliteStore(Path(sys.argv[1]), SystemClock()))
if not metadata.cluster.topics:
    metadata.cluster.create_topics([Topic("t", "id", 2, {}, 0)])
at = metadata.readers.cursor(ReaderPartition("r", "t", 0))
offset = at.offset if at else 0
while True:
    offset += 1
    both = [ReaderPartition("r", "t", partition) for partition in (0, 1)]
    metadata.readers.commit_cursors({where: Cursor(offset) for where in both})
    print(offset, flush=True)
"""


@pytest.mark.parametrize("lines_before_kill", [1, 7, 20, 53, 90])
def test_a_killed_broker_keeps_every_confirmed_cursor(tmp_path, lines_before_kill):
    """The last confirmed offset survives three kills, and both cursors always match."""
    path = tmp_path / "meta.db"
    confirmed = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMITTER, str(path)], stdout=subprocess.PIPE, text=True
        )
        lines = [int(child.stdout.readline()) for _ in range(lines_before_kill)]
        child.kill()
        lines += [int(line) for line in child.stdout.read().splitlines()]
        child.stdout.close()
        child.wait()
        assert lines[0] > confirmed
        confirmed = lines[-1]
        metadata = Metadata(SqliteStore(path, SystemClock()))
        offsets = {metadata.readers.cursor(ReaderPartition("r", "t", p)).offset for p in (0, 1)}
        metadata.close()
        assert len(offsets) == 1
        assert offsets.pop() in {confirmed, confirmed + 1}
