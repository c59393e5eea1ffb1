"""Push plain lines to the ingress listener, as ``nc`` would, until all are durable."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import Final

from cordwood.address import parse_address
from cordwood.client import Client
from cordwood.client.broker_listeners import ListenerAddress
from cordwood.errors import UnavailableError
from cordwood.lab.loadtest.clients import LOOK_S, PATIENCE_S, measure
from cordwood.lab.loadtest.results import Load, Report, Results
from cordwood.tls import ClientTls

NAME: Final = "plain socket"
_KEY: Final = b"bench.lines"


def push(ingress: ListenerAddress, control: ListenerAddress, load: Load, report: Report) -> Results:
    """Each client has its own connection; the run ends when GET_ACK has counted every line."""
    tls = load.tls if control.is_tls else None
    with Client(control.address, tls=tls) as asking:
        end = asking.get_ack() + load.records

    size = load.batch_records
    blocks = {count: _block(load.size_bytes, count) for count in {size, load.records % size} - {0}}

    def pour(_partition: int, share: int) -> list[float]:
        with _connect(ingress, load.tls) as listener:
            for start in range(0, share, size):
                count = min(size, share - start)
                listener.sendall(blocks[count])
                report(count)
            _finish(listener)
        with Client(control.address, tls=tls) as asking:
            _wait_for(asking, end)
        return []

    return measure("lines", NAME, load, pour)


def _connect(ingress: ListenerAddress, tls: ClientTls | None) -> socket.socket:
    address = parse_address(ingress.address)
    opened = socket.create_connection(address, PATIENCE_S)
    if ingress.is_tls and tls is not None:
        return tls.context().wrap_socket(opened, server_hostname=address.host)
    return opened


def _finish(listener: socket.socket) -> None:
    """End the sending side, and return when the broker has read everything and closes."""
    if isinstance(listener, ssl.SSLSocket):
        with suppress(OSError):  # the broker may close without a farewell
            listener.unwrap()
        return
    listener.shutdown(socket.SHUT_WR)
    listener.recv(1)


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
