"""Measures CPU and memory of an idle server, and the time from its start to its first answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.peers.client import Client
from bench.peers.contestants import Contestant, Level, Server
from bench.peers.measure import LESS, Measure, Scale

SETTLE_S = 2.0


def measure(kind: type[Contestant], level: Level, _: Client, scale: Scale) -> Iterator[Measure]:
    if level is not Level.CACHED:  # durability costs nothing if nothing is written
        return
    with Server(kind, level) as server:
        yield Measure("from start to the first answer", server.started_s, "s", LESS)
        time.sleep(SETTLE_S)
        cpu, seconds = server.sandbox.cpu_seconds(), 2 * scale.seconds
        time.sleep(seconds)
        percent = (server.sandbox.cpu_seconds() - cpu) / seconds * 100
        yield Measure("idle: CPU", percent, "% of a core", LESS)
        yield Measure("idle: memory", server.sandbox.rss_mib(), "MiB", LESS)
