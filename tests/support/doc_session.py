"""Runs the commands of a documentation page as its reader would type them.

A page may have three kinds of blocks:

* ``console``: lines that begin with ``$ `` are typed into a shell (``> `` continues a command); the
  lines after them are the expected output, stdout and stderr together;
* any block after ``<!-- file: NAME -->`` is saved under that name beside the data;
* ``sh``: not run here; only the set-up of a page may be in one.

Pages use the default ports, and 9093 for TLS. Here every listener gets a free port instead: typed
commands use the free port, and the output shows the default port again. ``cordwood serve … &`` runs
until it prints READY.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PORTS = {"kafka": "9092", "ingress": "5673", "control": "5675", "http": "8080"}
TLS_PORTS = {"kafka_tls": "9093"}
PATIENCE_S = 120.0
_BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_VARYING = [
    (re.compile(r"\b1\d{12}\b"), "<ms>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<sha256>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d{3})?(Z|\+00:00)?"), "<time>"),
    (re.compile(r"\b127\.0\.0\.1:[3-6]\d{4}\b"), "<peer>"),
    (re.compile(r"[ \t]+"), " "),
]


class Step(NamedTuple):
    """One step of a page; ``file`` is set for text to be saved."""

    text: str
    printed: str = ""
    file: str | None = None


def steps_of(page: str) -> Iterator[Step]:
    """Yield the steps of a page in order."""
    for file, kind, body in _BLOCK.findall(page):
        if file:
            yield Step(body, file=file)
        elif kind == "console":
            yield from _typed(body)


def blocks_of(page: str) -> list[tuple[str, str, str]]:
    """Return every fenced block as its file name, its kind and its text."""
    return _BLOCK.findall(page)


def prose_of(page: str) -> str:
    """Return the page without its blocks."""
    return _BLOCK.sub("", page)


def settled(text: str) -> str:
    """Replace what differs between runs: times, ids, peer ports and spacing."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _typed(body: str) -> Iterator[Step]:
    command: list[str] = []
    printed: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            if command:
                yield Step("\n".join(command), "\n".join(printed))
            command, printed = [line[2:]], []
        elif line.startswith("> ") and not printed:
            command.append(line[2:])
        else:
            printed.append(line)
    assert command, f"a console block types nothing: {body!r}"
    yield Step("\n".join(command), "\n".join(printed))


class Session:
    """The shell of one reader, in its own directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._broker: subprocess.Popen[str] | None = None
        self._real: dict[str, str] = {}  # default port → port in use
        binaries = Path(sys.executable).parent
        self._environ = {
            **os.environ,
            **{f"CORDWOOD_{listener.upper()}": "127.0.0.1:0" for listener in PORTS},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "CORDWOOD_PIPELINE": "off",
        }

    def play(self, step: Step) -> str:
        """Run the step and return its output with default ports."""
        if step.file:
            (self._directory / step.file).write_text(self._inward(step.text))
            return ""
        if step.text.startswith("cordwood serve"):
            return self._outward(self._serve(step.text.removesuffix(" &")))
        done = subprocess.run(
            ["bash", "-c", self._inward(step.text)],
            cwd=self._directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if step.text.startswith("kill"):
            self._await_end()
        return self._outward(done.stdout)

    def close(self) -> None:
        """Stop the broker if the page left it running."""
        if self._broker:
            self._broker.terminate()
            self._await_end()

    def _await_end(self) -> None:
        assert self._broker, "nothing to stop"
        assert self._broker.stdout
        self._broker.wait(PATIENCE_S)
        self._drain.join(PATIENCE_S)
        self._broker.stdout.close()
        self._broker = None

    def _serve(self, command: str) -> str:
        self.close()
        for port in TLS_PORTS.values():
            command = re.sub(rf"\b{port}\b", "0", command)
        self._broker = subprocess.Popen(
            ["bash", "-c", f"exec {command} 2>&1"],
            cwd=self._directory,
            env=self._environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._broker.stdout
        lines: list[str] = []
        for line in self._broker.stdout:
            lines.append(line)
            if line.startswith("READY "):
                bound = json.loads(line.removeprefix("READY "))
                ports = (PORTS | TLS_PORTS).items()
                self._real = {p: bound[d].rpartition(":")[2] for d, p in ports if d in bound}
                self._environ["CORDWOOD_BROKER"] = bound["kafka"]
                break
        else:
            raise AssertionError(f"{command} ended before it was ready:\n{''.join(lines)}")
        self._drain = threading.Thread(target=self._broker.stdout.read, daemon=True)
        self._drain.start()
        return "".join(lines)

    def _inward(self, text: str) -> str:
        for default, real in self._real.items():
            text = re.sub(rf"\b{default}\b", real, text)
        return text

    def _outward(self, text: str) -> str:
        for default, real in self._real.items():
            text = re.sub(rf"\b{real}\b", default, text)
        return text.replace(str(self._directory), ".")
