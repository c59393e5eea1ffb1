"""Measures sustained ingest of 100-byte messages from one client.

*Acknowledged*: at most 20,000 messages are in flight, and the time ends with the last
acknowledgement. *Streamed*: there are no replies; the time ends when the server closes its side.
Ours closes it when all messages are as durable as the level requires, and the gawk design when its
file is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.peers import client
from bench.peers.contestants import Kmq, Server
from bench.peers.measure import LESS, Measure, Visit

ACKED = "acknowledged, 20,000 under way"
STREAMED = "streamed, no acknowledgement"


def measure(visit: Visit) -> Iterator[Measure]:
    server = visit.server
    for listener in ("line", "redis", "nats"):
        if listener in server.speeches:
            yield from counted(visit, ACKED, client.pump, listener)
    if isinstance(server.contestant, Kmq):
        yield from gawk(visit, server.contestant)
    elif "line" in server.speeches:
        yield from counted(visit, STREAMED, client.stream, "line", speech="raw lines")


def counted(visit: Visit, case: str, work, listener: str, speech: str = "") -> Iterator[Measure]:
    """Run a workload, and compare the client's count with what the server then holds."""
    server = visit.server
    before, cpu = server.stored(), server.sandbox.cpu_seconds()
    done = visit.client.ask(
        work, server.addresses[listener], speech or listener, visit.scale.seconds
    )
    check(server, before + done.count)
    spent = server.sandbox.cpu_seconds() - cpu
    yield Measure(case, done.count / done.seconds, "messages/s", listener=listener)
    yield Measure(f"{case}: server CPU", spent / done.count * 1e6, "µs/message", LESS, listener)


def gawk(visit: Visit, kmq: Kmq) -> Iterator[Measure]:
    address = visit.server.addresses["raw lines"]
    done = visit.client.ask(client.stream, address, "raw lines", visit.scale.seconds)
    began = time.perf_counter()
    kmq.finish()
    check(visit.server, done.count)
    seconds = done.seconds + time.perf_counter() - began
    yield Measure(STREAMED, done.count / seconds, "messages/s", listener="line")


def check(server: Server, expected: int) -> None:
    """A server that lost or refused messages has no rate."""
    found = server.stored()
    if found != expected:
        raise ValueError(f"{server.name} holds {found:,} messages; {expected:,} were sent")
