"""Readers over plain sockets: one waits for the next message, one replays from the start.

A message contains three ``|`` and the bytes around it contain none, so messages are counted without
parsing; only Redis needs the position to continue from.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from bench.peers import talk
from bench.peers.client import Address, Pumped, connect
from bench.peers.speech import TOPIC, message, nats_connect

BARS = 3  # in a message
PAGE = 5_000
WARM_UP = 20
_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")


class LineReader:
    """Our control listener's SUBSCRIBE, with lines from a producer without a name."""

    def __init__(self, addresses: dict[str, Address], start: int) -> None:
        self._sending = connect(addresses["line"])
        self._reading = connect(addresses["control"])
        self._start = start
        self._asked = False

    def publish(self, number: int) -> None:
        self._sending.sendall(message(number) + b"\n")

    def ask(self) -> None:
        if not self._asked:
            self._reading.sendall(b"SUBSCRIBE append FROM %d\n" % (self._start + 1))
            self._asked = True

    def receive(self) -> int:
        """Count newlines, because each line's number and time add more bars."""
        return self._reading.recv(1 << 20).count(b"\n")


class RedisReader:
    """XREAD with BLOCK, as Redis consumers use it."""

    def __init__(self, addresses: dict[str, Address], start: int) -> None:
        self._sending = connect(addresses["redis"])
        self._reading = connect(addresses["redis"])
        self._after = self.publish(0) if start else b"0"  # "$" would race with the next message

    def publish(self, number: int) -> bytes:
        """Return the id; its reply may arrive after the waiting reader gets the message."""
        self._sending.sendall(talk.redis_command("XADD", TOPIC, "*", "m", message(number) + b"\n"))
        return self._sending.recv(100).split(b"\r\n")[1]

    def ask(self) -> None:
        head = ("XREAD", "COUNT", str(PAGE), "BLOCK", "60000", "STREAMS", TOPIC)
        self._reading.sendall(talk.redis_command(*head, self._after))

    def receive(self) -> int:
        """Return how many messages one reply holds; the next request starts after the last id."""
        data = bytearray()
        expected = 0
        while not expected or data.count(b"x\n\r\n") < expected:
            data += self._reading.recv(1 << 20)
            head = re.match(rb"\*1\r\n\*2\r\n\$\d+\r\n\w+\r\n\*(\d+)\r\n", data)
            expected = int(head[1]) if head else 0
        self._after = _ID.findall(data[data.rindex(b"-") - 30 :])[-1]
        return expected


class NatsReader:
    """A push consumer without acknowledgements, the fastest kind of JetStream."""

    def __init__(self, addresses: dict[str, Address], start: int) -> None:
        self._policy = "new" if start else "all"
        self._sending, self._reading = connect(addresses["nats"]), connect(addresses["nats"])
        self._inbox = f"_DELIVER.{time.perf_counter_ns()}"
        nats_connect(self._sending)
        nats_connect(self._reading)
        self._reading.sendall(b"SUB %b 1\r\nPING\r\n" % self._inbox.encode())
        assert self._reading.recv(100) == b"PONG\r\n"
        self._asked, self._bars = False, 0

    def publish(self, number: int) -> None:
        self._sending.sendall(b"PUB %b 100\r\n%b\n\r\n" % (TOPIC.encode(), message(number)))

    def ask(self) -> None:
        if not self._asked:  # its reply is ignored: messages prove that it worked
            config = {
                "deliver_subject": self._inbox,
                "deliver_policy": self._policy,
                "ack_policy": "none",
            }
            body = {"stream_name": "BENCH", "config": config}
            self._sending.sendall(talk.nats_request("CONSUMER.CREATE.BENCH", body))
            self._asked = True

    def receive(self) -> int:
        self._bars += self._reading.recv(1 << 20).count(b"|")
        found, self._bars = divmod(self._bars, BARS)
        return found


READERS: dict[str, Callable[[dict[str, Address], int], LineReader | RedisReader | NatsReader]] = {
    "line": LineReader,
    "redis": RedisReader,
    "nats": NatsReader,
}


def replay(addresses: dict[str, Address], listener: str, count: int) -> Pumped:
    """Read that many messages from the start of the log."""
    reader = READERS[listener](addresses, 0)
    began, cpu = time.perf_counter(), time.process_time()
    found = 0
    while found < count:
        reader.ask()
        found += reader.receive()
    return Pumped(found, time.perf_counter() - began, time.process_time() - cpu)


def firsts(addresses: dict[str, Address], listener: str, probes: int) -> list[float]:
    """Return the seconds from a request for everything to its first bytes."""
    taken = []
    for _ in range(probes):
        reader = READERS[listener](addresses, 0)
        began = time.perf_counter()
        reader.ask()
        reader.receive()
        taken.append(time.perf_counter() - began)
    return taken


def end_to_end(
    addresses: dict[str, Address], listener: str, start: int, seconds: float
) -> list[float]:
    """Return the milliseconds from a send until a waiting reader has the message, one at a time."""
    reader = READERS[listener](addresses, start)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        reader.ask()
        began = time.perf_counter()
        reader.publish(len(taken))
        while not reader.receive():
            pass
        taken.append((time.perf_counter() - began) * 1000)
    return taken[WARM_UP:]
