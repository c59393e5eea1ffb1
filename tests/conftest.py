"""What every test may lean on: seeds that are printed, tools that are named, children that end.

A test that drives a command of ``tools.txt`` says ``@pytest.mark.needs("kcat")``, one that starts
Spark says ``@pytest.mark.spark``; where it is missing the test is skipped, and the last lines of
the run say loudly what was not proved.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from support import children, logs

TOOLS: dict[str, str] = dict(
    line.split()
    for line in (Path(__file__).parent / "tools.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
MISSING = "missing tool: "
DESCRIPTORS_MAX = 300  # at the end of a run
SPARKS_SOCKETS = "ignore:unclosed <socket.socket:ResourceWarning"
os.environ.setdefault("CORDWOOD_PIPELINE", "off")  # a test's broker brings Spark only if asked to
# Jobs yield to everybody else, so beside a busy neighbour they would end when it does.
os.environ.setdefault("CORDWOOD_SPARK_CONF", "spark.cordwood.priority=normal")

# `make check` has the same verdict whether or not Spark and the other extras are installed.
for name in os.environ.get("CORDWOOD_TESTS_WITHOUT", "").split():
    sys.modules[name] = None  # importing it fails as if it were not installed

# Importing and collecting makes objects that live until the end; looking for garbage among them
# again and again was a tenth of the run's CPU time.
gc.disable()

# A shell's usual limit is 1,024; tests of a crowd hold both ends of hundreds of connections.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))

# Locally every run explores new examples; CI repeats the same ones, so that a red run is about the
# change. `make check` tries fewer than `make test`. A deadline would measure the neighbours' load.
settings.register_profile(
    "whole",
    max_examples=100,
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile("quick", settings.get_profile("whole"), max_examples=12)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whole"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, by name, what cannot run here."""
    for mark in item.iter_markers("needs"):
        (tool,) = mark.args
        assert tool in TOOLS, f"{tool} is not in tests/tools.txt"
        if shutil.which(tool) is None:
            pytest.skip(f"{MISSING}{tool} (Debian package {TOOLS[tool]})")
    if item.get_closest_marker("spark"):
        _prepare_spark()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the sockets of collect() to the collector; our own leaks stay errors."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings(SPARKS_SOCKETS))


def pytest_collection_finish() -> None:
    """Look for garbage from here on, among what tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def disk_path(tmp_path: Path) -> Iterator[Path]:
    """A directory for tests about the page cache, on disk also where ``tmp_path`` is in memory."""
    disk = os.environ.get("CORDWOOD_TESTS_DISK")  # scripts/check.sh
    if disk is None:
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(prefix="cordwood-test-", dir=disk) as name:
            yield Path(name)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close its logs; collect what Spark's left before a test that must leave nothing."""
    logs.leave_none_open()
    if item.get_closest_marker("spark") and not (nextitem and nextitem.get_closest_marker("spark")):
        gc.collect()


def _prepare_spark() -> None:
    if find_spec("pyspark") is None:
        pytest.skip(f"{MISSING}pyspark (pip install cordwood[spark])")
    from cordwood.errors import ConfigError
    from cordwood.pipeline.runtime.java import java_home

    try:
        os.environ["JAVA_HOME"] = str(java_home())
    except ConfigError as error:
        pytest.skip(f"{MISSING}java ({error})")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was skipped for want of a tool, and how to repeat a failure."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.getreports("skipped")]
    missing = Counter(reason.partition(MISSING)[2] for reason in reasons if MISSING in reason)
    if missing:
        terminalreporter.section("NOT PROVED: TOOLS ARE MISSING", red=True, bold=True)
        for tool, count in sorted(missing.items()):
            terminalreporter.line(f"{tool}: {count} tests skipped", red=True)
    still_open = len(list(Path("/proc/self/fd").iterdir()))
    if still_open > DESCRIPTORS_MAX:
        terminalreporter.line(f"{still_open} descriptors are still open: a test leaks", red=True)
    seed = config.getoption("randomly_seed", None)
    if terminalreporter.getreports("failed") and isinstance(seed, int):
        terminalreporter.line(f"repeat this order with: pytest --randomly-seed={seed}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what tests left running, by process id, and say so."""
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # the children here are xdist's workers, and each looks after its own
    for pid, command in children.left_behind():
        print(f"\nleft running by a test, ended now: {pid} {command}")
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # gone before we are, with its ports and files
