"""Measures one message in flight, from the send to its acknowledgement, over a plain socket.

Kafka's protocol is also measured with librdkafka, from ``produce`` to the delivery report: this is
what an application sees, including its client's threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers import client, rdkafka
from bench.peers.measure import Measure, Visit, percentiles
from bench.peers.speech import TOPIC

PLAIN = "plain socket"
LIBRDKAFKA = "librdkafka"


def measure(visit: Visit) -> Iterator[Measure]:
    seconds = visit.scale.seconds
    for listener in visit.server.speeches:
        if listener != "raw lines":
            address = visit.server.addresses[listener]
            taken = visit.client.ask(client.one_in_flight, address, listener, seconds)
            yield from percentiles(PLAIN, taken, listener)
    if visit.speaks_kafka:
        taken = visit.client.ask(rdkafka.acks, visit.bootstrap, TOPIC, seconds)
        yield from percentiles(LIBRDKAFKA, taken, "kafka")
