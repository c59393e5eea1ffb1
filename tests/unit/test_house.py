"""The test suite's own rules: it reports missing tools and seeds, and ends leftover processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support import children

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow  # each test starts its own pytest


def run_suite(directory: Path, test: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a small suite with our conftest and settings, in a separate process."""
    path = directory / "test_little.py"
    path.write_text(textwrap.dedent(test))
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "conftest"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--rootdir={directory}", "-q", path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), **environ},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_missing_tool_skips_its_tests_loudly(tmp_path: Path):
    """Tests that need a missing tool are skipped.

    The last lines name the tool, its package and the number of skipped tests.
    """
    suite = """
        import pytest

        @pytest.mark.needs("kcat")
        @pytest.mark.parametrize("n", [1, 2])
        def test_with_kcat(n):
            raise AssertionError
    """
    run = run_suite(tmp_path, suite, PATH=str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "NOT PROVED: TOOLS ARE MISSING" in run.stdout
    assert "kcat (Debian package kcat): 2 tests skipped" in run.stdout


def test_tool_nobody_installs_cannot_be_needed(tmp_path: Path):
    """A tool that is not in tools.txt is an error, because its tests would always be skipped."""
    suite = """
        import pytest

        @pytest.mark.needs("unheard-of")
        def test_with_it():
            pass
    """
    run = run_suite(tmp_path, suite)
    assert run.returncode == 1
    assert "unheard-of is not in tests/tools.txt" in run.stdout


def test_failure_tells_the_seed_that_repeats_it(tmp_path: Path):
    """A failed run prints the random seed that repeats it."""
    run = run_suite(tmp_path, "def test_it_fails():\n    raise AssertionError")
    assert run.returncode == 1
    assert "pytest --randomly-seed=" in run.stdout


def test_child_left_running_is_ended_and_named(tmp_path: Path):
    """A process that a test leaves running is ended and reported."""
    suite = """
        import pathlib, subprocess

        def test_it_forgets_a_child():
            child = subprocess.Popen(["tail", "-f", "/dev/null"])
            pathlib.Path("pid").write_text(str(child.pid))
            child.returncode = 0  # so that Popen does not warn first
    """
    run = run_suite(tmp_path, suite)
    pid = (tmp_path / "pid").read_text()
    assert f"left running by a test, ended now: {pid} tail -f /dev/null" in run.stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_children_of_children_are_found():
    """Grandchildren of the test process are found, too."""
    shell = subprocess.Popen(
        ["sh", "-c", "tail -f /dev/null & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    with shell:
        assert shell.stdout
        grandchild = int(shell.stdout.readline())
        found = {pid for pid, _ in children.left_behind()}
        os.kill(grandchild, 9)
    assert {shell.pid, grandchild} <= found
