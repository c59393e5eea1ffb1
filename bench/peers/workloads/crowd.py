"""Measures many clients that each wait for their ack, and many topics with few records each."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.peers import client, rdkafka
from bench.peers.contestants import Level
from bench.peers.measure import LESS, Measure, Visit

FEW = 64


def clients(visit: Visit) -> Iterator[Measure]:
    """Run closed loops over plain sockets, all in one client process."""
    for count in (FEW, visit.scale.clients):
        for listener in visit.server.speeches:
            if listener == "raw lines":
                continue
            cpu = visit.server.sandbox.cpu_seconds()
            address, seconds = visit.server.addresses[listener], visit.scale.seconds
            done = visit.client.ask(client.closed_loop, address, listener, count, seconds)
            spent = visit.server.sandbox.cpu_seconds() - cpu
            note = "client-bound" if done.cpu_seconds > 0.9 * done.seconds else ""
            case = f"{count} clients"
            yield Measure(
                case, done.count / done.seconds, "messages/s", listener=listener, note=note
            )
            yield Measure(
                f"{case}: server CPU", spent / done.count * 1e6, "µs/message", LESS, listener
            )


def topics(visit: Visit) -> Iterator[Measure]:
    """Create topics with one admin request, then produce to them in turn with librdkafka."""
    if not visit.speaks_kafka or visit.server.level is not Level.CACHED:
        return
    names = [f"many-{number}" for number in range(visit.scale.topics)]
    began = time.perf_counter()
    rdkafka.create(visit.bootstrap, names)
    yield Measure(f"create {len(names):,} topics", time.perf_counter() - began, "s", LESS, "kafka")
    cpu = visit.server.sandbox.cpu_seconds()
    count = visit.scale.records // 30
    done = visit.client.ask(rdkafka.produce_many, visit.bootstrap, names, count)
    spent = visit.server.sandbox.cpu_seconds() - cpu
    case = f"produce 100 B to {len(names):,} topics in turn"
    yield Measure(case, done.count / done.seconds, "records/s", listener="kafka")
    yield Measure(f"{case}: server CPU", spent / done.count * 1e6, "µs/record", LESS, "kafka")
