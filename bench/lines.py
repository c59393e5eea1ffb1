"""Measures the line listeners: ingest, ack latency, many small clients, first byte and memory.

Every broker is a child process with settings that a user could choose; the clients are other
processes or this one. Each ingest row also notes the broker's CPU time per record, which is more
reliable than wall time on a shared machine.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple, Self

from bench.rows import Row
from cordwood.lab.scenarios.stage import Child

SECONDS = float(os.environ.get("BENCH_SECONDS", "10"))
LINE_BYTES = 100
BLOCK_LINES = 2_000
CLIENTS = 64
FIRST_BYTE_RECORDS = (10_000, 10_000_000)
FIRST_BYTE_TRIES = 40
DURABILITIES = ("fsync", "os")
_TICKS = os.sysconf("SC_CLK_TCK")


def run() -> Iterator[Row]:
    for durability in DURABILITIES:
        yield from ingest(durability)
    for durability in DURABILITIES:
        yield from latency(durability)
    for durability in DURABILITIES:
        yield from many_clients(durability)
    yield from first_byte()


class Broker:
    """A child broker in its own directory, which is removed with it."""

    def __init__(self, durability: str) -> None:
        self._room = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
        self.child = Child(self._room / "data", {"durability": durability})
        self.ingress = address(self.child.addresses["ingress"])
        self.control = address(self.child.addresses["control"])
        self.pid = self.child._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()
        shutil.rmtree(self._room)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def ack(self) -> int:
        with socket.create_connection(self.control) as asking:
            asking.sendall(b"GET_ACK\n")
            return int(asking.makefile("rb").readline().split()[1])


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def block(start: int, count: int) -> bytes:
    """Return whole lines of LINE_BYTES with their newline, numbered from ``start``."""
    lines = []
    for n in range(start, start + count):
        head = b"test.bench|1700000000000|%d|" % n
        lines.append(head + b"x" * (LINE_BYTES - 1 - len(head)) + b"\n")
    return b"".join(lines)


# --- sustained ingest -----------------------------------------------------------------------


def ingest(durability: str) -> Iterator[Row]:
    """One client without a name sends as fast as the broker reads."""
    with Broker(durability) as broker:
        idle = broker.rss_mib()
        warm_up(broker)
        rss, cpu, records = broker.rss_mib(), broker.cpu_seconds(), broker.ack()
        started = time.perf_counter()
        seconds = in_child(push, broker.ingress, SECONDS)
        stored = settled(broker) - records
        elapsed = time.perf_counter() - started
        cpu = broker.cpu_seconds() - cpu
        workload = f"line ingest, {LINE_BYTES} B, {seconds:.0f} s"
        yield Row(workload, durability, stored / elapsed, "records/s")
        yield Row("broker CPU per record", durability, cpu / stored * 1e6, "µs")
        note = f"idle {idle:.0f}, with kernels {rss:.0f}, records {stored:,}"
        yield Row("broker RSS after ingest", durability, broker.rss_mib(), "MiB", note)


def warm_up(broker: Broker) -> None:
    """Send lines until the kernels are loaded, because the first seconds are not typical."""
    deadline = time.monotonic() + 60
    quick = 0
    with socket.create_connection(broker.ingress) as sending:
        sending.sendall(b"HELLO warm\n")
        replies = sending.makefile("rb")
        replies.readline()
        n = 1
        while quick < 3 and time.monotonic() < deadline:
            started = time.perf_counter()
            sending.sendall(block(n, BLOCK_LINES))
            n += BLOCK_LINES
            while int(replies.readline().split()[1]) < n - 1:
                pass
            # Plain Python takes about 20 ms for this block, the kernels less than one.
            quick = quick + 1 if time.perf_counter() - started < 0.012 else 0


def push(target: tuple[str, int], seconds: float) -> float:
    data = memoryview(block(1_000_000, 20_000))
    started = time.perf_counter()
    with socket.create_connection(target) as sending:
        while time.perf_counter() - started < seconds:
            sending.sendall(data)
        sending.shutdown(socket.SHUT_WR)
        sending.recv(1)
    return time.perf_counter() - started


def settled(broker: Broker) -> int:
    """Return the stored count; the broker closes the connection once its lines are durable."""
    return broker.ack()


def in_child(work, *arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(time.sleep, (0.0,))
        return pool.apply(work, arguments)


# --- acknowledgement latency ----------------------------------------------------------------


def latency(durability: str) -> Iterator[Row]:
    """One named producer has one line in flight: measure from send to ACK."""
    with Broker(durability) as broker:
        warm_up(broker)
        taken = one_in_flight(broker.ingress, "single", SECONDS / 2)
    cuts = quantiles(taken, n=1000)
    for name, value in (("p50", cuts[499]), ("p99", cuts[989]), ("p99.9", cuts[998])):
        note = f"{len(taken):,} lines"
        yield Row(f"ack latency, one in flight, {durability}", name, value * 1000, "ms", note)


def one_in_flight(target: tuple[str, int], name: str, seconds: float) -> list[float]:
    taken: list[float] = []
    with socket.create_connection(target) as sending:
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sending.sendall(f"HELLO {name}\n".encode())
        assert sending.recv(100).startswith(b"OK")
        stop = time.perf_counter() + seconds
        n = 1
        while (now := time.perf_counter()) < stop:
            sending.sendall(block(n, 1))
            sending.recv(100)
            taken.append(time.perf_counter() - now)
            n += 1
    return taken


def many_clients(durability: str) -> Iterator[Row]:
    """CLIENTS producers in one process have one line in flight each."""
    with Broker(durability) as broker:
        warm_up(broker)
        cpu = broker.cpu_seconds()
        done, seconds = in_child(closed_loop, broker.ingress, SECONDS / 2)
        cpu = broker.cpu_seconds() - cpu
    workload = f"{CLIENTS} clients, one in flight each"
    yield Row(workload, durability, done / seconds, "records/s", f"{cpu / done * 1e6:.0f} µs CPU")


def closed_loop(target: tuple[str, int], seconds: float) -> tuple[int, float]:
    import selectors

    chooser = selectors.DefaultSelector()
    for number in range(CLIENTS):
        sending = socket.create_connection(target)
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sending.sendall(b"HELLO client-%d\n" % number)
        sending.recv(100)
        chooser.register(sending, selectors.EVENT_READ, [1])
        sending.sendall(block(1, 1))
    done = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for key, _ in chooser.select():
            key.fileobj.recv(100)
            key.data[0] += 1
            key.fileobj.sendall(block(key.data[0], 1))
            done += 1
    elapsed = time.perf_counter() - started
    for key in list(chooser.get_map().values()):
        key.fileobj.close()
    return done, elapsed


# --- FROM_START -----------------------------------------------------------------------------


class Times(NamedTuple):
    first_ms: float
    lines_per_s: float


def first_byte() -> Iterator[Row]:
    """Measure SUBSCRIBE FROM_START: the time to the first byte, and the rate after it.

    The two logs are measured in turn, so that the load of other processes affects both.
    """
    with ExitStack() as stack:
        brokers = {n: stack.enter_context(Broker("os")) for n in FIRST_BYTE_RECORDS}
        for records, broker in brokers.items():
            warm_up(broker)
            fill(broker, records)
        rss = {records: broker.rss_mib() for records, broker in brokers.items()}
        firsts: dict[int, list[float]] = {records: [] for records in brokers}
        for _ in range(FIRST_BYTE_TRIES):
            for records, broker in brokers.items():
                firsts[records].append(subscribe(broker, 1).first_ms)
        for records, broker in brokers.items():
            rate = max(subscribe(broker, min(records, 500_000)).lines_per_s for _ in range(5))
            note = f"RSS {rss[records]:.0f} MiB before, {broker.rss_mib():.0f} after"
            variant = f"{records:,} records"
            yield Row("FROM_START, first byte", variant, median(firsts[records]), "ms", note)
            yield Row("FROM_START, stream", variant, rate, "lines/s")


def fill(broker: Broker, records: int) -> None:
    data = block(1, BLOCK_LINES)
    with socket.create_connection(broker.ingress) as sending:
        for _ in range(records // BLOCK_LINES):
            sending.sendall(data)
        sending.shutdown(socket.SHUT_WR)
        sending.recv(1)
    assert broker.ack() >= records


def subscribe(broker: Broker, lines: int) -> Times:
    with socket.create_connection(broker.control) as reading:
        started = time.perf_counter()
        reading.sendall(b"SUBSCRIBE append FROM_START\n")
        data = reading.recv(1)
        first = time.perf_counter() - started
        seen = data.count(b"\n")
        while seen < lines:
            seen += reading.recv(2**20).count(b"\n")
        return Times(first * 1000, seen / (time.perf_counter() - started))


if __name__ == "__main__":
    for row in run():
        print(f"{row.workload:45} {row.variant:20} {row.value:14.2f} {row.unit} {row.note}")
