"""Flink's Kafka connector reads a topic to its end, and writes another one exactly once."""

from __future__ import annotations

import time

import pytest

from support.ecosystem import FLINK_OPENS, java, needs_program
from support.kafka_clients import Confluent, Sent, create_topic

pytestmark = [needs_program("flink", compiler=True), pytest.mark.slow, pytest.mark.timeout(900)]


def test_flink_copies_a_topic_exactly_once(broker, compiled, tmp_path):
    """A bounded job writes each record once, in transactions, and commits its group's offsets."""
    create_topic(broker.kafka, "plain")
    create_topic(broker.kafka, "upper")
    now_ms = int(time.time() * 1000)  # older records would expire meanwhile
    records = [Sent(b"text %d" % n, timestamp_ms=now_ms) for n in range(2000)]
    Confluent().send(broker.kafka, "plain", records)
    program = (compiled("FlinkCopy", "flink"), "FlinkCopy", broker.kafka)
    words = ((tmp_path / "checkpoints").as_uri(), "plain", "upper")
    log = tmp_path / "flink.log"
    with java(*program, *words, log=log, options=FLINK_OPENS) as running:
        running.finish()
    copied = Confluent().read(broker.kafka, "upper", 2000)
    assert [record.value for record in copied] == [b"TEXT %d" % n for n in range(2000)]
