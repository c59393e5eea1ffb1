"""Java programs of Kafka's ecosystem: which of them are here, and how a test runs them.

``scripts/ecosystem_jars.sh DIR`` fetches them, and ``CORDWOOD_ECOSYSTEM_JARS`` names the directory.
Without the variable they are looked for where ``examples/cdc`` keeps them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JARS = Path(os.environ.get("CORDWOOD_ECOSYSTEM_JARS") or ROOT / ".venv" / "ecosystem").absolute()
SOURCES = ROOT / "tests" / "integration" / "ecosystem" / "java"
WAIT_S = 150.0  # a JVM starts in seconds; a busy machine takes longer
HEAP = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
FLINK_OPENS = tuple(  # as in the start scripts of Flink's distribution
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.util", "java.io", "java.nio", "java.time", "java.net")
)


def needs_program(*programs: str, compiler: bool = False) -> pytest.MarkDecorator:
    """Skip a test, and say what to run, unless these programs and Java are here."""
    missing = [name for name in programs if not (JARS / name / ".artifacts").exists()]
    reason = (
        f"missing tool: {', '.join(missing)} of Kafka's ecosystem (scripts/ecosystem_jars.sh DIR, "
        "CORDWOOD_ECOSYSTEM_JARS=DIR)"
    )
    if not missing:
        command = "javac" if compiler else "java"
        missing = [] if shutil.which(command) else [command]
        reason = f"missing tool: {command} (Debian package openjdk-17-jdk-headless)"
    return pytest.mark.skipif(bool(missing), reason=reason)


def compile_java(name: str, program: str, target: Path) -> str:
    """Compile a source file of ``SOURCES`` against a program's jars; returns its class path."""
    jars = f"{JARS / program}/*"
    command = ["javac", "-J-Xmx256m", "-cp", jars, "-d", str(target), str(SOURCES / f"{name}.java")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return f"{target}{os.pathsep}{jars}"


class Jvm:
    """A running Java program; its standard error goes to a file, for the message of a failure."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._lines.append("")  # the end
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Return when the program has printed this."""
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: any(text in line for line in self._lines) or "" in self._lines, WAIT_S
            )
            assert is_there, f"{text!r} was not printed: {self.failure()}"
            assert any(text in line for line in self._lines), self.failure()

    def printed(self) -> list[str]:
        """Return what the program has printed so far."""
        with self._changed:
            return list(self._lines)

    def finish(self) -> list[str]:
        """Wait for a successful end; returns what was printed."""
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, self.failure()
        self._reader.join()
        return self._lines[:-1]

    def kill(self) -> None:
        """Kill the program with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def failure(self) -> str:
        """Return the end of what the program printed and logged."""
        logged = self.log.read_text(errors="replace").splitlines()
        return "\n".join([*self._lines[-20:], *logged[-40:]])


@contextlib.contextmanager
def java(
    classpath: str,
    *words: str | Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Jvm]:
    """Run a main class, or ``-jar FILE`` if the class path is empty, for a ``with`` block."""
    where = ["-cp", classpath] if classpath else []
    with log.open("a") as err, subprocess.Popen(
        ["java", *HEAP, *options, *where, *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True,
        env={**os.environ, **(env or {})}, cwd=log.parent,
    ) as process:  # fmt: skip
        running = Jvm(process, log)
        try:
            yield running
        finally:
            running.kill()
            running._reader.join()


def properties(path: Path, settings: Mapping[str, object]) -> Path:
    """Write a Java properties file."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def wait_until(is_done: Callable[[], bool], running: Jvm) -> None:
    """Ask again until it is done; fails with the program's log."""
    event = threading.Event()
    for _ in range(int(WAIT_S / 0.25)):
        if is_done():
            return
        assert running.process.poll() is None, running.failure()
        event.wait(0.25)
    pytest.fail(f"not done in {WAIT_S} s: {running.failure()}")
