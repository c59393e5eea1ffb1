"""Kafka Streams with ``exactly_once_v2`` counts each record once, though it is killed."""

from __future__ import annotations

import time
from collections import defaultdict

import confluent_kafka
import pytest

from support.ecosystem import WAIT_S, java, needs_program
from support.kafka_clients import Confluent, Sent, create_topic

pytestmark = [needs_program("connect", compiler=True), pytest.mark.slow, pytest.mark.timeout(900)]
KEYS = 5
RECORDS = 400


def committed_counts(address: str, total: int) -> dict[bytes, list[int]]:
    """Read this many committed counts, by key in order."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "check", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition("counts", 0, 0)])
    counts: dict[bytes, list[int]] = defaultdict(list)
    try:
        for _ in range(total):
            message = consumer.poll(WAIT_S)
            assert message is not None, f"no more counts; so far {dict(counts)}"
            assert message.error() is None, message.error()
            counts[message.key()].append(int(message.value()))
    finally:
        consumer.close()
    return counts


def test_every_record_is_counted_once_though_the_program_is_killed(broker, compiled, tmp_path):
    """Each key's committed counts are 1, 2, 3 … without gap or repeat, across ``kill -9``."""
    create_topic(broker.kafka, "words")
    create_topic(broker.kafka, "counts")
    now_ms = int(time.time() * 1000)  # older records would expire meanwhile
    records = [Sent(b"word", b"key %d" % (at % KEYS), (), now_ms) for at in range(RECORDS)]
    program = (compiled("CountWords", "connect"), "CountWords", broker.kafka, tmp_path / "state")
    with java(*program, log=tmp_path / "streams.log") as first:
        Confluent().send(broker.kafka, "words", records)
        committed_counts(broker.kafka, RECORDS // 2)
        Confluent().send(broker.kafka, "words", records)
        first.kill()
    with java(*program, log=tmp_path / "streams.log"):
        Confluent().send(broker.kafka, "words", records)
        counts = committed_counts(broker.kafka, 3 * RECORDS)
    assert counts == {b"key %d" % key: [*range(1, 3 * RECORDS // KEYS + 1)] for key in range(KEYS)}
