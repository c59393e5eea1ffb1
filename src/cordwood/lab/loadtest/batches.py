"""Send whole batches with our own client: encoded in advance, one in flight per client."""

from __future__ import annotations

import time
from typing import Final

from cordwood.batch.header import check_batches
from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.config import MIB
from cordwood.errors import UnavailableError
from cordwood.lab.loadtest.clients import measure, settle
from cordwood.lab.loadtest.results import Load, Report, Results, make_values
from cordwood.model import Record, TopicPartition

NAME: Final = "cordwood"
_BATCH_BYTES_MAX: Final = 64 * MIB
_WAIT_MS: Final = 500


def produce(kafka: str, topic: str, load: Load, report: Report) -> Results:
    """Each client fills its own partition; a wait is the time from a batch to its response."""
    size = load.batch_records
    batches = {count: make_batch(load, count) for count in {size, load.records % size} - {0}}

    def fill(partition: int, share: int) -> list[float]:
        waits = []
        tp = TopicPartition(topic, partition)
        with KafkaClient(kafka, tls=load.tls) as client:
            for start in range(0, share, size):
                count = min(size, share - start)
                began = time.perf_counter()
                client.produce(tp, batches[count], acks=load.acks)
                waits.append(time.perf_counter() - began)
                report(count)
        if load.acks == 0:
            settle(kafka, tp, share, load.tls)
            return []
        return waits

    return measure("produce", NAME, load, fill)


def consume(kafka: str, topic: str, load: Load, report: Report) -> Results:
    """Each client reads its partition from the start and verifies each batch's checksum."""

    def drain(partition: int, share: int) -> list[float]:
        tp, offset = TopicPartition(topic, partition), 0
        with KafkaClient(kafka, tls=load.tls) as client:
            while offset < share:
                found = client.fetch({tp: offset}, max_wait_ms=_WAIT_MS)[tp].records or b""
                headers = check_batches(found, _BATCH_BYTES_MAX)
                if not headers:
                    raise UnavailableError(f"{tp} ends at {offset}, before {share}")
                report(headers[-1].end_offset - offset)
                offset = headers[-1].end_offset
        return []  # a response holds megabytes, so its latency says nothing about one record

    return measure("consume", NAME, load, drain)


def make_batch(load: Load, count: int) -> bytes:
    """Encode one batch of ``count`` records."""
    values = make_values(load.size_bytes)
    now_ms = time.time_ns() // 1_000_000
    records = [Record(n, now_ms, None, values[n % len(values)]) for n in range(count)]
    return encode_batch(records, codec=load.codec)
