"""The environment of a scenario: temporary directory, child brokers, logfmt, seeded random."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from cordwood.client import Client, Line
from cordwood.client.http import HttpClient
from cordwood.protocol.api.status import GetPipeline

READY = "READY "
SPARK_S = 900.0  # with eight busy loops beside it on two cores, Spark needs minutes to start
WAITING_S = 5.0  # how often a wait says that it goes on
LOOK_S = 0.25  # looking more often takes time from what is waited for
HOUR_MS = 3_600_000  # as monitor interval: only the scenario itself triggers RECLAIM


class Failed(Exception):  # the result of a scenario, not an error of the program
    """A check of a scenario failed; the message says what was observed."""


class ChildProcess:
    """A process that a scenario started and ends by its pid."""

    _process: subprocess.Popen[Any]

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None


class Child(ChildProcess):
    """``cordwood serve`` as a child process on free ports."""

    def __init__(
        self, data: Path, settings: dict[str, str], *, python: str = sys.executable
    ) -> None:
        """Start it; ``python`` may be that of another installation of cordwood."""
        listeners = ("--kafka", "--ingress", "--control", "--http")
        flags = [word for listener in listeners for word in (listener, "127.0.0.1:0")]
        options = {"pipeline": "off", **settings}
        flags += [f"--{name.replace('.', '-')}={value}" for name, value in options.items()]
        self.log_path = data.parent / f"{data.name}.log"
        command = [python, "-m", "cordwood", "serve", "--data", str(data), *flags]
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self.addresses = self._read_ready()

    def _read_ready(self) -> dict[str, str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line.startswith(READY):
            self._process.wait()
            raise Failed(f"the broker did not start: {self.log().strip().splitlines()[-1:]}")
        addresses: dict[str, str] = json.loads(line.removeprefix(READY))
        return addresses

    def log(self) -> str:
        """The log output of this child so far."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Send SIGTERM and wait for the end."""
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class ScenarioRun:
    """One run of a scenario, reproducible by its seed."""

    def __init__(self, name: str, seed: int | None = None, out: IO[str] | None = None) -> None:
        self.name = name
        self.seed = random.SystemRandom().randrange(2**32) if seed is None else seed
        self.random = random.Random(self.seed)  # noqa: S311 - must be reproducible
        self._out = out or sys.stdout
        self._children: list[Child] = []
        self.directory = Path(tempfile.mkdtemp(prefix=f"cordwood-{name}-"))

    def serve(self, data: str = "data", **settings: str) -> Child:
        """Start a child broker on a data directory of this run; underscores become dots."""
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        child = Child(self.directory / data, dotted)
        self._children.append(child)
        return child

    def say(self, step: str, **details: object) -> None:
        """Print one logfmt line."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        shown = " ".join(f"{name}={_quoted(value)}" for name, value in details.items())
        print(f"ts={now} scenario={self.name} step={step} {shown}".rstrip(), file=self._out)

    def check(self, holds: bool, what: str, **details: object) -> None:
        """Print the result of a check; raises ``Failed`` if it does not hold."""
        self.say("check", what=what, outcome="PASS" if holds else "FAIL", **details)
        if not holds:
            raise Failed(f"{self.name} (seed {self.seed}): {what}: {details}")

    def run_command(
        self, *words: str, at: str, expect: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against the broker at a Kafka address, as a user would."""
        command = [sys.executable, "-m", "cordwood", *words, "--broker", at, "--format", "json"]
        shown, began = " ".join(("cordwood", *words)), time.monotonic()
        self.say("run", command=shown)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            while True:
                try:
                    out, err = child.communicate(timeout=WAITING_S)
                    break
                except subprocess.TimeoutExpired:
                    self.say("waiting", until=f"{shown} ends", waited_s=_since(began))
        if child.returncode != expect:
            raise Failed(f"{shown} ended with {child.returncode}: {err[-800:]}")
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    def wait_for_spark(self, broker: Child, holds: Callable[[], bool], what: str) -> None:
        """Wait for the broker's pipeline however slow it starts, saying so; not if it cannot run.

        A time limit that suits an idle machine fails on a loaded one, where Spark is only slow.
        """
        began = time.monotonic()

        def look() -> None:
            report = HttpClient(broker.addresses["http"]).call(GetPipeline())
            if report.state == "missing":
                raise Failed(f"the pipeline cannot run: {report.detail}")
            self.say("waiting", until=what, pipeline=report.state, waited_s=_since(began))

        look()
        wait_until(holds, what, SPARK_S, every_s=LOOK_S, waiting=look)

    def __enter__(self) -> Self:
        """Print the seed."""
        self.say("begin", seed=self.seed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Kill running children; keeps the directory if the scenario failed."""
        for child in self._children:
            if child.is_running:
                child.kill()
        if error is None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.say("result", outcome="PASS")
        else:
            self.say("result", outcome="FAIL", error=str(error), kept=self.directory)


def read_all(control: str, topic: str, count: int) -> list[Line]:
    """The first ``count`` records of a topic, from the start."""
    lines: list[Line] = []
    with (
        Client(control) as client,
        client.subscribe(topic, from_start=True, idle_timeout_s=30) as stream,
    ):
        for line in stream:
            lines.append(line)
            if len(lines) == count:
                break
    return lines


def wait_until(
    holds: Callable[[], bool],
    what: str,
    timeout_s: float = 60.0,
    *,
    every_s: float = 0.01,
    waiting: Callable[[], None] = lambda: None,
    notice_s: float = WAITING_S,
) -> None:
    """Poll until the condition holds; raises ``Failed`` after ``timeout_s``.

    Meanwhile calls ``waiting`` every ``notice_s``, to show progress or to give up.
    """
    now = time.monotonic()
    deadline, notice = now + timeout_s, now + notice_s
    while not holds():
        now = time.monotonic()
        if now > deadline:
            raise Failed(f"waited {timeout_s:.0f} s in vain until {what}")
        if now > notice:
            waiting()
            notice = now + notice_s
        time.sleep(every_s)


def _since(began: float) -> int:
    return round(time.monotonic() - began)


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if " " in text or '"' in text or not text else text
