"""Many partitions: start time, open descriptors, and how long a scrape blocks other clients.

A broker over N one-partition topics runs in a child process. A heartbeat on its event loop records
the longest time between two beats while a client asks for all metrics, topics, metadata or offsets.
Every other client of the broker waits that long. The gap is given in wall time, which other
processes lengthen, and in CPU time of the loop's thread, which they do not.
``PARTITIONS=1000,10000`` chooses other sizes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if __package__ in {None, ""}:  # run as a script: the repository is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.rows import Row
from cordwood.batch.header import check_batches
from cordwood.batch.records import encode_batch
from cordwood.client.kafka import LATEST, KafkaClient
from cordwood.clock import SystemClock
from cordwood.config import BrokerConfig
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.live_topics import NewTopic
from cordwood.model import Record, TopicPartition
from cordwood.protocol.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from cordwood.server.embedded import open_embedded_store

SIZES = tuple(int(size) for size in os.environ.get("PARTITIONS", "1000,10000").split(","))
BEAT_S = 0.001
ANSWER_S = 600.0
OFF = {"ingress": "off", "pipeline": "off"}
ANY = "127.0.0.1:0"


def run() -> Iterator[Row]:
    """Run all measurements for each size."""
    for count in SIZES:
        with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as name:
            data = Path(name) / "data"
            build(data, count)
            yield from measure(data, count)


def build(data: Path, count: int) -> None:
    """Create that many topics with one record each, and close the store cleanly."""
    store = open_embedded_store(data, BrokerConfig(), SystemClock(), Files())
    record = encode_batch([Record(0, SystemClock().now_ms(), b"k", b"v" * 100)])
    for start in range(0, count, 500):
        names = [topic(number) for number in range(start, min(start + 500, count))]
        store.create_topics([NewTopic(name, 1, {}) for name in names])
        for name in names:
            batch = bytearray(record)
            partition = store.partition(TopicPartition(name, 0))
            partition.append(batch, check_batches(batch, 1 << 20))
            partition.publish()
    store.close()


def topic(number: int) -> str:
    return f"topic-{number:06d}"


def measure(data: Path, count: int) -> Iterator[Row]:
    """Measure start, scrapes, a start after a kill, and a stop."""
    variant = f"{count} partitions"
    with broker(data) as first:
        yield Row("start after a clean stop", variant, first.start_s, "s to READY", first.cpu())
        yield Row("open descriptors", f"{variant}, at READY", first.descriptors(), "files")
        opened_s = first.until_open(count)
        yield Row("all partitions open", variant, opened_s, "s after READY")
        yield Row("open descriptors", f"{variant}, all open", first.descriptors(), "files")
        yield Row("resident memory", variant, first.resident_mb(), "MB")
        yield from scrapes(first, count, variant)
        first.child.kill()
    with broker(data) as second:
        yield Row("start after kill -9", variant, second.start_s, "s to READY", second.cpu())
        second.until_open(count)
        started = time.perf_counter()
        second.child.send_signal(signal.SIGTERM)
        second.child.wait()
        yield Row("stop", variant, time.perf_counter() - started, "s")


def scrapes(broker: RunningBroker, count: int, variant: str) -> Iterator[Row]:
    """Send each request once to load what is loaded lazily, then measure it once."""
    control, kafka = broker.addresses["control"], broker.addresses["kafka"]
    client = KafkaClient(kafka, timeout_s=ANSWER_S)
    wanted = [ListOffsetsPartition(0, timestamp_ms=LATEST)]
    named = [ListOffsetsTopic(topic(number), wanted) for number in range(count)]
    all_offsets = ListOffsetsRequest(-1, topics=named)
    asked: dict[str, Callable[[], object]] = {
        "nothing": lambda: time.sleep(1),
        "GET /metrics": lambda: broker.get("/metrics"),
        "GET /readyz": lambda: broker.get("/readyz"),
        "GET /api/v1/topics": lambda: broker.get("/api/v1/topics"),
        "GET /api/v1/topics?brief=1": lambda: broker.get("/api/v1/topics?brief=1"),
        "METRICS": lambda: command(control, "METRICS"),
        "STATE": lambda: command(control, f"STATE {topic(0)}"),
        "READERS": lambda: command(control, "READERS"),
        "Metadata, all topics": client.topics,
        "ListOffsets, all partitions": lambda: client.ask(all_offsets, ListOffsetsResponse),
    }
    for name, ask in asked.items():
        ask()
        broker.stall()
        started = time.perf_counter()
        ask()
        took_s = time.perf_counter() - started
        wall_ms, cpu_ms = broker.stall()
        note = f"{cpu_ms:.1f} ms of CPU; answered in {took_s * 1e3:.0f} ms"
        yield Row(f"longest loop stall, {variant}", name, wall_ms, "ms", note)


def command(address: str, line: str) -> bytes:
    """Send one line command and return its answer."""
    import socket

    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as wire:
        wire.sendall(line.encode() + b"\nQUIT\n")
        return b"".join(iter(lambda: wire.recv(1 << 16), b""))


# --- the broker in its child process --------------------------------------------------------------


class RunningBroker:
    """A broker with a heartbeat, as its parent process sees it."""

    def __init__(self, child: subprocess.Popen[str], addresses: dict[str, str], start_s: float):
        self.child = child
        self.addresses = addresses
        self.start_s = start_s

    def stall(self) -> tuple[float, float]:
        """Return the longest gap between two beats since the last call: wall and CPU ms."""
        assert self.child.stdin
        assert self.child.stdout
        self.child.stdin.write("stall\n")
        self.child.stdin.flush()
        wall_ms, cpu_ms = json.loads(self.child.stdout.readline())
        return wall_ms, cpu_ms

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(
            f"http://{self.addresses['http']}{path}", timeout=ANSWER_S
        ) as answer:
            return answer.read()

    def until_open(self, count: int) -> float:
        """Return the seconds until the metrics show every partition; poll rarely to save CPU."""
        started = time.perf_counter()
        while self.get("/metrics").count(b"\ncordwood_high_watermark{") < count:
            time.sleep(min(2.0, count / 1000))
        return time.perf_counter() - started

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.child.pid}/fd").iterdir()))

    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * 4096 / 1e6

    def cpu(self) -> str:
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return f"{ticks / os.sysconf('SC_CLK_TCK'):.1f} s of CPU"


@contextmanager
def broker(data: Path) -> Iterator[RunningBroker]:
    """Run a broker over ``data`` in a child process until the block ends."""
    started = time.perf_counter()
    arguments = [sys.executable, str(Path(__file__)), str(data)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout
            addresses = json.loads(child.stdout.readline())
            yield RunningBroker(child, addresses, time.perf_counter() - started)
        finally:
            child.kill()


class Heartbeat:
    """Records the longest time between two iterations of an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = time.perf_counter(), time.thread_time()
        self._longest = 0.0, 0.0
        self._beat()

    def _beat(self) -> None:
        now = time.perf_counter(), time.thread_time()
        wall_s, cpu_s = now[0] - self._before[0] - BEAT_S, now[1] - self._before[1]
        self._longest = max(self._longest[0], wall_s), max(self._longest[1], cpu_s)
        self._before = now
        self._loop.call_later(BEAT_S, self._beat)

    def take(self) -> None:
        """Print the longest gap in milliseconds and reset it."""
        print(json.dumps([seconds * 1e3 for seconds in self._longest]), flush=True)
        self._longest = 0.0, 0.0


def serve(data: str) -> None:
    """Run in the child: what ``cordwood serve`` runs, with a heartbeat, until SIGTERM."""
    from cordwood.server.service import run_service

    run_service(BrokerConfig(data=data, kafka=ANY, control=ANY, http=ANY, **OFF), on_ready)


def on_ready(addresses: dict[str, list[str]]) -> None:
    """Start the heartbeat on the event loop, and report it whenever the parent asks."""
    loop, heartbeat = asyncio.get_running_loop(), Heartbeat()

    def listen() -> None:
        for _ in sys.stdin:
            loop.call_soon_threadsafe(heartbeat.take)

    threading.Thread(target=listen, daemon=True).start()
    print(json.dumps({name: bound[0] for name, bound in addresses.items()}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        serve(sys.argv[1])
    else:
        from bench.run import table

        print(table(list(run())))
