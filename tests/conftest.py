"""Hooks and fixtures for all tests: printed seeds, checks for tools, and clean-up of processes.

A test that runs a command of ``tools.txt`` has the mark ``@pytest.mark.needs("kcat")``, and a test
that starts Spark has ``@pytest.mark.spark``. If the tool is missing the test is skipped, and the
summary of the run lists what was not tested.
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
os.environ.setdefault("CORDWOOD_PIPELINE", "off")  # brokers in tests start Spark only on request
# Spark jobs have low priority by default, so on a busy machine they would take too long.
os.environ.setdefault("CORDWOOD_SPARK_CONF", "spark.cordwood.priority=normal")

# `make check` has the same result whether or not Spark and the other extras are installed.
for name in os.environ.get("CORDWOOD_TESTS_WITHOUT", "").split():
    sys.modules[name] = None  # importing it fails as if it were not installed

# Imports and collection create objects that live until the end. Garbage collection among them took
# a tenth of the run's CPU time.
gc.disable()

# A shell's usual limit is 1,024; some tests hold both ends of hundreds of connections.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))

# Local runs try new examples each time; CI repeats the same ones, so that a failure is due to the
# change. `make check` tries fewer than `make test`. Deadlines would measure other processes' load.
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
    """Skip tests whose tools are missing, and name the tool."""
    for mark in item.iter_markers("needs"):
        (tool,) = mark.args
        assert tool in TOOLS, f"{tool} is not in tests/tools.txt"
        if shutil.which(tool) is None:
            pytest.skip(f"{MISSING}{tool} (Debian package {TOOLS[tool]})")
    if item.get_closest_marker("spark"):
        _prepare_spark()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore sockets that PySpark's collect() leaves open; our own leaks stay errors."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings(SPARKS_SOCKETS))


def pytest_collection_finish() -> None:
    """Enable garbage collection for the objects that tests create."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def disk_path(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on disk for tests of the page cache, even if ``tmp_path`` is in memory."""
    disk = os.environ.get("CORDWOOD_TESTS_DISK")  # scripts/check.sh
    if disk is None:
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(prefix="cordwood-test-", dir=disk) as name:
            yield Path(name)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the test's logs, and collect Spark's garbage before a test without Spark."""
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
    """Report the tests skipped for missing tools, and how to repeat a failure."""
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
    """Kill processes that tests left running, by process id, and report them."""
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # the children here are xdist's workers, and each cleans up its own
    for pid, command in children.left_behind():
        print(f"\nleft running by a test, ended now: {pid} {command}")
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # wait until its ports and files are released
