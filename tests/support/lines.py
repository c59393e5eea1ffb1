"""A plain socket client for lines or frames, for tests that check every byte."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from cordwood.client import Client, Line

TIMEOUT_S = 30.0
COMPILE_S = 240.0


def parse(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)


def until(holds: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Poll until the condition holds, or fail after the timeout."""
    deadline = time.monotonic() + timeout_s
    asked = 0
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain until {what}"
        asked += 1
        select_nothing(min(0.001 * asked, 0.05))


def select_nothing(seconds: float) -> None:
    """Pause between two polls; tests wait for a condition, never for this pause."""
    import select

    select.select([], [], [], seconds)


class Wire:
    """One connection."""

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, receive_bytes: int | None = None
    ) -> None:
        raw = socket.socket()
        raw.settimeout(TIMEOUT_S)
        if receive_bytes:  # before connecting, when the TCP window is negotiated
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.connect(parse(address))
        # An end of stream without TLS close_notify may be forged, so it is an error here.
        strict = {"server_hostname": "localhost", "suppress_ragged_eofs": False}
        self.socket = tls.wrap_socket(raw, **strict) if tls else raw
        self._pending = b""

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def end(self) -> Self:
        """Send no more, but keep reading."""
        self.socket.shutdown(socket.SHUT_WR)
        return self

    def frame(self, body: bytes) -> Self:
        return self.send(len(body).to_bytes(4, "little") + body)

    def _more(self) -> bool:
        data = self.socket.recv(65_536)
        self._pending += data
        return bool(data)

    def line(self) -> bytes:
        """Return the next line without its newline, or the rest if the peer closes."""
        while b"\n" not in self._pending and self._more():
            pass
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def lines(self, count: int) -> list[bytes]:
        return [self.line() for _ in range(count)]

    def read_frame(self) -> bytes:
        while len(self._pending) < 4 and self._more():
            pass
        size = int.from_bytes(self._pending[:4], "little")
        while len(self._pending) < 4 + size and self._more():
            pass
        body, self._pending = self._pending[4 : 4 + size], self._pending[4 + size :]
        return body

    def rest(self) -> bytes:
        """Return everything until the peer closes."""
        while self._more():
            pass
        rest, self._pending = self._pending, b""
        return rest

    def is_closed(self) -> bool:
        """Wait for data or an end, and return whether the peer has closed the connection."""
        try:
            return not self._more()
        except ConnectionError:
            return True

    def ask(self, command: bytes) -> bytes:
        return self.send(command + b"\n").line()

    def hello(self, name: str, epoch: int | None = None) -> list[bytes]:
        words = f"HELLO {name}" + (f" {epoch}" if epoch is not None else "")
        return self.ask(words.encode()).split()

    def acked(self, n: int) -> None:
        """Read replies until one acknowledges ``n``."""
        while True:
            reply = self.line()
            assert reply.startswith(b"ACK "), reply
            if int(reply[4:]) >= n:
                assert int(reply[4:]) == n
                return

    def reset(self) -> None:
        """Close with a TCP reset instead of a normal end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def numbered(start: int, end: int, payload: str = "p", key: str = "test.k") -> bytes:
    """Return lines with ``n`` in [start, end)."""
    return b"".join(f"{key}|17|{n}|{payload}{n}\n".encode() for n in range(start, end))


def ask(address: str, command: str) -> bytes:
    """Send one command on a new connection and return the reply."""
    with Wire(address) as wire:
        return wire.ask(command.encode())


def high_watermark(control: str, topic: str = "append") -> int:
    reply = ask(control, f"GET_ACK {topic}")
    return int(reply[4:]) if reply.startswith(b"ACK ") else 0


def read_topic(control: str, topic: str = "append", count: int | None = None) -> list[Line]:
    """Return all records of a topic, or the first ``count`` of them."""
    wanted = high_watermark(control, topic) if count is None else count
    lines: list[Line] = []
    if wanted == 0:
        return lines
    with (
        Client(control) as client,
        client.subscribe(topic, from_start=True, idle_timeout_s=TIMEOUT_S) as stream,
    ):
        for line in stream:
            lines.append(line)
            if line.seq >= wanted:
                break
    return lines


def http_get(address: str, path: str) -> tuple[int, str]:
    """Return status and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Served:
    """``cordwood serve`` in its own process, on free ports."""

    def __init__(self, data: Path, *, under: Sequence[str] = (), **settings: object) -> None:
        """``under`` is a command prefix, such as ``limits.open_files`` returns."""
        options = {"kafka": "off", "ingress": "127.0.0.1:0", "control": "127.0.0.1:0"}
        options |= {"http": "127.0.0.1:0"}
        options |= {name.replace("_", "-"): str(value) for name, value in settings.items()}
        flags = [f"--{name}={value}" for name, value in options.items()]
        self._log = (data.parent / f"{data.name}.log").open("a+")
        self.process = subprocess.Popen(
            [*under, sys.executable, "-m", "cordwood", "serve", "--data", str(data), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout
        ready = self.process.stdout.readline()
        assert ready.startswith("READY "), self.log()
        self.addresses: dict[str, str] = json.loads(ready.removeprefix("READY "))
        self.ingress = self.addresses.get("ingress", "")
        self.control = self.addresses.get("control", "")
        self.http = self.addresses.get("http", "")

    def log(self) -> str:
        """Return what the process wrote to stderr so far."""
        self._log.flush()
        return Path(self._log.name).read_text()

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def warm_up(self) -> None:
        """Load the kernels, so that a later memory measurement does not include them."""
        Wire(self.ingress).close()
        until(
            lambda: self.metrics()["cordwood_kernels_loaded"],
            "the kernels are loaded",
            COMPILE_S,  # in a fresh clone they are compiled first
        )

    def metrics(self) -> dict[str, Any]:
        found = json.loads(ask(self.control, "METRICS"))
        assert isinstance(found, dict)
        return found

    def connections(self, listener: str, asking: Wire | None = None) -> int:
        """Return the number of open connections, including the one that asks for it."""
        metrics = json.loads(asking.ask(b"METRICS")) if asking else self.metrics()
        rows = metrics["cordwood_connections"]
        return next(int(row["value"]) for row in rows if row["listener"] == listener)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.end()

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        assert self.process.stdout
        self.process.stdout.close()
        self._log.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


@contextlib.contextmanager
def wires(address: str, count: int) -> Iterator[list[Wire]]:
    """Open many connections at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire(address)) for _ in range(count)]


def is_blocked(wire: Wire, data: bytes, times: int) -> bool:
    """Return whether the peer stops reading before all data is sent."""
    wire.socket.settimeout(1)
    try:
        for _ in range(times):
            wire.send(data)
    except TimeoutError:
        return True
    finally:
        wire.socket.settimeout(TIMEOUT_S)
    return False
