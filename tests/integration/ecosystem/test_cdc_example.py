"""``examples/cdc`` runs as its README says: PostgreSQL, Debezium, a compacted topic, a table."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ecosystem import JARS, ROOT, needs_program

EXAMPLE = ROOT / "examples" / "cdc" / "run.py"
HAS_POSTGRES = bool(
    shutil.which("initdb")
    or list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    or list(JARS.glob("postgresql/unpacked/usr/lib/postgresql/*/bin/initdb"))
)


def environ(temporary: Path, **more: str) -> dict[str, str]:
    """The environment of a user, with a directory of the test's own for temporary files."""
    plain = {"PYTHONWARNINGS": "", "TMPDIR": str(temporary)}
    return {**os.environ, **plain, "CORDWOOD_ECOSYSTEM_JARS": str(JARS), **more}


@contextlib.contextmanager
def started(env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the example; if the test fails meanwhile, let it end what it started."""
    with subprocess.Popen(
        [sys.executable, EXAMPLE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory that PostgreSQL's user can enter: pytest closes its own to other users."""
    with tempfile.TemporaryDirectory(prefix="cordwood-test-cdc-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)  # Spark starts four times, on a machine that may be busy
@needs_program("connect", "debezium")
@pytest.mark.skipif(not HAS_POSTGRES, reason="missing tool: initdb (Debian package postgresql)")
def test_the_table_equals_postgresql_after_changes_a_crash_and_compaction(temporary: Path):
    """The example finds all rows equal three times, and leaves nothing behind."""
    with started(environ(temporary)) as process:
        printed, errors = process.communicate()
    assert process.returncode == 0, printed + errors
    assert printed.count("all equal") == 3
    kept, before = map(int, re.findall(r"kept (\d+) of (\d+) records", printed)[0])
    assert kept < before
    assert printed.splitlines()[-1].startswith("proved:")
    assert not list(temporary.glob("cordwood-cdc*"))


@pytest.mark.spark
@needs_program("connect", "debezium")
@pytest.mark.skipif(not HAS_POSTGRES, reason="missing tool: initdb (Debian package postgresql)")
def test_ctrl_c_ends_and_deletes_everything(temporary: Path):
    """After SIGINT no process of the example is left, and no directory."""
    with started(environ(temporary)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("PostgreSQL ")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors == "cdc: interrupted; everything is stopped and deleted\n"
    assert not list(temporary.glob("cordwood-cdc*"))
    assert not running_below(temporary)


def running_below(directory: Path) -> list[str]:
    """Return the commands of processes that name a file below a directory."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended
            continue
    return [command for command in commands if str(directory) in command]


@pytest.mark.spark
def test_missing_maven_is_told_with_the_way_out(tmp_path: Path):
    """Without jars and Maven the example starts nothing, and says how to get them."""
    nothing = {"CORDWOOD_ECOSYSTEM_JARS": str(tmp_path / "none"), "PATH": "/nowhere"}
    with started(environ(tmp_path, **nothing)) as process:
        printed, errors = process.communicate()
    assert process.returncode == 1
    assert "Install it (Debian: apt install maven)" in errors
    assert "scripts/ecosystem_jars.sh DIR connect debezium" in errors
    assert printed == ""
