"""The demo, as ``make demo`` plays it."""

import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_demo_plays_both_stories_and_every_check_holds(tmp_path):
    """Exit code 0, no failed check, and a picture that can be opened."""
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
    assert "18 checks held, 0 did not" in played.stdout
    ET.parse(tmp_path / "life.svg")
