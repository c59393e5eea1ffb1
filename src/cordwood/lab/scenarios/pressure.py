"""Scenarios: a stalled writer; ``block`` applies backpressure, ``drop_oldest`` counts drops.

The stall is simulated by an embedded broker whose ``Files`` do not return from fsync.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cordwood.address import parse_address
from cordwood.client import Client
from cordwood.lab.scenarios.stage import ScenarioRun, read_all, wait_until
from cordwood.log.files.disk import Files, OpenFile
from cordwood.testing import Broker

BLOCK_PAYLOAD_BYTES = 6_000  # so large that socket buffers cannot hold the remaining lines
DROP_PAYLOAD_BYTES = 500
BLOCKED_S = 1.0  # a socket that accepts nothing for this long counts as blocked


class StallingFiles(Files):
    """A disk whose syncs can be stalled."""

    def __init__(self) -> None:
        super().__init__()
        self._running = threading.Event()
        self._running.set()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Stall syncs while the body runs; released on errors too, or the broker could not stop."""
        self._running.clear()
        try:
            yield
        finally:
            self._running.set()

    def sync_data(self, file: OpenFile) -> None:
        """Sync after waiting for the end of a stall."""
        self._running.wait()
        super().sync_data(file)


def block(stage: ScenarioRun) -> None:
    """10,000 and 20,000 lines into a stalled writer: the sender blocks, nothing is lost."""
    for count in (10_000, 20_000):
        files = StallingFiles()
        with Broker(stage.directory / f"block-{count}", files=files) as broker:
            _make_topics(broker)
            sender = Sender(broker.ingress, count, BLOCK_PAYLOAD_BYTES)
            with files.stalled():
                sender.start()
                wait_until(sender.blocked.is_set, "the sender blocks")
                stage.say("stalled", sent=sender.sent_lines, of=count)
                stage.check(sender.sent_lines < count, "the sender was seen to block")
            sender.join()
            lines = read_all(broker.control, "append", count)
            stage.check(
                [line.n for line in lines] == list(range(1, count + 1)),
                "0 lost, in order",
                stored=len(lines),
            )


def drop(stage: ScenarioRun) -> None:
    """20,000 lines into a stalled writer that may drop: the metric counts exactly the loss."""
    count = 20_000
    files = StallingFiles()
    with Broker(stage.directory / "drop", files=files, ingress_overflow="drop_oldest") as broker:
        _make_topics(broker)
        sender = Sender(broker.ingress, count, DROP_PAYLOAD_BYTES)
        with Client(broker.control) as client:
            with files.stalled():
                sender.start()
                sender.join()
                stage.check(not sender.blocked.is_set(), "the sender never blocked")
                wait_until(lambda: _taken(client) == count, "every line has been read")
            dropped = _metric(client, "cordwood_ingress_dropped_total")
            wait_until(lambda: client.get_ack() == count - dropped, "the rest is stored")
        stage.check(dropped > 0, "lines were dropped", dropped=dropped)
        lines = read_all(broker.control, "append", count - dropped)
        stage.check(len({line.n for line in lines}) == count - dropped, "stored + dropped = sent")
        stage.say("loss", percent=round(100 * dropped / count, 1))


def _make_topics(broker: Broker) -> None:
    """Create the topics before the disk stalls, as that needs the disk too."""
    with Client(broker.control) as client:
        client.register("append")
        client.register("dead_letter")


def _metric(client: Client, name: str) -> int:
    value = client.metrics()[name]
    assert isinstance(value, int | float)
    return int(value)


def _taken(client: Client) -> int:
    return _metric(client, "cordwood_ingress_records_total")


class Sender(threading.Thread):
    """Pushes numbered lines as fast as the socket accepts them; detects when it blocks."""

    def __init__(self, ingress: str, count: int, payload_bytes: int) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(parse_address(ingress))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 262_144)
        self._socket.setblocking(False)
        payload = b"x" * payload_bytes
        lines = [b"test.press|0|%d|%b\n" % (n, payload) for n in range(1, count + 1)]
        self._data = b"".join(lines)
        self._line_bytes = len(self._data) / count
        self.sent_bytes = 0
        self.blocked = threading.Event()

    @property
    def sent_lines(self) -> int:
        """Lines handed to the socket so far."""
        return int(self.sent_bytes / self._line_bytes)

    def run(self) -> None:
        """Send everything."""
        data = memoryview(self._data)
        writable = select.poll()  # select() does not support descriptors above 1023
        writable.register(self._socket, select.POLLOUT)
        while self.sent_bytes < len(data):
            if writable.poll(BLOCKED_S * 1000):
                self.sent_bytes += self._socket.send(data[self.sent_bytes :])
            else:
                self.blocked.set()
        self._socket.close()
