"""The wheel that is built from this clone has everything that a user needs."""

from __future__ import annotations

import os
import subprocess
import sys

from scripts.wheel_test import SMOKE, VERSIONS, build_wheel, find_pythons, pip, version_of


def test_the_built_wheel_serves(tmp_path):
    """Built and unpacked elsewhere, every module imports, and a broker and its client work."""
    pip("install", "--no-deps", "--target", str(tmp_path / "site"), str(build_wheel(tmp_path)))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, str(SMOKE), "--no-kernels"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site" / "cordwood") in done.stdout  # the wheel's, not the clone's


def test_interpreters_are_those_that_run(tmp_path):
    """A name on PATH that does not run, as pyenv leaves them, is not taken for a Python."""
    broken = tmp_path / "python3.14"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert version_of(str(broken)) is None
    found = find_pythons([str(broken), sys.executable])
    assert found[version_of(sys.executable)] == sys.executable
    assert set(found) <= set(VERSIONS)
