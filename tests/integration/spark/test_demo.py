"""The demo, as ``make demo`` runs it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from support.children import left_behind

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_demo_plays_both_stories_and_every_check_holds(tmp_path):
    """The demo exits with 0, passes all checks and writes a valid SVG file."""
    played = subprocess.run(
        [sys.executable, "-m", "cordwood", "demo", "--picture", str(tmp_path / "life.svg")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert played.returncode == 0, played.stdout[-3000:] + played.stderr[-3000:]
    assert "FAIL" not in played.stdout
    assert "the replayed table equals the source of truth" in played.stdout
    assert "18 checks passed, 0 failed" in played.stdout
    assert played.stderr == ""  # Java's messages are hidden on success
    ET.parse(tmp_path / "life.svg")


def test_one_story_kept_can_be_played_with_until_ctrl_c(tmp_path):
    """``--keep`` leaves the broker running until Ctrl-C, then removes all files and processes."""
    python = [sys.executable, "-m", "cordwood"]
    demo = subprocess.Popen(
        [*python, "demo", "timecode", "--keep", "--picture", str(tmp_path / "life.svg")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    report = ""
    while "/metrics" not in report:
        line = demo.stderr.readline()
        assert line, report
        report += line
    address = re.search(r"CORDWOOD_BROKER=(\S+)", report)[1]
    asked = [*python, "topic", "list", "--format", "csv", "-b", address]
    listed = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    assert "\nsmpte,1," in listed.stdout
    (kept,) = tmp_path.glob("cordwood-demo-*")
    assert str(kept) in report
    children = [pid for pid, _ in left_behind(demo.pid)]
    demo.send_signal(signal.SIGINT)
    rest = demo.communicate(timeout=60)[1]
    assert (demo.returncode, rest) == (0, "")
    assert not kept.exists()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
