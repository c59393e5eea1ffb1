"""Measures by log size: the first byte of a replay, a full replay, and the start after a kill.

First byte and recovery should not depend on the length of the log. Reading costs the same at both
levels of durability, so only the cached one is measured. The recovery time goes from the start of
the process until the server answers, including the start of a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench.peers import client, rdkafka, readers
from bench.peers.client import Client
from bench.peers.contestants import Contestant, Level, Server
from bench.peers.measure import LESS, Measure, Scale
from bench.peers.results import OURS
from bench.peers.speech import TOPIC

PROBES = 11


def measure(
    kind: type[Contestant], level: Level, asking: Client, scale: Scale
) -> Iterator[Measure]:
    if level is not Level.CACHED:
        return
    for listener in kind.speeches:
        if listener != "raw lines":
            with Server(kind, level) as server:
                server.prepare()
                yield from grown(server, listener, asking, scale)


def grown(server: Server, listener: str, asking: Client, scale: Scale) -> Iterator[Measure]:
    held, largest = 0, scale.log_records[-1]
    speech = "kafka batched" if listener == "kafka" else listener
    for size in scale.log_records:
        asking.ask(client.fill, server.addresses[listener], speech, size - held)
        held = size
        server.settle()
        taken = asking.ask(*questions(server, listener)["first"], PROBES)
        yield Measure(f"first byte, {size:,} messages", median(taken) * 1000, "ms", LESS, listener)
        if size == largest:
            done = asking.ask(*questions(server, listener)["whole"], size)
            rate = done.count / done.seconds
            yield Measure(f"whole replay, {size:,} messages", rate, "messages/s", listener=listener)
        if size == largest or server.name == OURS:  # Kafka's takes about 15 seconds
            yield from recovered(server, listener, held)


def recovered(server: Server, listener: str, held: int) -> Iterator[Measure]:
    server.sandbox.kill()
    server.start()
    yield Measure(f"ready after kill -9, {held:,} messages", server.started_s, "s", LESS, listener)
    if listener != "kafka":
        assert server.stored() == held, f"{server.stored()} of {held} after the kill"


def questions(server: Server, listener: str) -> dict[str, tuple]:
    """Return the functions for the client with all but their last argument."""
    if listener == "kafka":
        given = ("{}:{}".format(*server.addresses["kafka"]), TOPIC)
        return {"first": (rdkafka.firsts, *given), "whole": (rdkafka.fetch, *given)}
    given = (server.addresses, listener)
    return {"first": (readers.firsts, *given), "whole": (readers.replay, *given)}
