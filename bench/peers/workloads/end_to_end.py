"""Measures from the send of a message until a waiting consumer has it, one at a time.

A server decides when a consumer may get a message: ours after it is as durable as the level
requires, Redis at ``always`` after the sync of its event loop iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers import rdkafka, readers
from bench.peers.measure import Measure, Visit, percentiles
from bench.peers.speech import TOPIC
from bench.peers.workloads.latency import LIBRDKAFKA, PLAIN


def measure(visit: Visit) -> Iterator[Measure]:
    server, seconds = visit.server, visit.scale.seconds
    for listener in server.speeches:
        if listener in readers.READERS:
            arguments = (server.addresses, listener, server.stored(), seconds)
            yield from percentiles(
                PLAIN, visit.client.ask(readers.end_to_end, *arguments), listener
            )
    if visit.speaks_kafka:
        taken = visit.client.ask(rdkafka.end_to_end, visit.bootstrap, TOPIC, seconds)
        yield from percentiles(LIBRDKAFKA, taken, "kafka")
