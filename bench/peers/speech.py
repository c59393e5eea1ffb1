"""Each server's protocol over a plain socket, with as little work for the client as possible.

Every message is a line of 100 bytes with its newline, ``test.bench|<ms>|<n>|xxx…``. A Speech
prepares whole blocks of messages in its server's protocol and counts the acknowledgements in the
replies. The client's loops (``bench.peers.client``) know nothing else about the servers.
"""

from __future__ import annotations

import socket
import time
from typing import Protocol

import numpy as np

from cordwood.batch.records import encode_batch
from cordwood.model import Record
from cordwood.protocol.kafka.frames import encode_request
from cordwood.protocol.kafka.messages.produce import ProducePartition, ProduceRequest, ProduceTopic

MESSAGE_BYTES = 100
HEAD = b"test.bench|1700000000000|"
DIGITS = 10
TOPIC = "bench"
PRODUCE_VERSION = 7
LEADER_S = 10.0
NOW_MS = int(time.time() * 1000)  # an old timestamp would make records due for retention


class Speech(Protocol):
    """The protocol of one connection; each connection has a new one."""

    def open(self, connection: socket.socket) -> None:
        """Exchange the greeting, including replies."""

    def messages(self, start: int, count: int) -> bytes | memoryview:
        """Return requests that publish ``count`` messages numbered from ``start``."""

    def acked(self, data: bytes) -> int:
        """Return how many more messages these replies acknowledge."""


def message(number: int) -> bytes:
    """Return one message without its newline; the line has MESSAGE_BYTES."""
    head = HEAD + b"%0*d|" % (DIGITS, number)
    return head + b"x" * (MESSAGE_BYTES - 1 - len(head))


class Numbered:
    """Blocks of messages between a fixed prefix and suffix; only the numbers are rewritten."""

    def __init__(self, prefix: bytes = b"", suffix: bytes = b"\n") -> None:
        self._one = prefix + message(0) + suffix
        self._at = len(prefix) + len(HEAD)
        self._before, self._after = self._one[: self._at], self._one[self._at + DIGITS :]
        self._blocks: dict[int, np.ndarray] = {}

    def block(self, start: int, count: int) -> bytes | memoryview:
        if count == 1:  # closed loops, where the cost of a call matters
            return b"%b%010d%b" % (self._before, start, self._after)
        block = self._blocks.get(count)
        if block is None:
            block = np.frombuffer(self._one * count, np.uint8).reshape(count, -1).copy()
            self._blocks[count] = block
        rest = np.arange(start, start + count, dtype=np.uint32)
        for place in range(DIGITS - 1, -1, -1):
            block[:, self._at + place] = rest % 10 + 48
            rest //= 10
        return memoryview(block.reshape(-1)).cast("B")


class RawLines:
    """Lines without a HELLO: there are no replies; the server closes when it has them all."""

    def __init__(self, _: int = 0) -> None:
        self._lines = Numbered()

    def open(self, connection: socket.socket) -> None:
        pass

    def messages(self, start: int, count: int) -> bytes | memoryview:
        return self._lines.block(start + 1, count)

    def acked(self, data: bytes) -> int:
        raise AssertionError(f"a reply to nameless lines: {data[:80]!r}")


