"""The client's loops, which run in one child process for the whole benchmark.

Sockets are plain and blocks are prepared, so that the server is measured and not the client's
encoder. The same loop serves every contestant; only its Speech differs.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from bench.peers.speech import SPEECHES, Speech

BLOCK = 2_000
WINDOW = 20_000  # messages in flight before the client waits for an acknowledgement
PATIENCE_S = 60.0

Address = tuple[str, int]


class Client:
    """The child process; ``ask`` runs a function of this package in it."""

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(1)

    def ask(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.apply(work, arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()


class Pumped(NamedTuple):
    """The number of messages, the elapsed time, and the CPU time of the client process."""

    count: int
    seconds: float
    cpu_seconds: float


def connect(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def stream(address: Address, speech_name: str, seconds: float) -> Pumped:
    """Send for that long without replies; the time ends when the server closes its side."""
    speech: Speech = SPEECHES[speech_name](0)
    data = bytes(speech.messages(0, 10 * BLOCK))
    sent = 0
    began, cpu = time.perf_counter(), time.process_time()
    with connect(address) as connection:
        while time.perf_counter() - began < seconds:
            connection.sendall(data)
            sent += 10 * BLOCK
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return Pumped(sent, time.perf_counter() - began, time.process_time() - cpu)


def pump(address: Address, speech_name: str, seconds: float) -> Pumped:
    """Publish for that long with at most WINDOW in flight; the time ends with the last ack."""
    speech: Speech = SPEECHES[speech_name](0)
    with connect(address) as connection:
        speech.open(connection)
        connection.setblocking(False)
        began, cpu = time.perf_counter(), time.process_time()
        sent = _pump(connection, speech, began + seconds)
        return Pumped(sent, time.perf_counter() - began, time.process_time() - cpu)


def fill(address: Address, speech_name: str, count: int) -> int:
    """Publish that many messages, a whole number of blocks, and wait for all acknowledgements."""
    speech: Speech = SPEECHES[speech_name](0)
    with connect(address) as connection:
        speech.open(connection)
        connection.setblocking(False)
        return _pump(connection, speech, float("inf"), count)


def until_quick(address: Address, speech_name: str, block_s: float, limit_s: float) -> bool:
    """Publish blocks until three in a row are fast enough; the server is then warm."""
    speech: Speech = SPEECHES[speech_name](0)
    deadline, quick, sent = time.perf_counter() + limit_s, 0, 0
    with connect(address) as connection:
        speech.open(connection)
        while quick < 3 and (began := time.perf_counter()) < deadline:
            connection.sendall(speech.messages(sent, BLOCK))
            sent += BLOCK
            acked = 0
            while acked < BLOCK:
                acked += _acks(connection, speech)
            quick = quick + 1 if time.perf_counter() - began < block_s else 0
    return quick == 3


def _pump(
    connection: socket.socket, speech: Speech, until: float, limit: float = float("inf")
) -> int:
    sent = acked = 0
    waiting = memoryview(b"")
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    with selectors.DefaultSelector() as chooser:
        chooser.register(connection, both)
        asked = both
        while acked < sent or (sent < limit and time.perf_counter() < until):
            is_due = not waiting and sent - acked <= WINDOW - BLOCK
            if is_due and sent < limit and time.perf_counter() < until:
                waiting = memoryview(speech.messages(sent, BLOCK))
                sent += BLOCK
            wanted = both if waiting else selectors.EVENT_READ
            if wanted != asked:
                chooser.modify(connection, wanted)
                asked = wanted
            ready = chooser.select(PATIENCE_S)
            assert ready, f"no ack for {PATIENCE_S:.0f} s with {sent - acked} messages under way"
            for _, events in ready:
                if events & selectors.EVENT_READ:
                    acked += _acks(connection, speech)
                if events & selectors.EVENT_WRITE and waiting:
                    waiting = waiting[connection.send(waiting) :]
    return sent


def _acks(connection: socket.socket, speech: Speech) -> int:
    data = connection.recv(1 << 18)
    assert data, "the server closed the connection"
    return speech.acked(data)


def one_in_flight(address: Address, speech_name: str, seconds: float) -> list[float]:
    """Return the milliseconds from each send to its acknowledgement, with one in flight."""
    speech: Speech = SPEECHES[speech_name](0)
    taken: list[float] = []
    with connect(address) as connection:
        speech.open(connection)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            connection.sendall(speech.messages(len(taken), 1))
            while speech.acked(connection.recv(4096)) == 0:
                pass
            taken.append((time.perf_counter() - began) * 1000)
    return taken


def closed_loop(address: Address, speech_name: str, clients: int, seconds: float) -> Pumped:
    """Run many connections with one message in flight each."""
    with selectors.DefaultSelector() as chooser:
        for number in range(clients):
            connection = connect(address)
            speech: Speech = SPEECHES[speech_name](number)
            speech.open(connection)
            chooser.register(connection, selectors.EVENT_READ, [speech, 0])
        began, cpu = time.perf_counter(), time.process_time()
        done = _closed_loop(chooser, began + seconds)
        spent = time.process_time() - cpu
        elapsed = time.perf_counter() - began
        for key in list(chooser.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return Pumped(done, elapsed, spent)


def _closed_loop(chooser: selectors.BaseSelector, until: float) -> int:
    for key in list(chooser.get_map().values()):
        key.fileobj.sendall(key.data[0].messages(0, 1))  # type: ignore[union-attr]
    done = 0
    while time.perf_counter() < until:
        for key, _ in chooser.select(PATIENCE_S):
            connection, state = key.fileobj, key.data
            if state[0].acked(connection.recv(4096)):  # type: ignore[union-attr]
                state[1] += 1
                done += 1
                connection.sendall(state[0].messages(state[1], 1))  # type: ignore[union-attr]
    return done
