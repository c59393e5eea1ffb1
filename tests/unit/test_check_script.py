"""``make check`` runs its tools in parallel, reports every failure and removes its files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("ruff", "mypy", "lint-imports", "pytest")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create a checkout with the script, fake tools that succeed, and a temporary directory."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tmp").mkdir()
    shutil.copy(ROOT / "scripts" / "check.sh", tmp_path / "scripts")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for tool in TOOLS:
        write(tmp_path, tool, f'echo "{tool} $*"')
    return tmp_path


def write(checkout: Path, tool: str, commands: str) -> None:
    """Write a fake tool that runs these commands."""
    path = checkout / ".venv" / "bin" / tool
    path.write_text(f"#!/bin/sh\n{commands}\n")
    path.chmod(0o755)


def check(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script as make does."""
    return subprocess.run(
        ["sh", checkout / "scripts" / "check.sh", *arguments],
        env={**os.environ, "TMPDIR": str(checkout / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_of_it_runs_and_arguments_go_to_the_tests(checkout: Path):
    """All tools run, their output is not mixed, and arguments are passed to pytest."""
    run = check(checkout, "-k", "some")
    assert run.returncode == 0, run.stderr
    assert "ruff check\nruff format --check\nmypy \nlint-imports --no-logo\n" in run.stdout
    assert "tests/unit tests/property -k some\n" in run.stdout


@pytest.mark.parametrize("tool", ["ruff", "mypy", "lint-imports"])
def test_a_failed_linter_fails_the_check_although_tests_pass(checkout: Path, tool: str):
    """A failed linter fails the check, although it runs in the background and tests pass."""
    write(checkout, tool, "echo a fault; exit 3")
    run = check(checkout)
    assert run.returncode == 3
    assert "a fault\n" in run.stdout
    assert "lint, types or layers failed" in run.stderr


def test_failed_tests_fail_the_check_although_lint_passes(checkout: Path):
    """Failed tests fail the check with pytest's exit code."""
    write(checkout, "pytest", "exit 1")
    assert check(checkout).returncode == 1


def test_files_of_tests_are_removed_and_disk_tests_have_a_disk(checkout: Path):
    """Temporary files of tests are removed.

    If they are in memory, tests of the page cache get a directory on disk.
    """
    write(checkout, "pytest", 'touch "$TMPDIR/left"; echo "$TMPDIR $CORDWOOD_TESTS_DISK" >where')
    assert check(checkout).returncode == 0
    used, _, disk = (checkout / "where").read_text().strip().partition(" ")
    assert not Path(used).exists()
    in_memory = not used.startswith(str(checkout))
    assert disk == (str(checkout / "tmp") if in_memory else "")
    assert list((checkout / "tmp").iterdir()) == []


def test_another_user_reaches_what_a_test_opens_to_him(checkout: Path):
    """Other users can pass through the temporary directory, but cannot list it."""
    write(checkout, "pytest", 'ls -ld "$TMPDIR" >where')
    assert check(checkout).returncode == 0
    assert (checkout / "where").read_text().startswith("drwx--x--x")
