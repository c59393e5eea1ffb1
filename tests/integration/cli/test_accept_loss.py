"""A partition whose log was deleted stays offline until its loss is accepted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from support.lines import Served


def cordwood(served: Served, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cordwood", *words, "--broker", served.addresses["kafka"]],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def readyz(served: Served) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://{served.http}/readyz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_vanished_log_is_offline_until_its_loss_is_accepted(tmp_path: Path):
    """The broker names the lost partition and the command that brings it back online."""
    data = tmp_path / "data"
    with Served(data, kafka="127.0.0.1:0") as served:
        for topic in ("lost", "kept"):
            assert cordwood(served, "produce", topic, stdin="a\nb\n").returncode == 0
        served.kill()
    shutil.rmtree(data / "lost-0")
    with Served(data, kafka="127.0.0.1:0") as served:
        status, stats = readyz(served)
        assert (status, list(stats["offline_partitions"])) == (503, ["lost-0"])
        assert "`cordwood topic accept-loss lost 0`" in stats["offline_partitions"]["lost-0"]
        assert "partition.offline partition=lost-0" in served.log()
        assert cordwood(served, "consume", "kept", "-e").stdout == "a\nb\n"
        refused = cordwood(served, "topic", "accept-loss", "kept", "0", "--yes")
        assert (refused.returncode, "kept-0 is online" in refused.stderr) == (1, True)
        accepted = cordwood(served, "topic", "accept-loss", "lost", "0", "--yes")
        assert "lost-0 is online" in accepted.stderr
        assert readyz(served)[0] == 200
        assert cordwood(served, "produce", "lost", stdin="c\n").returncode == 0
        seen = cordwood(served, "consume", "lost", "-e", "-f", r"%o %v\n")
        offset, value = seen.stdout.split()
        assert int(offset) >= 1, "an offset that was given out is not given again"
        assert value == "c"
