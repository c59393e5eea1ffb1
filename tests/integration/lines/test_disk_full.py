"""On a full disk reads continue; waiting lines are stored in order when space returns."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.log.files.disk import Files
from cordwood.testing import Broker
from support.lines import Served, Wire, ask, high_watermark, http_get, numbered, read_topic, until


class FullFiles(Files):
    """A disk with ``left_bytes`` of free space: a short write, then ENOSPC."""

    def __init__(self) -> None:
        super().__init__()
        self.left_bytes = 2**62

    def pwrite(self, fd: int, view: memoryview, position: int) -> int:
        if self.left_bytes <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().pwrite(fd, view[: self.left_bytes], position)
        self.left_bytes -= written
        return written


def is_ready(http: str) -> tuple[int, bool]:
    status, body = http_get(http, "/readyz")
    return status, json.loads(body)["disk_full"]


@pytest.mark.parametrize("left_bytes", [0, 1, 70, 5000])
def test_full_disk_holds_lines_and_refuses_puts(left_bytes: int):
    """On a full disk PUT fails with DISK_FULL and lines wait.

    When space returns, all lines are stored in order, whether or not the last write was short.
    """
    files = FullFiles()
    with Broker(kafka="off", files=files) as broker, Wire(broker.ingress) as named:
        assert ask(broker.control, "PUT jobs before") == b"OK"
        named.hello("steady")
        named.send(numbered(1, 101)).acked(100)
        with Wire(broker.ingress) as nameless:
            files.left_bytes = left_bytes
            for start in range(101, 1001, 100):
                named.send(numbered(start, start + 100, "x" * 50))
            nameless.send(numbered(1, 501, "y" * 50, key="other.k") + b"bad line\n")
            until(lambda: is_ready(broker.http) == (503, True), "readyz says so")
            assert ask(broker.control, "PUT jobs " + "z" * 6000).startswith(b"ERR DISK_FULL ")
            assert ask(broker.control, "GET jobs AS me")[:3] in (b"OK ", b"ERR")
            assert len(read_topic(broker.control, count=100)) == 100
            assert http_get(broker.http, "/healthz")[0] == 200
            files.left_bytes = 2**62
            named.acked(1000)
            nameless.end().rest()
        until(lambda: is_ready(broker.http) == (200, False), "it is ready again")
        lines = read_topic(broker.control)
        assert [x.n for x in lines if x.routing_key == "test.k"] == list(range(1, 1001))
        assert [x.n for x in lines if x.routing_key == "other.k"] == list(range(1, 501))
        assert high_watermark(broker.control, "dead_letter") == 1
        assert ask(broker.control, "PUT jobs after") == b"OK"


def test_a_full_disk_met_by_a_put_is_reported_and_later_found_free():
    """/readyz reports a disk that a PUT found full, and free space without another write."""
    files = FullFiles()
    with Broker(kafka="off", files=files) as broker:
        ask(broker.control, "PUT jobs before")
        files.left_bytes = 0
        assert ask(broker.control, "PUT jobs refused").startswith(b"ERR DISK_FULL ")
        assert is_ready(broker.http) == (503, True)
        files.left_bytes = 2**62
        until(lambda: is_ready(broker.http) == (200, False), "it is ready again")
        assert not list(broker.data.glob("*.tmp"))
        assert ask(broker.control, "GET_ACK jobs") == b"ACK 1"


def test_stop_with_lines_held_for_space_says_they_were_not_written(tmp_path: Path):
    """A stop does not wait for disk space: lines that are not written are not acknowledged.

    The next broker tells the producer its last stored n, so that it can send the rest again.
    """
    files = FullFiles()
    broker = Broker(tmp_path / "data", kafka="off", files=files, shutdown_timeout_ms=200)
    broker.start()
    with Wire(broker.ingress) as wire:
        wire.hello("steady")
        wire.send(numbered(1, 11)).acked(10)
        files.left_bytes = 0
        wire.send(numbered(11, 21))
        until(lambda: broker.service.broker.writer.stats.disk_full, "the disk is full")
        broker.stop()
        assert b"ACK" not in wire.rest()
    with Broker(tmp_path / "data", kafka="off") as again, Wire(again.ingress) as wire:
        assert wire.hello("steady")[3] == b"10"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted tmpfs of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("missing tool: mount (only root may)")
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("missing tool: mount (not allowed here)")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_real_file_system_that_fills_up_loses_nothing(small_disk: Path, tmp_path: Path):
    """A broker process on a full tmpfs refuses PUT and stores all lines when space returns."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 * 2**20))
    with Served(small_disk / "data") as served, Wire(served.ingress) as wire:
        wire.hello("steady")
        sent = 1
        while is_ready(served.http) != (503, True):
            wire.send(numbered(sent, sent + 500, "x" * 500))
            sent += 500
            assert sent < 200_000
        assert ask(served.control, "PUT jobs " + "z" * 500_000).startswith(b"ERR ")
        ballast.unlink()
        wire.acked(sent - 1)
        assert is_ready(served.http) == (200, False)
        assert [line.n for line in read_topic(served.control)] == list(range(1, sent))
        assert "Traceback" not in served.log()
