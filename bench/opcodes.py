"""Counts the bytecode instructions of our code per operation, which are equal on every machine.

A broker in this process is traced instruction by instruction, in all its threads, while a plain
socket sends requests. Only code of the package counts, not the standard library. The result is the
lower quartile of many repeats, which excludes timers and wake-ups in between. Work inside numba's
kernels or in C is not counted; per-record work in Python, which makes a Python broker slow, is.

``python -m bench.opcodes`` prints the counts as JSON. A test runs it as a process of its own,
because pytest rewrites the assertions of this package, which adds instructions.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import cordwood
from bench.peers import raw_fetch, rdkafka
from bench.peers.client import connect
from bench.peers.speech import SPEECHES, TOPIC
from cordwood.batch.arrow import SPARK_COLUMNS, arrow_batch, wanted_columns
from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.kernels import loader
from cordwood.batch.records import encode_batch
from cordwood.model import Record
from cordwood.testing import Broker

REPEATS = 25
BATCH = 1_000
CROWD = 64
WARM_UPS = 5
_OURS = str(Path(cordwood.__file__).parent)


class Opcodes:
    """Counts instructions of our own code in every thread started while it is installed."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # by thread, so that no two share a number

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if event == "opcode":
            self._counts[threading.get_ident()] += 1
        elif event == "call":
            if not frame.f_code.co_filename.startswith(_OURS):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.trace

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread and the threads started inside the block."""
        before = sys.gettrace()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]


def count() -> dict[str, int]:
    """Return the instructions of each hot path."""
    loader.load_kernels()
    return {**served(), **decoded()}


def served() -> dict[str, int]:
    """Count one request of each kind to a broker, from its first byte to its reply."""
    opcodes = Opcodes()
    with opcodes.installed():
        broker = Broker(durability="os", pipeline="off")
        broker.start()
        sys.settrace(None)  # the client is not counted
    with ExitStack() as stack:
        stack.callback(broker.stop)
        rdkafka.create(broker.kafka, [TOPIC])
        found = exchanges(broker, stack)
        return {name: steady(opcodes, exchange) for name, exchange in found}


def exchanges(broker: Broker, stack: ExitStack) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield functions by name that send a request and wait for its reply."""
    for name, listener, speech, messages in (
        ("publish one line", "ingress", "line", 1),
        ("publish 2,000 lines", "ingress", "line", 2_000),
        ("produce one record", "kafka", "kafka", 1),
        ("produce a batch of 1,000", "kafka", "kafka batched", BATCH),
    ):
        connection = stack.enter_context(connect(address(broker.address(listener))))
        yield name, publisher(connection, speech, messages)
    yield f"publish one line from each of {CROWD} clients", crowd(broker, stack)
    yield "fetch 1 MiB", fetcher(stack.enter_context(connect(address(broker.kafka))))


def publisher(connection: socket.socket, speech_name: str, messages: int) -> Callable[[], None]:
    speech = SPEECHES[speech_name](messages)
    speech.open(connection)
    sent = 0

    def exchange() -> None:
        nonlocal sent
        connection.sendall(speech.messages(sent, messages))
        sent += messages
        acked = 0
        while acked < messages:
            acked += speech.acked(connection.recv(1 << 16))

    return exchange


def crowd(broker: Broker, stack: ExitStack) -> Callable[[], None]:
    """Send while the event loop is blocked, so that one iteration finds all lines, in every run."""
    listener = address(broker.address("ingress"))
    clients = []
    for number in range(CROWD):
        clients.append((stack.enter_context(connect(listener)), SPEECHES["line"](CROWD + number)))
        clients[-1][1].open(clients[-1][0])
    pool = stack.enter_context(ThreadPoolExecutor(1))
    sent = 0

    def exchange() -> None:
        nonlocal sent
        held, released = threading.Event(), threading.Event()

        async def hold() -> None:
            held.set()
            released.wait()

        pool.submit(broker.run, hold)
        held.wait()
        for connection, speech in clients:
            connection.sendall(speech.messages(sent, 1))
        released.set()
        for connection, speech in clients:
            while not speech.acked(connection.recv(1 << 16)):
                pass
        sent += 1

    return exchange


def fetcher(connection: socket.socket) -> Callable[[], None]:
    def exchange() -> None:
        connection.sendall(raw_fetch.request(TOPIC, BATCH))  # after the batches of one record
        assert len(raw_fetch.reply(connection, TOPIC)) > 500_000

    return exchange


def steady(opcodes: Opcodes, exchange: Callable[[], None]) -> int:
    """Return the cost of one exchange after warm-up: the lower quartile of many.

    On a busy machine threads run in other orders, which adds wake-ups and never removes work.
    """
    taken = []
    for _ in range(WARM_UPS + REPEATS):
        before = opcodes.total
        exchange()
        settle(opcodes)
        taken.append(opcodes.total - before)
    return sorted(taken[WARM_UPS:])[REPEATS // 4]


def settle(opcodes: Opcodes) -> None:
    """Wait until the broker is idle: work after the reply belongs to the request."""
    before = -1
    while before != (before := opcodes.total):
        time.sleep(0.002)


def decoded() -> dict[str, int]:
    """Count the conversion of a segment's batches to Spark's columns, in this thread."""
    records = [Record(n, 1_700_000_000_000, b"key", b"x" * 100) for n in range(1_000)]
    data = bytes(encode_batch(records)) * 10
    names = [name for name in SPARK_COLUMNS if name != "headers"]
    wanted = wanted_columns(names)

    def work() -> object:
        return arrow_batch(decode_columns(data, wanted=wanted), "topic", 0, names)

    return {"decode 10 batches of 1,000 to Arrow": counted(work)}


def counted(work: Callable[[], object]) -> int:
    """Count the instructions of a call in this thread."""
    work()
    opcodes = Opcodes()
    with opcodes.installed():
        work()
    return opcodes.total


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


if __name__ == "__main__":
    print(json.dumps(count()))
