"""Error messages for wrong usage, and the import cost of ``--help``."""

import subprocess
import sys

import pytest


def python(*words):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_of_everyday_commands_loads_no_client():
    """Importing a command does not import the client, NumPy or rich."""
    code = (
        "import sys, cordwood.cli.commands.bench, cordwood.cli.commands.cat\n"
        "import cordwood.cli.commands.consume, cordwood.cli.commands.produce\n"
        "print([m for m in sys.modules if m in {'cordwood.client.kafka', 'numpy', 'rich'}])"
    )
    assert python("-c", code).stdout == "[]\n"


def test_a_misspelt_command_is_answered_with_the_nearest():
    """A misspelt command exits with code 2 and suggests the nearest command."""
    done = python("-m", "cordwood", "prodcue", "t")
    assert done.returncode == 2
    assert "no such command 'prodcue'; did you mean produce?" in done.stderr


@pytest.mark.parametrize("words", [("produce", "t", "missing"), ("segment", "dump", "missing")])
def test_a_missing_file_is_named_without_a_traceback(words):
    """A missing input file is refused with exit code 2 and its name, without a traceback."""
    done = python("-m", "cordwood", *words)
    assert done.returncode == 2
    assert "'missing' does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    """A failed write exits with code 1 and prints the file name and the system's error message."""
    there = tmp_path / "taken"
    there.write_text("")
    done = python("-m", "cordwood", "certs", "init", str(there / "below"))
    assert done.returncode == 1
    assert done.stderr == f"cordwood: {there}/below: Not a directory\n"
