"""The pytest plugin as used by another project's test suite."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cordwood.testing import Broker

SUITE = """
    import socket

    import pytest

    @pytest.fixture(scope="module")
    def seen():
        return []

    @pytest.mark.parametrize("time", [1, 2])
    def test_broker_is_real_and_empty(cordwood_broker, seen, time):
        host, port = cordwood_broker.ingress.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as listener:
            listener.sendall(b"HELLO me\\norders.new|0|1|hello\\n")
            replies = listener.makefile("rb")
            assert replies.readline().startswith(b"OK")
            assert replies.readline() == b"ACK 1\\n"
        assert cordwood_broker.data not in seen
        seen.append(cordwood_broker.data)
        assert (cordwood_broker.data / "append-0").is_dir()

    def test_its_data_is_gone_afterwards(seen):
        assert seen and not any(path.exists() for path in seen)

    @pytest.mark.cordwood(ingress_topic="lines", durability="os")
    class TestWithSettings:
        @pytest.mark.cordwood(ingress_topic="mine")
        def test_nearest_mark_wins(self, cordwood_broker):
            config = cordwood_broker.service.broker.config
            assert (config.ingress_topic, config.durability) == ("mine", "os")
"""


def run_suite(directory: Path, suite: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a test suite in a separate process, without our conftest and settings."""
    (directory / "test_theirs.py").write_text(textwrap.dedent(suite))
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            *words,
        ],
        cwd=directory,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )


def test_fixture_gives_each_test_a_real_broker_of_its_own(tmp_path: Path):
    """Each test gets its own broker, marks change its settings, and its data is deleted."""
    run = run_suite(tmp_path, SUITE)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout


def test_fixture_is_listed_with_what_it_is_for(tmp_path: Path):
    """``pytest --fixtures`` and ``--markers`` list the fixture and the marker."""
    assert "cordwood_broker" in run_suite(tmp_path, SUITE, "--fixtures").stdout
    assert "@pytest.mark.cordwood(**settings)" in run_suite(tmp_path, SUITE, "--markers").stdout


def test_unknown_setting_is_refused_by_name(tmp_path: Path):
    """A misspelled setting in a mark fails with the nearest valid name."""
    suite = """
        import pytest

        @pytest.mark.cordwood(durabilty="os")
        def test_typing_mistake(cordwood_broker):
            pass
    """
    run = run_suite(tmp_path, suite)
    assert run.returncode == 1
    assert "unknown setting durabilty; did you mean durability?" in run.stdout


def test_plugin_costs_a_suite_that_does_not_use_it_nothing(tmp_path: Path):
    """Until a test requests the fixture, only the plugin's own module is imported."""
    suite = """
        import sys

        def test_nothing_of_cordwood_is_loaded():
            loaded = {name for name in sys.modules if name.partition(".")[0] == "cordwood"}
            assert loaded <= {"cordwood", "cordwood.testing_plugin"}
    """
    assert run_suite(tmp_path, suite).returncode == 0


def test_broker_starts_in_well_under_a_second():
    """The fastest of five starts is under half a second; the machine may be busy."""
    took_s = []
    for _ in range(5):
        began = time.perf_counter()
        with Broker():
            took_s.append(time.perf_counter() - began)
    assert min(took_s) < 0.5


def test_broker_used_outside_its_block_says_so(tmp_path: Path):
    """Reading an address before the broker runs raises an error with the remedy."""
    with pytest.raises(Exception, match="use it in a with block"):
        _ = Broker(tmp_path).kafka
