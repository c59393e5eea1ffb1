"""Push plain lines to the ingress listener, as ``nc`` would, until all are durable."""

from __future__ import annotations

import socket
import time
from typing import Final

from cordwood.address import parse_address
from cordwood.client import Client
from cordwood.errors import UnavailableError
from cordwood.lab.loadtest.clients import LOOK_S, PATIENCE_S, measure
from cordwood.lab.loadtest.results import Load, Report, Results

NAME: Final = "plain socket"
_KEY: Final = b"bench.lines"


def push(ingress: str, control: str, load: Load, report: Report) -> Results:
    """Each client has its own connection; the run ends when GET_ACK has counted every line."""
    with Client(control) as asking:
        end = asking.get_ack() + load.records

    size = load.batch_records
    blocks = {count: _block(load.size_bytes, count) for count in {size, load.records % size} - {0}}

    def pour(_partition: int, share: int) -> list[float]:
        with socket.create_connection(parse_address(ingress), PATIENCE_S) as listener:
            for start in range(0, share, size):
                count = min(size, share - start)
                listener.sendall(blocks[count])
                report(count)
            listener.shutdown(socket.SHUT_WR)
            listener.recv(1)  # returns when the broker has read everything and closes
        with Client(control) as asking:
            _wait_for(asking, end)
        return []

    return measure("lines", NAME, load, pour)


def _block(size_bytes: int, count: int) -> bytes:
    """A block of lines, made before the run; unnamed producers may send the same block again."""
    payload = b"x" * size_bytes
    now_ms = time.time_ns() // 1_000_000
    return b"".join(b"%s|%d|%d|%s\n" % (_KEY, now_ms, n, payload) for n in range(1, count + 1))


def _wait_for(asking: Client, end: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while asking.get_ack() < end:
        if time.monotonic() > deadline:
            raise UnavailableError(f"GET_ACK stays below {end}; are the lines dead letters?")
        time.sleep(LOOK_S)
