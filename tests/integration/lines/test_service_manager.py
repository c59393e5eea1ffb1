"""The broker reports to systemd through a real datagram socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.server.service_manager import ServiceManager

SERVE = ("-m", "cordwood", "serve", "--no-pipeline")
FREE = [f"--{name}=127.0.0.1:0" for name in ("kafka", "ingress", "control", "http")]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd would open it, and its address."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(60)
        yield listening, address


def test_systemd_hears_ready_alive_and_stopping(manager, tmp_path):
    """READY comes once every listener is open, WATCHDOG while the broker runs, STOPPING last."""
    heard, address = manager
    environment = {**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
    with subprocess.Popen(
        [sys.executable, *SERVE, *FREE, "--data", str(tmp_path / "data")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as broker:
        messages = [heard.recv(4096).decode() for _ in range(4)]
        broker.send_signal(signal.SIGTERM)
        while not messages[-1].startswith("STOPPING=1"):
            messages.append(heard.recv(4096).decode())
        assert broker.wait(60) == 0
    (ready,) = [text for text in messages if text.startswith("READY=1\n")]
    assert "STATUS=serving kafka 127.0.0.1:" in ready
    assert messages.count("WATCHDOG=1") >= 2


def test_systemds_variables_are_not_inherited():
    """Children of the broker have no NOTIFY_SOCKET; the watchdog of another pid is not ours."""
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1", "A": "b"}
    assert ServiceManager.of(environment).watchdog_s is None
    assert environment == {"A": "b"}
    asked = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "5000000"}
    assert ServiceManager.of(asked).watchdog_s == 5.0


def test_abstract_sockets_are_reached():
    """An address that begins with @ is an abstract socket."""
    name = f"cordwood-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        heard.settimeout(10)
        ServiceManager(f"@{name}").stopping()
        assert heard.recv(100) == b"STOPPING=1\nSTATUS=stopping"


@pytest.mark.parametrize("address", [None, "/nowhere/notify"])
def test_a_manager_that_is_not_there_stops_nothing(address):
    """Without a socket nothing is sent; one that cannot be reached is only logged."""
    ServiceManager(address).ready({"kafka": ["127.0.0.1:9092"]})