class Lines(RawLines):
    """Lines of a named producer: ``ACK n`` means that all lines up to n are durable."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._name = b"bench-%d" % number
        self._seen = self._first = 0
        self._rest = b""

    def open(self, connection: socket.socket) -> None:
        connection.sendall(b"HELLO %b\n" % self._name)
        reply = connection.recv(200)
        assert reply.startswith(b"OK "), reply
        self._seen = self._first = int(reply.split()[-1])

    def messages(self, start: int, count: int) -> bytes | memoryview:
        return self._lines.block(self._first + start + 1, count)

    def acked(self, data: bytes) -> int:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not lines:
            return 0
        word, _, number = lines[-1].partition(b" ")
        assert word == b"ACK", lines[-1]
        before, self._seen = self._seen, int(number)
        return self._seen - before


class Redis:
    """Pipelined XADD commands."""

    def __init__(self, _number: int = 0, topic: str = TOPIC) -> None:
        key = topic.encode()
        head = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nm\r\n" % (len(key), key)
        self._commands = Numbered(head + b"$%d\r\n" % MESSAGE_BYTES, b"\n\r\n")

    def open(self, connection: socket.socket) -> None:
        pass

    def messages(self, start: int, count: int) -> bytes | memoryview:
        return self._commands.block(start, count)

    def acked(self, data: bytes) -> int:
        assert b"-ERR" not in data, data[:200]
        return data.count(b"$")  # one in every id, none elsewhere


class Nats:
    """PUB with a reply subject, to which JetStream sends the acknowledgement."""

    def __init__(self, number: int = 0, topic: str = TOPIC) -> None:
        self._inbox = b"_INBOX.bench.%d" % number
        head = b"PUB %b %b %d\r\n" % (topic.encode(), self._inbox, MESSAGE_BYTES)
        self._commands = Numbered(head, b"\n\r\n")

    def open(self, connection: socket.socket) -> None:
        nats_connect(connection)
        connection.sendall(b"SUB %b 1\r\n" % self._inbox)

    def messages(self, start: int, count: int) -> bytes | memoryview:
        return self._commands.block(start, count)

    def acked(self, data: bytes) -> int:
        assert b'"error"' not in data, data[:300]
        return data.count(b"{")  # {"stream":"BENCH","seq":1}


def nats_connect(connection: socket.socket) -> None:
    """Exchange the greeting of the protocol, up to the first PONG."""
    received = b""
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nPING\r\n')
    while not received.endswith(b"PONG\r\n"):
        received += connection.recv(65536)


class Kafka:
    """Produce requests with prepared batches, to measure the broker without a client's cost."""

    RECORDS_PER_REQUEST = 1

    def __init__(self, _number: int = 0, topic: str = TOPIC) -> None:
        self._topic = topic
        self._requests: dict[int, bytes] = {}
        self._reply_bytes = 0
        self._rest = 0

    def open(self, connection: socket.socket) -> None:
        """Send one request to learn the length of the replies, which is the same for one topic."""
        deadline = time.monotonic() + LEADER_S
        while (error := self._ask(connection)) and time.monotonic() < deadline:
            time.sleep(0.05)  # a new topic has no leader yet
        assert error == 0, f"Produce to {self._topic}: error {error}"

    def _ask(self, connection: socket.socket) -> int:
        connection.sendall(self._request(self.RECORDS_PER_REQUEST))
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += connection.recv(4096)
        self._reply_bytes = len(data)
        return int.from_bytes(data[8 + 4 + 2 + len(self._topic) + 4 + 4 :][:2], "big")

    def messages(self, _start: int, count: int) -> bytes:
        requests, rest = divmod(count, self.RECORDS_PER_REQUEST)
        assert rest == 0, f"{count} is not whole requests"
        return self._request(self.RECORDS_PER_REQUEST) * requests

    def acked(self, data: bytes) -> int:
        replies, self._rest = divmod(self._rest + len(data), self._reply_bytes)
        return replies * self.RECORDS_PER_REQUEST

    def _request(self, count: int) -> bytes:
        if count not in self._requests:
            records = [Record(n, NOW_MS, None, message(n) + b"\n") for n in range(count)]
            given = [ProducePartition(0, bytes(encode_batch(records)))]
            body = ProduceRequest(None, -1, 30_000, [ProduceTopic(self._topic, partitions=given)])
            parts = encode_request(body, PRODUCE_VERSION, 1, "bench")
            self._requests[count] = b"".join(bytes(part) for part in parts)
        return self._requests[count]


class KafkaBatched(Kafka):
    """Batches of a thousand records, about 100 KiB, as a busy client sends them."""

    RECORDS_PER_REQUEST = 1000


SPEECHES: dict[str, type] = {
    "raw lines": RawLines,
    "line": Lines,
    "least": Lines,
    "redis": Redis,
    "nats": Nats,
    "kafka": Kafka,
    "kafka batched": KafkaBatched,
}
