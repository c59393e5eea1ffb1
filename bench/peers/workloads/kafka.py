"""Measures Kafka's protocol: cordwood and Apache Kafka.

With librdkafka one Python thread hands records over and is often the slower end. Each rate is
therefore shown with the broker's CPU time per record, and records of 100 bytes are also fetched by
kcat, which uses librdkafka from C. *Prepared* requests are sent by the plain-socket client, which
costs almost no CPU: they show what the broker itself can take and give.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers import client, provide, raw_fetch, rdkafka
from bench.peers.contestants import Level
from bench.peers.measure import LESS, Measure, Visit
from bench.peers.results import CLIENT_BOUND
from bench.peers.speech import TOPIC

SIZES = {100: 1.0, 1024: 0.4}  # record size in bytes → share of the scale's records
CODECS = ("none", "lz4")
DRAINED = 2_000_000  # how many of the prepared records kcat reads


def measure(visit: Visit) -> Iterator[Measure]:
    if not visit.speaks_kafka:
        return
    for size, share in SIZES.items():
        count = int(visit.scale.records * share)
        for codec in CODECS:
            for acks in ("1", "all") if visit.server.level is Level.SYNCED else ("all",):
                yield from produced(visit, size, count, acks, codec)
            if codec == "none":
                yield from fetched(visit, size, count, codec)
    yield from prepared(visit)


def named(visit: Visit, size: int, acks: str, codec: str) -> str:
    return f"{visit.server.level}-{size}-{acks}-{codec}"


def produced(visit: Visit, size: int, count: int, acks: str, codec: str) -> Iterator[Measure]:
    topic = named(visit, size, acks, codec)
    rdkafka.create(visit.bootstrap, [topic])
    cpu = visit.server.sandbox.cpu_seconds()
    done = visit.client.ask(rdkafka.produce, visit.bootstrap, topic, size, count, acks, codec)
    assert rdkafka.stored(visit.bootstrap, topic) == count, f"{topic} is not whole"
    case = f"produce {size} B, acks={acks}, {codec}"
    yield from rates(visit, case, done, cpu)


def fetched(visit: Visit, size: int, count: int, codec: str) -> Iterator[Measure]:
    """Fetch hot from the page cache, and cold after the files are dropped from it."""
    topic = named(visit, size, "all", codec)
    for warmth in ("hot", "cold"):
        if warmth == "cold":
            visit.server.sandbox.forget_cache()
        cpu = visit.server.sandbox.cpu_seconds()
        done = visit.client.ask(rdkafka.fetch, visit.bootstrap, topic, count)
        yield from rates(visit, f"fetch {size} B, {warmth}", done, cpu)


def prepared(visit: Visit) -> Iterator[Measure]:
    """Send batches of 1,000 records with 20 requests in flight, then fetch all, 1 MiB at a time."""
    server = visit.server
    address = server.addresses["kafka"]
    before, cpu = rdkafka.stored(visit.bootstrap, TOPIC), server.sandbox.cpu_seconds()
    done = visit.client.ask(client.pump, address, "kafka batched", visit.scale.seconds)
    yield from rates(visit, "prepared produce, 100 B, batches of 1,000", done, cpu)
    end = rdkafka.stored(visit.bootstrap, TOPIC)
    assert end == before + done.count + 1000, "the first request opens the talk"
    cpu = server.sandbox.cpu_seconds()
    done = visit.client.ask(raw_fetch.fetch, address, TOPIC, visit.scale.seconds)
    yield from rates(visit, "prepared fetch, 1 MiB a request", done, cpu)
    kcat, count = provide.command("kcat"), min(end, DRAINED)
    cpu = server.sandbox.cpu_seconds()
    done = visit.client.ask(rdkafka.drain, kcat, visit.bootstrap, TOPIC, count)
    yield from rates(visit, "fetch 100 B, hot, by kcat", done, cpu)


def rates(visit: Visit, case: str, done, cpu_before: float) -> Iterator[Measure]:
    spent = visit.server.sandbox.cpu_seconds() - cpu_before
    note = CLIENT_BOUND if done.cpu_seconds > 0.9 * done.seconds else ""
    yield Measure(case, done.count / done.seconds, "records/s", listener="kafka", note=note)
    yield Measure(f"{case}: server CPU", spent / done.count * 1e6, "µs/record", LESS, "kafka")
