"""Start a real standalone Spark cluster: master, worker and executors as separate processes.

Everything binds to loopback. Daemons are terminated by pid; executors end with their worker.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from cordwood.extras import install_command
from cordwood.lab.scenarios.processes import descendants_named
from cordwood.lab.scenarios.stage import ChildProcess, Failed

READY_S: Final = 120.0
STOP_S: Final = 30.0
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # fast start for short-lived processes
LOOPBACK: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"  # the main class of an executor's JVM
WORKER: Final = b"-m\0cordwood.pipeline.runtime.daemon"  # Java's command line has it without -m


class Cluster:
    """A running cluster; the process queries look at its first worker."""

    def __init__(self, url: str, worker_pid: int) -> None:
        """Takes the master's URL and the pid of the first worker."""
        self.url = url
        self.worker_pid = worker_pid

    def executors(self) -> list[int]:
        """The pids of the executors' JVMs."""
        return descendants_named(self.worker_pid, EXECUTOR)

    def workers(self) -> list[int]:
        """The pids of the executors' Python processes: the daemon and its forked workers."""
        return descendants_named(self.worker_pid, WORKER)


@contextmanager
def open_cluster(
    work: Path,
    *,
    cores: int = 2,
    under: Sequence[Sequence[str]] = ((),),
    before_workers: Callable[[str], None] | None = None,
) -> Iterator[Cluster]:
    """Start a cluster and wait until its workers have registered; logs go to ``work``.

    Starts one worker per command in ``under``, which prefixes the worker's own command
    (``unshare -m …``). The first worker logs to ``worker.log`` and its pid is ``worker_pid``.
    ``before_workers`` is called with the master's URL before any worker starts.
    """
    with ExitStack() as stack:
        master = stack.enter_context(open_daemon(work / "master.log", "master.Master", *LOOPBACK))
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        if before_workers is not None:
            before_workers(url)
        arguments = [url, "--cores", str(cores), "--memory", "1g", "--work-dir", str(work / "work")]
        workers = [
            stack.enter_context(
                open_daemon(
                    work / f"worker{number or ''}.log", "worker.Worker", *arguments, *LOOPBACK,
                    under=command,
                )
            )
            for number, command in enumerate(under)
        ]  # fmt: skip
        for worker in workers:
            worker.wait_for(r"Successfully registered with master ()")
        yield Cluster(url, workers[0].pid)


class Daemon(ChildProcess):
    """A Spark process and its log output so far."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log = log
        self._output = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._log.open("w") as log:
            for line in self._process.stderr:
                log.write(line)
                with self._more:
                    self._output += line
                    self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Wait until the pattern appears in the output; returns its first group."""
        with self._more:
            found = self._more.wait_for(
                lambda: re.search(pattern, self._output) or self._process.poll() is not None,
                timeout=READY_S,
            )
        if not isinstance(found, re.Match):
            raise Failed(f"Spark did not start: {self._output[-2000:]}")
        return str(found[1])

    def close(self) -> None:
        """Terminate the process and wait until its output is read."""
        assert self._process.stderr is not None
        self._process.terminate()
        self._process.wait(STOP_S)
        self._reader.join(STOP_S)
        self._process.stderr.close()


@contextmanager
def open_daemon(
    log: Path, name: str, *arguments: str, under: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Run a main class of Spark until the block ends; its output goes to ``log``."""
    home = _spark_home()
    command = [
        *under,
        str(home / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{name}",
        *arguments,
    ]
    environment = os.environ | {
        "JAVA_HOME": str(_java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "PYSPARK_PYTHON": sys.executable,
    }
    daemon = Daemon(command, environment, log)
    try:
        yield daemon
    finally:
        daemon.close()


def _spark_home() -> Path:
    """The directory of the installed PySpark, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise Failed(f"it needs Spark: {install_command('spark')}")
    return Path(found.origin).parent


def _java_home() -> Path:
    from cordwood.pipeline.runtime.java import java_home

    return java_home()
