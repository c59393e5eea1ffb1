"""A real standalone Spark cluster: master and worker as processes of their own, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
READY_SECONDS = 120


@contextmanager
def standalone_cluster(work: Path, *, cores: int = 2) -> Iterator[str]:
    """The master's URL; both processes are ended by their pids, executors with their worker."""
    with _daemon(work / "master.log", "master.Master") as master:
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        arguments = [url, "--cores", str(cores), "--memory", "1g", "--work-dir", str(work / "work")]
        with _daemon(work / "worker.log", "worker.Worker", *arguments) as worker:
            worker.wait_for(r"Successfully registered with master ()")
            yield url


class Daemon:
    """A Spark process and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self._said = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._log.open("w") as log:
            for line in self.process.stderr:
                log.write(line)
                with self._more:
                    self._said += line
                    self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_for(self, pattern: str) -> str:
        """What the pattern's group is, once the process has said it."""
        with self._more:
            found = self._more.wait_for(
                lambda: re.search(pattern, self._said) or self.process.poll() is not None,
                timeout=READY_SECONDS,
            )
        assert isinstance(found, re.Match), self._said[-2000:]
        return found[1]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._reader.join(30)
        self.process.stderr.close()


@contextmanager
def _daemon(log: Path, name: str, *arguments: str) -> Iterator[Daemon]:
    command = [
        str(SPARK_HOME / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{name}",
        *arguments,
        *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
    ]
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    daemon = Daemon(process, log)
    try:
        yield daemon
    finally:
        daemon.close()
